"""Synthetic requests have the lengths, the prefixes and the turns that were asked for."""

import json
from pathlib import Path

import numpy as np
import pytest

from openloop.arrivals import Constant, Poisson, read_arrivals
from openloop.distributions import Fixed, Uniform
from openloop.errors import SpecError
from openloop.workload import Demand, Prompts, Sessions, Synthetic, Words, Workload, describe, known_tokens, read_source
from openloop.workload.demand import ASSISTANT, SYSTEM, USER
from openloop.workload.mix import Class


def demand(spec: str, rate: float = 20.0, seconds: float = 50.0, seed: int = 1) -> Demand:
    return Workload.of(read_source(spec)).demand(Constant(rate), seconds, seed)


def test_lengths_are_drawn_for_each_request() -> None:
    found = demand("synthetic:prompt=uniform(5,50),output=uniform(1,9)", seconds=500.0)
    assert (found.prompt_tokens.min(), found.prompt_tokens.max()) == (5, 50)
    assert (found.output_tokens.min(), found.output_tokens.max()) == (1, 9)
    assert abs(found.prompt_tokens.mean() - 27.5) < 0.5


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    spec = "synthetic:prompt=uniform(5,500),output=uniform(1,99),prefixes=5,prefix=uniform(10,90),reuse=50%"
    one, same, other = (demand(spec, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.pieces.identity, same.pieces.identity)
    assert np.array_equal(one.prompt_tokens, same.prompt_tokens)
    assert not np.array_equal(one.prompt_tokens, other.prompt_tokens)
    texts = [[Prompts(each, Words(seed)).ask(7).text for each in (one, same)] for seed in (1, 2)]
    assert texts[0][0] == texts[0][1] != texts[1][0]


def test_nothing_is_reused_where_no_prefix_is_shared() -> None:
    assert describe(demand("synthetic:prompt=100,output=5"), 50.0).reuse == 0.0


def test_prefixes_are_shared_as_often_as_asked() -> None:
    """Each of 1,000 requests is 900 tokens of prefix and 100 of its own with a chance of a half; of ten prefixes the
    first use is new: 900 * (500 - 10) of 100 * 1000 + 900 * 500 tokens are known, within chance."""
    found = demand("synthetic:prompt=100,output=5,prefixes=10,prefix=900,reuse=50%")
    shared = np.isin(found.pieces.identity, np.arange(10))
    uses = int(shared.sum())
    assert 430 < uses < 570
    assert set(found.pieces.tokens[shared]) == {900}
    assert known_tokens(found).sum() == 900 * (uses - 10)


def test_the_first_prefix_is_the_most_common_where_there_is_a_skew() -> None:
    found = demand("synthetic:prompt=10,output=5,prefixes=4,prefix=50,skew=1", seconds=500.0)
    uses = np.array([np.sum(found.pieces.identity == each) for each in range(4)])
    assert np.allclose(uses / uses.sum(), np.array([12, 6, 4, 3]) / 25, atol=0.02)


def test_a_prompt_begins_with_its_prefix_word_for_word() -> None:
    found = demand("synthetic:prompt=10,output=5,prefixes=1,prefix=50")
    texts = [Prompts(found, Words(3)).ask(number).text.split() for number in range(5)]
    assert all(text[:50] == texts[0][:50] and len(text) == 60 for text in texts)
    assert len({tuple(text[50:]) for text in texts}) == 5


def test_a_turn_repeats_everything_that_was_said() -> None:
    found = demand("sessions:turns=3,think=2s,prompt=10,output=20,system=30", rate=1.0, seconds=2.0)
    assert len(found) == 6
    turns = {(int(s), int(t)): place for place, (s, t) in enumerate(zip(found.session, found.turn, strict=True))}  # type: ignore[arg-type]
    last = found.pieces.of(turns[1, 2])
    assert found.pieces.role[last].tolist() == [SYSTEM, USER, ASSISTANT, USER, ASSISTANT, USER]
    assert found.pieces.tokens[last].tolist() == [30, 10, 20, 10, 20, 10]
    before = found.pieces.of(turns[1, 1])
    assert np.array_equal(found.pieces.identity[last][:4], found.pieces.identity[before])
    other = found.pieces.of(turns[0, 2])
    assert found.pieces.identity[last][0] == found.pieces.identity[other][0]
    assert not set(found.pieces.identity[last][1:]) & set(found.pieces.identity[other][1:])


def test_only_first_turns_have_a_time() -> None:
    found = demand("sessions:turns=uniform(1,4),think=exponential(3s)")
    assert found.after is not None
    assert found.think_s is not None
    first = found.turn == 0
    assert np.array_equal(np.isnan(found.due_s), ~first)
    assert np.all(found.after[first] == -1)
    assert np.array_equal(found.session[found.after[~first]], found.session[~first])  # type: ignore[index]
    assert np.array_equal(found.turn[found.after[~first]] + 1, found.turn[~first])  # type: ignore[index]
    assert abs(np.nanmean(found.think_s) - 3) < 0.3


def test_a_conversation_goes_on_with_what_was_answered() -> None:
    found = demand("sessions:turns=2,think=1s,prompt=4,output=5", rate=1.0, seconds=1.0)
    prompts = Prompts(found, Words(1))
    first = prompts.ask(0)
    prompts.answered(0, "so it is")
    second = prompts.ask(1)
    assert second.messages[:2] == (*first.messages, ("assistant", "so it is"))
    assert second.messages[2][0] == "user"
    assert (second.session_id, second.turn) == (0, 1)


def test_classes_have_their_shares_and_keep_apart() -> None:
    chat, long = "synthetic:prompt=10,output=5,prefixes=1,prefix=90", "sessions:turns=2,prompt=1000,output=50"
    pairs = [("chat", 0.75, chat), ("long", 0.25, long)]
    mixed = Workload(tuple(_class(*each) for each in pairs))
    found = mixed.demand(Poisson(20), 200.0, 3)
    assert found.workload_class is not None
    sessions = np.sum((found.workload_class == 1) & (found.turn == 0))
    chats = np.sum(found.workload_class == 0)
    assert abs(chats / (chats + sessions) - 0.75) < 0.03
    assert set(found.prompt_tokens[found.workload_class == 0]) == {100}
    identities = [set(found.pieces.identity[found.workload_class[found.pieces.owner] == each]) for each in (0, 1)]
    assert not identities[0] & identities[1]
    assert Prompts(found, Words(1)).ask(0).workload_class in ("chat", "long")
    due = found.due_s[~np.isnan(found.due_s)]
    assert np.all(np.diff(due) >= 0)


def _class(name: str, share: float, source: str) -> Class:
    return Class(name, share, read_source(source))


def test_classes_keep_their_sessions_texts_and_tenants_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / f"{name}.txt").write_text(f"say {name}\n")
        kinds = [{"timestamp": n, "input_length": 9, "output_length": 1, "type": f"{name}{n}"} for n in (0, 1)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, kinds)))
    specs = ["sessions:turns=2", "sessions:turns=2"]
    specs += [f"{kind}:{tmp_path / name}" for name, kind in (("x.txt", "corpus"), ("y.txt", "corpus"))]
    specs += [f"trace:{tmp_path / name}" for name in ("x.jsonl", "y.jsonl")]
    names = "abxyvw"
    classes = [_class(name, 1 / 6, spec) for name, spec in zip(names, specs, strict=True)]
    found = Workload(tuple(classes)).demand(Constant(30), 4.0, 0)
    prompts = Prompts(found, Words())
    asked = [prompts.ask(number) for number in range(len(found))]
    owners: dict[int, set[str | None]] = {}
    for ask in asked:
        if ask.session_id is not None:
            owners.setdefault(ask.session_id, set()).add(ask.workload_class)
    assert {len(each) for each in owners.values()} == {1}
    assert {ask.text for ask in asked if ask.workload_class == "y"} == {"say y"}
    assert {ask.tenant for ask in asked if ask.workload_class == "w"} == {"y0", "y1"}
    assert {ask.tenant for ask in asked if ask.workload_class == "a"} == {None}


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(SpecError, match="add up to 0.9"):
        Workload((_class("a", 0.5, "synthetic"), _class("b", 0.4, "synthetic")))


def test_too_long_conversations_are_refused_before_memory_is_gone() -> None:
    with pytest.raises(SpecError, match="too much"):
        Sessions(turns=Fixed(1_000_000)).demand(np.zeros(10), 1.0, np.random.default_rng(0))


@pytest.mark.parametrize(
    "spec", ["synthetic:prompt=99999999999", "synthetic:output=2e7", "sessions:prompt=uniform(1,1e9)"]
)
def test_a_length_that_is_surely_mistyped_is_refused_before_memory_is_gone(spec: str) -> None:
    with pytest.raises(SpecError, match="is too long; at most 10,000,000 tokens are possible"):
        demand(spec, 1.0, 2.0)


def test_a_source_is_read_back_from_its_text() -> None:
    for each in (Synthetic(Uniform(1, 9), Fixed(3), 4, Fixed(7), 0.5, 1.5), Sessions(Fixed(2), Fixed(1.5))):
        assert read_source(str(each)) == each


def test_unknown_sources_are_named() -> None:
    with pytest.raises(SpecError, match="did you mean 'sessions'"):
        read_source("session:turns=3")


def test_what_was_answered_counts_as_known() -> None:
    """The second prompt is a question of 10 tokens and its answer of 20, both known, and a new question of 10."""
    found = demand("sessions:turns=2,think=1s,prompt=10,output=20", rate=1.0, seconds=3.0)
    known = known_tokens(found)
    assert set(known[found.turn == 0]) == {0}
    assert set(known[found.turn == 1]) == {30}


def test_a_conversation_that_is_over_is_forgotten() -> None:
    found = demand("sessions:turns=2,think=1s,prompt=4,output=5", rate=1.0, seconds=1.0)
    prompts = Prompts(found, Words(1))
    first = prompts.ask(0)
    prompts.over(0)
    prompts.answered(0, "nobody repeats this")
    assert "nobody repeats this" not in prompts.ask(1).text
    assert first.messages[0] in prompts.ask(1).messages  # made anew, as it would have been


def test_conversations_begin_with_one_of_several_system_prompts() -> None:
    found = Sessions(turns=Fixed(3), system=100, systems=4).demand(np.arange(200.0), 0.0, np.random.default_rng(1))
    first = found.pieces.identity[found.pieces.starts[:-1]]
    assert set(first) == {0, 1, 2, 3}
    assert found.session is not None
    for each in range(200):
        assert len(set(first[found.session == each])) == 1  # the same in all its turns
    others = np.delete(found.pieces.identity, found.pieces.starts[:-1])
    assert others.min() == 4  # what is said is nobody's system prompt
    assert known_tokens(found).sum() > 0


def test_seconds_without_requests_count_in_the_dispersion() -> None:
    found = Workload.of(read_source("synthetic")).demand(read_arrivals("piecewise:30@0s,0@1s"), 60.0, 0)
    told, count = describe(found, 60.0), len(found)
    assert told.busiest_second == count
    assert told.dispersion == pytest.approx(count * 59 / 60)
