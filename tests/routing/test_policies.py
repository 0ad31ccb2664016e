"""Whom each policy chooses: cases worked out by hand, and for any rows the same compiled and as Python."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openloop.arrays import records
from openloop.errors import SpecError
from openloop.routing import ASK, NOBODY, ROUTING, VIEW, Policy, read_routing, start_memory

SOME = [
    *(name for name in ROUTING if name != "own"),
    "dynamo:temperature=0.5",
    "kv-aware:most=full,fallback=shed",
    "prefix-aware:most=3,lead=2",
    "random:lead=1",
    "slo-aware:token=1ms,fallback=least",
    "pools:fallback=stay",
]


def ask(prompt: int = 1000, deadline: float = np.inf, session: int = -1) -> Any:
    found = records(ASK, 1)
    found[0] = (0, session, prompt, 100, -1, deadline)
    return found


def views(count: int = 4, **columns: Any) -> Any:
    found = records(VIEW, count)
    found.open = 1
    for name, values in columns.items():
        found[name] = values
    return found


def chosen(policy: str | Policy, seen: Any, asked: Any = None, memory: Any = None, now: float = 0.0) -> int:
    """By compiled code and by Python, which agree, also in what they remember."""
    found = read_routing(policy) if isinstance(policy, str) else policy
    asked, memory = ask() if asked is None else asked, start_memory(1) if memory is None else memory
    other = memory.copy()
    place = int(found.choose(asked, seen, memory, found.knobs(), now))
    assert int(found.caller()(asked, seen, other, found.knobs(), now)) == place
    assert np.array_equal(memory, other)
    return place


def test_in_turn_among_the_open_ones() -> None:
    memory, seen = start_memory(0), views(open=[1, 0, 1, 1])
    assert [chosen("round-robin", seen, memory=memory) for _ in range(5)] == [0, 2, 3, 0, 2]


def test_by_chance_everybody_as_often() -> None:
    memory, seen = start_memory(3), views(open=[1, 1, 0, 1])
    found = [chosen("random", seen, memory=memory) for _ in range(600)]
    counts = np.bincount(found, minlength=4)
    assert counts[2] == 0
    assert np.all(np.abs(counts[[0, 1, 3]] - 200) < 50)  # over four sigmas


def test_of_two_by_chance_the_less_busy() -> None:
    """With requests 0, 1, 2, 3 the one with 3 is never chosen, and the idle one by half of the pairs."""
    memory, seen = start_memory(3), views(requests=[0, 1, 2, 3])
    counts = np.bincount([chosen("power-of-two", seen, memory=memory) for _ in range(600)], minlength=4)
    assert counts[3] == 0
    assert np.all(np.abs(counts[:3] - [300, 200, 100]) < 55)


def test_by_load() -> None:
    seen = views(requests=[3, 1, 1, 0], tokens=[10, 400, 5, 900], open=[1, 1, 1, 0])
    assert chosen("least-requests", seen) == 1
    assert chosen("least-tokens", seen) == 2


def test_the_longest_known_beginning_and_of_equals_the_less_busy() -> None:
    seen = views(cached=[0, 640, 640, 320], requests=[0, 5, 4, 0])
    assert chosen("prefix-aware", seen) == 2
    assert chosen("prefix-aware:first=320", seen) == 3  # all that have 320 tokens of it are equals
    assert chosen("prefix-aware", views(requests=[2, 1, 1, 1], known=[0, 9, 3, 5])) == 2  # nobody has any of it


def test_a_saturated_favourite_is_left_for_the_least_busy() -> None:
    seen = views(cached=[640, 0, 0, 0], requests=[10, 3, 2, 4], capacity=10)
    assert chosen("prefix-aware:lead=9", seen) == 0
    assert chosen("prefix-aware:lead=8", seen) == 2
    assert chosen("prefix-aware:lead=8,fallback=stay", seen) == 0
    assert chosen("prefix-aware:lead=8,fallback=shed", seen) == NOBODY
    assert chosen("prefix-aware:lead=never,most=full", seen) == 2
    assert chosen("prefix-aware:lead=never,most=11", seen) == 0
    assert chosen("least-requests:most=2,fallback=shed", seen) == NOBODY


def test_where_the_fewest_tokens_are_to_be_computed() -> None:
    """1000 - 800 + 500, 1000 + 0, 1000 - 400 + 90, and 1000 - 1000 + 0 behind 6 requests of 100 each."""
    seen = views(cached=[800, 0, 400, 999], prefill=[500, 0, 90, 0], requests=[0, 0, 0, 7])
    assert chosen("kv-aware", seen) == 2
    assert chosen("kv-aware:load=0", seen) == 3


def test_a_session_stays_at_home() -> None:
    seen = views(home=[0, 0, 1, 0], requests=[0, 0, 7, 0])
    assert chosen("sticky", seen) == 2
    assert chosen("sticky:lead=7", seen) == 0
    assert chosen("sticky", views(home=[0, 0, 1, 0], open=[1, 1, 0, 1], requests=[2, 1, 0, 1])) == 1


def test_long_prompts_have_their_own_replicas() -> None:
    seen = views(requests=[5, 4, 3, 1])
    assert chosen("pools:split=1000", seen) == 1
    assert chosen("pools:split=999", seen) == 3
    assert chosen("pools:split=999,share=75%", views(requests=[0, 0, 0, 5])) == 3
    assert chosen("pools:split=999", views(open=[1, 1, 0, 0], requests=[2, 1, 0, 0])) == 1  # its pool is gone


def test_where_the_deadline_holds_or_nowhere() -> None:
    """At 1 ms a token: 0.5 + 1.0, 0 + 0.9, and 0.2 s for each of 4 that wait, + 0.1."""
    seen = views(3, prefill=[500, 0, 100], cached=[0, 100, 900], waiting=[0, 0, 4], gap=[0, 0, 0.2], pace=0.001)
    assert chosen("slo-aware:margin=100%", seen, ask(deadline=10.0), now=9.05) == 1
    assert chosen("slo-aware:margin=100%", seen, ask(deadline=10.0), now=9.15) == NOBODY
    assert chosen("slo-aware:fallback=least", seen, ask(deadline=10.0), now=9.15) == 1
    assert chosen("slo-aware:margin=50%", seen, ask(deadline=10.0), now=8.15) == 1
    assert chosen("slo-aware:margin=50%", seen, ask(deadline=10.0), now=8.25) == NOBODY
    seen.pace = 0.0  # nobody says: by the parameter
    assert chosen("slo-aware:token=2ms", seen, ask(deadline=1.5)) == 2  # 0.8 + 0.2, of 70% of the time
    assert chosen("slo-aware:token=2ms", seen, ask(deadline=1.4)) == NOBODY


def test_the_sglang_router_decides_so() -> None:
    """cache_aware of sglang-router 0.3.2: unbalanced if max - min > 64 and max > 1.5 min, then the shortest queue;
    otherwise the highest match, if over 0.3 of the prompt, else the shortest queue. Its comments still say the
    smallest tree, which it took before."""
    holds = {"cached": [0, 301, 0], "known": [50, 900, 20]}
    assert chosen("sglang", views(3, sent=[10, 74, 12], **holds)) == 1  # 64 apart is not more than 64
    assert chosen("sglang", views(3, sent=[10, 75, 12], **holds)) == 0
    assert chosen("sglang", views(3, sent=[140, 205, 150], **holds)) == 1  # 65 apart, but not 1.5 times
    assert chosen("sglang", views(3, sent=[12, 20, 10], cached=[0, 300, 0], known=[5, 900, 20])) == 2
    assert chosen("sglang:match=20%", views(3, cached=[0, 300, 0], known=[50, 900, 20])) == 1
    assert chosen("sglang", views(3, sent=[10, 70, 0], open=[1, 1, 0], **holds)) == 0  # who is down counts as idle


def test_llm_d_decides_so() -> None:
    """Default profile of llm-d 0.8: queue-scorer 2, kv-cache-utilization-scorer 2, prefix-cache-scorer 3, the highest.
    Here 2 * 0 + 2 * 0.9 + 3 * 1 = 4.8, 2 * 1 + 2 * 0.5 + 0 = 3, 2 * 0.5 + 2 * 1 + 3 * 0.5 = 4.5."""
    seen = views(3, waiting=[8, 0, 4], used=[100, 500, 0], memory=1000, cached=[1000, 0, 500])
    assert chosen("llm-d", seen) == 0
    assert chosen("llm-d:prefix=2", seen) == 2  # 3.8, 3, 4
    assert chosen("llm-d:prefix=0,free=0", seen) == 1
    counts = np.bincount([chosen("llm-d", views(3, memory=10), memory=start_memory(seed)) for seed in range(300)])
    assert np.all(np.abs(counts - 100) < 40)  # equals


def test_dynamo_decides_so() -> None:
    """The picture in Dynamo's documentation: of ten blocks 2, 5 and 8 are cached, 10, 5 and 9 are in use: the costs are
    8 + 10, 5 + 5 and 2 + 9, so the second."""
    seen = views(3, cached=[32, 80, 128], sent_tokens=[160, 80, 144])
    assert chosen("dynamo", seen, ask(160)) == 1
    assert chosen("dynamo:weight=2", seen, ask(160)) == 2  # 26, 15, 13
    seen.sent_prefill = [0, 32, 0]
    assert chosen("dynamo", seen, ask(160)) == 2  # 18, 12, 11
    memory = start_memory(5)
    counts = np.bincount([chosen("dynamo:temperature=1", seen, ask(160), memory) for _ in range(900)])
    shares = np.exp(-np.array([1, 1 / 7, 0]))
    assert np.all(np.abs(counts - 900 * shares / shares.sum()) < 60)
    assert chosen("dynamo", views(3, known=[64, 32, 96])) == 1  # equals: the smallest tree,
    counts = np.bincount([chosen("dynamo", views(3), memory=start_memory(seed)) for seed in range(300)])
    assert np.all(np.abs(counts - 100) < 40)  # and then by chance


cells = st.integers(0, 40)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SOME), st.integers(1, 6), st.integers(1, 4000), st.integers(0, 99), st.data())
def test_alike_compiled_and_as_python_and_never_a_closed_one(
    policy: str, count: int, prompt: int, seed: int, data: st.DataObject
) -> None:
    columns = {
        name: data.draw(st.lists(cells, min_size=count, max_size=count))
        for name in ("requests", "waiting", "prefill", "tokens", "used", "sent", "sent_prefill", "sent_tokens", "known")
    }
    seen = views(count, **columns, capacity=20, memory=100, pace=1e-4)
    seen.open = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    seen.home = np.arange(count) == seed % count
    seen.cached = np.minimum(seen.known * 64, prompt)
    memory = start_memory(seed)
    for _ in range(3):
        place = chosen(policy, seen, ask(prompt, deadline=0.1), memory)
        assert place == NOBODY or seen[place].open
    if not seen.open.any():
        assert place == NOBODY


@pytest.mark.parametrize("text", SOME)
def test_a_policy_reads_as_it_is_written(text: str) -> None:
    found = read_routing(text)
    assert read_routing(str(found)) == found
    assert found.knobs().dtype == np.float64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prefix-awar", "unknown routing policy 'prefix-awar'; did you mean 'prefix-aware'"),
        ("sticky:lead=-1", "-1"),
        ("sticky:fallback=panic", "'panic' is no fallback; write one of least, stay, shed"),
        ("own:nowhere.py:choose", "cannot be loaded"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_a_sentence(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_routing(text).note  # noqa: B018
