"""Prompts that are given are sent as they are."""

import json
from pathlib import Path

import pytest

from openloop.arrivals import Constant
from openloop.errors import SpecError
from openloop.workload import Ask, Prompts, Words, Workload, describe, known_tokens, priming, read_source
from openloop.workload.mix import Class

SHARE_GPT = [
    {
        "id": "x",
        "conversations": [
            {"from": "system", "value": "Be kind."},
            {"from": "human", "value": "Who are you?"},
            {"from": "gpt", "value": "one two three four five six"},
            {"from": "human", "value": "And then?"},
        ],
    },
    {"id": "y", "conversations": [{"from": "human", "value": "Hello"}]},
]


def asks(spec: str, count: int = 3) -> list[Ask]:
    found = Workload.of(read_source(spec)).demand(Constant(1), float(count), 1)
    prompts = Prompts(found, Words(1))
    return [prompts.ask(number) for number in range(count)]


def test_json_lines_hold_messages_prompts_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    records = [
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], "output_tokens": 7},
        {"prompt": "P", "max_tokens": 9},
        {"text": "T"},
    ]
    path.write_text("\n".join(json.dumps(each) for each in records))
    found = asks(f"corpus:{path},output=5")
    assert [ask.messages for ask in found] == [(("system", "S"), ("user", "U")), (("user", "P"),), (("user", "T"),)]
    assert [ask.output_tokens for ask in found] == [7, 9, 5]


def test_sharegpt_asks_the_first_question_for_as_long_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SHARE_GPT))
    first, second, _ = asks(f"corpus:{path}")
    assert first.messages == (("system", "Be kind."), ("user", "Who are you?"))
    assert first.output_tokens == 8  # six words
    assert second.output_tokens is None


def test_plain_text_has_a_prompt_to_a_line_and_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("first one\n\nsecond one\n")
    assert [ask.text for ask in asks(f"corpus:{path}")] == ["first one", "second one", "first one"]
    demand = Workload.of(read_source(f"corpus:{path}")).demand(Constant(1), 5.0, 1)
    found = describe(demand, 5.0)
    assert "3 requests repeat one" in found.notes[0]
    assert found.reuse == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("c.jsonl", '{"prompt": "a"}\n{"prompt": "  "}\n', "line 2 has an empty prompt"),
        ("c.jsonl", '{"question": "a"}\n', "line 1 has no prompt"),
        ("c.jsonl", '{"prompt": "a"\n', "line 1 is not JSON"),
        ("c.jsonl", '{"prompt": "a", "output_tokens": "many"}\n', "output_tokens is 'many'"),
        ("c.jsonl", '{"messages": [{"role": "user"}]}\n', "a message has a role and a content"),
        ("c.json", '{"prompt": "a"}', "is not a JSON list"),
        ("c.json", '[{"conversations": [{"from": "gpt", "value": "a"}]}]', "in which nobody asks"),
        ("c.txt", "\n\n", "holds no prompts"),
    ],
)
def test_what_is_wrong_with_a_corpus_is_said(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=sentence):
        asks(f"corpus:{tmp_path / name}")


def test_only_requests_of_a_corpus_have_its_references(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"prompt": "2 + 2?", "reference": "4"}\n')
    sources = (("math", f"corpus:{corpus}"), ("words", "synthetic:prompt=10,output=5"))
    mixed = Workload(tuple(Class(name, 0.5, read_source(source)) for name, source in sources))
    demand = mixed.demand(Constant(20), 1.0, 0)
    asks = [Prompts(demand, Words(0)).ask(number) for number in range(len(demand))]
    assert {(ask.workload_class, ask.reference) for ask in asks} == {("math", "4"), ("words", None)}


def test_of_given_prompts_only_what_they_have_in_common_is_primed(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    said = [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"Q{n}?"}] for n in range(4)]
    corpus.write_text("\n".join(json.dumps({"messages": each}) for each in said))
    primes = priming(Workload.of(read_source(f"corpus:{corpus}")).demand(Constant(1), 4.0, 0))
    assert len(primes) == 1
    assert Prompts(primes, Words(1)).ask(0).messages == (("system", "Be kind."),)


def test_what_somebody_else_answered_in_a_given_prompt_is_in_no_cache(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    said = [["Who are you?", f"{n} {n} {n} {n} {n} {n}", "And then?"] for n in range(2)]
    turns = [
        [{"role": r, "content": c} for r, c in zip(("user", "assistant", "user"), each, strict=True)] for each in said
    ]
    corpus.write_text("\n".join(json.dumps({"messages": each}) for each in turns))
    found = Workload.of(read_source(f"corpus:{corpus}")).demand(Constant(1), 2.0, 0)
    assert known_tokens(found).tolist() == [0, found.pieces.tokens[0]]
