"""Terms of a step that some engines need, held against sums by hand."""

import numpy as np
import pytest

from openloop.arrivals import read_arrivals
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source


def gaps(fleet: dict[str, object], prompt: int, output: int) -> tuple[float, np.ndarray]:
    """Of a request that is alone: until the first token, and between tokens; seconds."""
    load = Workload.of(read_source(f"synthetic:prompt={prompt},output={output}"))
    run = simulate_fleet(read_fleet(fleet), load, read_arrivals("constant:rate=1"), 1.0, 0)
    row = run.head(1)[0]
    return (row["event_ns"][0] - row["sent_ns"]) / 1e9, np.diff(row["event_ns"]) / 1e9


def test_a_fixed_cost_is_added_and_packed_attention_is_with_all_of_memory() -> None:
    step = {"fixed": "2ms", "floor": "1ms", "token": "10us", "packed": "100ns"}
    first, each = gaps({"step": step}, 200, 5)
    assert first == pytest.approx(2e-3 + 2e-3 + 100e-9 * 200 * 200)
    assert each == pytest.approx([3e-3 + 100e-9 * (200 + n) for n in range(4)], abs=2e-9)


def test_padded_memory_is_read_in_multiples() -> None:
    step = {"floor": "1ms", "token": "0s", "context": "1us"}
    first, each = gaps({"step": step, "padding": 100}, 195, 15)
    assert first == pytest.approx(1e-3 + 200e-6)
    assert each == pytest.approx([1e-3 + (200e-6 if 195 + n <= 200 else 300e-6) for n in range(14)], abs=2e-9)


def test_overhead_delays_every_token_and_varies_with_the_seed() -> None:
    step = {"floor": "1ms", "token": "0s"}
    plain, late = (gaps({"step": step, **more}, 10, 4)[0] for more in ({}, {"overhead": "7ms"}))
    assert late - plain == pytest.approx(7e-3)
    load, arrivals = Workload.of(read_source("synthetic:prompt=10,output=2")), read_arrivals("constant:rate=50")
    fleet = read_fleet({"step": step, "overhead": "lognormal(median=10ms,sigma=0.5)"})
    rows = simulate_fleet(fleet, load, arrivals, 20.0, 3).head(2000)
    waits = np.array([row["event_ns"][0] - row["sent_ns"] for row in rows]) / 1e9 - 1e-3
    assert np.median(waits) == pytest.approx(10e-3, rel=0.1)
    assert np.std(np.log(waits)) == pytest.approx(0.5, rel=0.1)
