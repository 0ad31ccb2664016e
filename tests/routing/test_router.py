"""The index against a plain dictionary; the router's counts; a log of decisions replays, compiled and as Python."""

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openloop.arrays import records
from openloop.errors import OpenloopError
from openloop.routing import (
    ROUTING,
    VIEW,
    Router,
    find,
    find_home,
    forget,
    learn,
    learn_home,
    look,
    make_index,
    prefix_names,
    read_routing,
    replay,
)
from openloop.routing.index import unlearn

deeds = st.tuples(
    st.sampled_from(["learn", "learn", "learn", "unlearn", "forget", "home"]),
    st.lists(st.integers(0, 25).map(lambda n: n * 8), max_size=6, unique=True),  # many in one bucket
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(deeds, max_size=40), st.lists(st.integers(0, 25).map(lambda n: n * 8), max_size=6, unique=True))
def test_the_index_is_a_dictionary_that_forgets_the_least_recently_used(did: Any, asked: list[int]) -> None:
    index, held = make_index(3, 8)
    model: OrderedDict[int, set[int]] = OrderedDict()
    for what, names, place in did:
        if what == "learn":
            learn(index, held, np.array(names, np.int64), place)
            for name in reversed(names):
                model.setdefault(name, set()).add(place)
                model.move_to_end(name)
                if len(model) > 8:
                    model.popitem(last=False)
        elif what == "home":
            for session in names[:1]:
                learn_home(index, held, session, place)
                model[-1 - session] = {place}
                model.move_to_end(-1 - session)
                if len(model) > 8:
                    model.popitem(last=False)
        elif what == "unlearn":
            unlearn(index, held, np.array(names, np.int64), place)
            for name in names:
                model.get(name, set()).discard(place)
        else:
            forget(held, place)
            for who in model.values():
                who.discard(place)
    for name in range(0, 208, 8):
        entry, home = find(index, name), find_home(index, name)
        assert (set(np.flatnonzero(held[entry])) if entry else set()) == model.get(name, set())
        assert (set(np.flatnonzero(held[home])) if home else set()) == model.get(-1 - name, set())
    views = records(VIEW, 3)
    look(index, held, np.array(asked, np.int64), views, 64)
    for place in range(3):
        depth = next((n for n, name in enumerate(asked) if place not in model.get(name, set())), len(asked))
        assert views[place].cached == 64 * depth
        assert views[place].known == 64 * sum(place in who for name, who in model.items() if name >= 0)


def test_names_of_a_prompt_are_those_of_its_beginnings() -> None:
    text = "a conversation " * 100
    assert prefix_names(text)[:3] == prefix_names(text[:800])
    assert len(prefix_names(text)) == len(text) // 256
    assert prefix_names("b" + text)[0] != prefix_names(text)[0]
    assert prefix_names("short") == []


def test_what_was_sent_is_counted_until_it_is_over() -> None:
    router = Router("prefix-aware", 2)
    names = prefix_names("x" * 1024)
    first = router.route(0.0, 300, output=10, names=names)
    again = router.route(1.0, 300, names=names)
    assert first is not None
    assert again is not None
    assert first.place == again.place  # 4 names of 64 tokens are there
    view = router.views[first.place]
    assert (view["sent"], view["sent_prefill"], view["sent_tokens"]) == (2, 300 + 300 - 256, 610)
    assert view["requests"] == 2
    router.answered(first.number, 2.0)
    assert (view["sent_prefill"], round(float(view["pace"]), 6)) == (44, round(2.0 / 300, 6))
    router.ended(first.number)
    router.ended(first.number)  # twice is once
    router.ended(again.number)
    assert (view["sent"], view["sent_prefill"], view["sent_tokens"]) == (0, 0, 0)
    router.forget(first.place)
    router.route(3.0, 300, names=names)
    assert router.views["cached"].tolist() == [0, 0]


def test_a_report_is_believed_and_ages() -> None:
    router = Router("least-requests", 3)
    router.report(0, 1.0, requests=5, waiting=2, capacity=8)
    assert [router.route(4.0, 10).place for _ in range(4)] == [1, 2, 1, 2]  # type: ignore[union-attr]
    assert router.views["age"].tolist() == [3.0, 0.0, 0.0]
    assert router.views["requests"].tolist() == [5, 2, 2]
    assert router.views["tokens"].tolist() == [0, 20, 20]
    router.report(1, 5.0, requests=0)
    router.route(6.0, 10)
    assert router.views["requests"].tolist() == [5, 0, 2]  # as it said,
    assert router.views["tokens"].tolist() == [0, 30, 20]  # but of what it does not say, what was sent
    with pytest.raises(OpenloopError, match="'queue'"):
        router.report(0, 1.0, queue=5)


def test_a_closed_one_and_who_has_a_copy_are_left_out() -> None:
    router = Router("sticky", 3)
    home = router.route(0.0, 10, session="a")
    assert home is not None
    copy = router.route(0.0, 10, session="b", avoid=home.place)
    assert copy is not None
    assert copy.place != home.place
    router.set_open(home.place, False)
    moved = router.route(1.0, 10, session="a")
    assert moved is not None
    assert moved.place != home.place
    router.set_open(home.place, True)
    assert router.route(2.0, 10, session="a").place == moved.place  # type: ignore[union-attr]  # it has moved for good
    for place in range(3):
        router.set_open(place, False)
    assert router.route(2.0, 10) is None


def test_what_caches_say_is_known_by_name() -> None:
    router = Router("kv-aware:load=0", 2)
    names = prefix_names("y" * 2048)
    router.cache_event(1, stored=names)
    assert router.route(0.0, 600, names=names).place == 1  # type: ignore[union-attr]
    router.cache_event(1, removed=names)
    assert router.route(0.0, 600, names=names).place == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", [name for name in ROUTING if name != "own"])
def test_a_log_replays_with_the_same_choices(policy: str, tmp_path: Path) -> None:
    log, draws = io.BytesIO(), np.random.default_rng(1)
    router = Router(policy, 4, seed=7, log=log, capacity=6)
    under_way = []
    for number in range(120):
        now = 0.1 * number
        router.set_open(int(draws.integers(4)), bool(draws.random() < 0.8))
        router.report(3, now, waiting=int(draws.integers(9)), requests=int(draws.integers(9)), used=5, memory=10)
        text = f"{draws.integers(3)}" * int(draws.integers(100, 3000))
        found = router.route(now, len(text) // 4, session=f"user {number % 5}", deadline=now + 0.3,
                             names=prefix_names(text), avoid=number % 4 if number % 7 == 0 else None)  # fmt: skip
        under_way += [found.number] if found else []
        if number % 11 == 0:
            router.cache_event(1, prefix_names(text), prefix_names("1" * 800))
        if number % 29 == 0:
            router.forget(number % 4)
        if number % 3 == 0 and under_way:
            router.answered(under_way[0], now)
            router.ended(under_way.pop(0))
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(log.getvalue() + b'{"now": 1.0, "as')  # killed while it wrote
    for python in (False, True):
        again = replay(path, python=python)
        assert (again.policy, again.decisions, again.elsewhere) == (str(read_routing(policy)), 120, [])
    other = "least-requests" if policy == "round-robin" else "round-robin"
    assert len(replay(path, other).elsewhere) > 10


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = io.BytesIO()
    Router("random", 2, log=log)
    broken = log.getvalue().decode() + '{"now": 1.0, "ask": [1], "views": [], "memory": [[], []], "place": 0}\n'
    headless = log.getvalue().replace(b'"seed"', b'"sead"').decode()
    texts = {
        headless: "no log of decisions",
        "": "no log of decisions",
        "{}\n": "no log of decisions",
        "what?\n": "no log of decisions",
        broken: "line 2",
    }
    for text, told in texts.items():
        path.write_text(text)
        with pytest.raises(OpenloopError, match=told):
            replay(path)
