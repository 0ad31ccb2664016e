"""Texts have the tokens that were asked for, and differ from their first words on."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from openloop.arrivals import Constant
from openloop.distributions import Fixed
from openloop.errors import SpecError
from openloop.workload import Prompts, Scale, Synthetic, Words, Workload, word_tokens


def small_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level pairs, as most models have, learnt from a few words."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    corpus = ["the table and the chair and the lamp stand in the room by the door"] * 20
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    found.train_from_iterator(corpus, trainer)
    found.save(str(folder / "tokenizer.json"))
    return found


@given(st.integers(1, 100_000), st.integers(-(1 << 60), 1 << 60))
def test_without_a_tokenizer_a_token_is_a_word(tokens: int, identity: int) -> None:
    assert len(Words(5).text(identity, tokens).split()) == tokens


def test_texts_differ_from_the_start_and_are_the_same_for_the_same_identity() -> None:
    words = Words(1)
    texts = [words.text(identity, 8) for identity in range(5_000)]
    assert len(set(texts)) == 5_000
    assert Words(1).text(77, 300) == Words(1).text(77, 300)
    assert Words(1).text(77, 300) != Words(2).text(77, 300)
    assert Words(1).text(77, 300).startswith(Words(1).text(77, 8))


def test_a_scale_is_taken_into_account() -> None:
    words = Words(1, Scale(1.25, 9))
    assert len(words.text(0, 1000).split()) == 800
    demand = Workload.of(Synthetic(Fixed(109), Fixed(5))).demand(Constant(10), 1.0, 0)
    ((_, text),) = Prompts(demand, words).ask(0).messages
    assert len(text.split()) == 80


def test_words_are_rounded_by_chance_so_that_many_texts_are_as_long_as_they_should_be() -> None:
    words = Words(1, Scale(4.0))
    counts = [len(words.text(identity, 10).split()) for identity in range(1000)]
    assert set(counts) == {2, 3}
    assert sum(counts) / 1000 == pytest.approx(2.5, abs=0.06)


def test_with_a_tokenizer_counts_are_exact(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    vocabulary, scale = word_tokens(tmp_path)
    assert scale == Scale(1.0, 0)
    words = Words(4, scale, vocabulary)
    for tokens in (1, 2, 17, 500, 40_000):
        assert len(tokenizer.encode(words.text(9, tokens)).ids) == tokens
    joined = " ".join([words.text(1, 100), words.text(2, 50)])
    assert len(tokenizer.encode(joined).ids) == 150


def test_a_folder_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="it has no tokenizer.json"):
        word_tokens(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(SpecError, match="is no tokenizer"):
        word_tokens(tmp_path)
