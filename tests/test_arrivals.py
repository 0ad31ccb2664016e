"""Arrival processes keep their names' promises: rate, variation, order, and the same schedule for the same seed."""

from pathlib import Path

import numpy as np
import pytest

from openloop.arrivals import ARRIVALS, Arrivals, Piecewise, RateStep, Recording, Replay, read_arrivals
from openloop.errors import SpecError
from openloop.seeds import stream
from openloop.sim import simulate

HORIZON_S = 50.0

EXAMPLES = {
    "constant": ["constant:rate=12.5", "constant:rate=0.3"],
    "poisson": ["poisson:rate=12", "poisson:rate=0.5"],
    "gamma": ["gamma:rate=12,cv=2", "gamma:rate=12,cv=0.3", "gamma:rate=3,cv=5"],
    "weibull": ["weibull:rate=12,shape=0.6", "weibull:rate=12,shape=3"],
    "onoff": ["onoff:high=40,on=2s,off=3s", "onoff:high=40,on=500ms,off=4s,low=5"],
    "ramp": ["ramp:start=2,end=30", "ramp:start=30,end=0,over=20s", "ramp:start=1,end=9,over=90s"],
    "piecewise": ["piecewise:5@0s,50@20s,5@25s", "piecewise:0@0s,20@10s,7@200s"],
    "sine": ["sine:rate=12,swing=0.8,period=20s", "sine:rate=12,swing=1,period=300s,shift=70s"],
}
TEXTS = [text for texts in EXAMPLES.values() for text in texts]


@pytest.fixture(params=[*TEXTS, "replay"])
def process(request: pytest.FixtureRequest) -> Arrivals:
    if request.param == "replay":
        return Replay(Recording("given", np.sort(np.random.default_rng(3).uniform(0, 120, 1000))), speed=2.0)
    return read_arrivals(request.param)


def test_every_process_has_an_example() -> None:
    assert {*EXAMPLES, "replay"} == set(ARRIVALS)


def test_times_are_sorted_and_inside_the_horizon(process: Arrivals) -> None:
    times = process.times(HORIZON_S, np.random.default_rng(0))
    assert len(times) > 10
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < HORIZON_S


def test_the_same_generator_gives_the_same_times(process: Arrivals) -> None:
    first, again = (process.times(HORIZON_S, np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(first, again)


def test_the_mean_number_is_as_promised(process: Arrivals) -> None:
    """Over 400 schedules, within four standard errors (or the rounding of a constant spacing)."""
    counts = np.array([len(process.times(HORIZON_S, np.random.default_rng(seed))) for seed in range(400)])
    error = counts.std() / 20
    assert abs(counts.mean() - process.expected(HORIZON_S)) <= max(4 * error, 1.0 if error == 0 else 0.0)


def test_arrivals_are_as_many_at_the_start_as_later() -> None:
    """A process that started with a whole gap would be short of arrivals, or of gaps, at first."""
    texts = [text for name in ("poisson", "gamma", "weibull", "onoff") for text in EXAMPLES[name]]
    for process in map(read_arrivals, texts):
        counts = np.array([len(process.times(0.25, np.random.default_rng(seed))) for seed in range(4000)])
        assert abs(counts.mean() - process.expected(0.25)) <= 4 * counts.std() / np.sqrt(4000)


@pytest.mark.parametrize("text", [text for text in TEXTS if read_arrivals(text).cv is not None])
def test_gaps_vary_as_promised(text: str) -> None:
    """Within 3% over a long schedule: heavy clipping, as some tools do, would show as 12%."""
    process = read_arrivals(text)
    assert process.cv is not None
    gaps = np.diff(process.times(60_000.0, np.random.default_rng(2)))
    assert gaps.std() / gaps.mean() == pytest.approx(process.cv, rel=0.03, abs=1e-9)


@pytest.mark.parametrize("text", EXAMPLES["onoff"])
def test_bursts_vary_in_number_as_promised(text: str) -> None:
    process = read_arrivals(text)
    promised = process.dispersion(HORIZON_S)
    counts = np.array([len(process.times(HORIZON_S, np.random.default_rng(seed))) for seed in range(2000)])
    assert promised is not None
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(promised, rel=4 * np.sqrt(2 / 2000))


def test_thinning_follows_the_rate() -> None:
    process = Piecewise((RateStep(5, 0.0), RateStep(50, 20.0), RateStep(0, 25.0), RateStep(10, 30.0)))
    counts = np.zeros(5)
    for seed in range(200):
        counts += np.histogram(process.times(50.0, np.random.default_rng(seed)), [0, 20, 25, 30, 40, 50])[0]
    expected = 200 * np.array([100, 250, 0, 100, 100])
    assert (abs(counts - expected) <= 4 * np.sqrt(expected)).all()


def test_a_swinging_rate_is_high_in_the_first_half_of_its_period() -> None:
    process = read_arrivals("sine:rate=20,swing=0.9,period=50s")
    times = np.concatenate([process.times(50.0, np.random.default_rng(seed)) for seed in range(50)])
    upper = 50 * (20 * 25 + 0.9 * 20 * 50 / np.pi)
    assert abs(np.sum(times < 25) - upper) <= 4 * np.sqrt(upper)


def test_purposes_have_streams_of_their_own() -> None:
    draws = [stream(seed, purpose).random() for seed in (1, 2) for purpose in ("arrivals", "service")]
    assert len(set(draws)) == 4
    assert stream(1, "arrivals").random() == draws[0]


def test_a_recording_is_replayed_faster(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("10.0\n12\n11\n30\n")
    process = read_arrivals(f"replay:{tmp_path / 'times.txt'},speed=2")
    assert process.times(5.0, np.random.default_rng(0)).tolist() == [0.0, 0.5, 1.0]
    assert process.expected(5.0) == 3
    assert process.times(100.0, np.random.default_rng(0)).tolist() == [0.0, 0.5, 1.0, 10.0]


def test_a_recording_whose_name_has_commas_or_parentheses_stands_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "monday, 9h (eu).txt"
    path.write_text("0\n1\n3\n")
    process = read_arrivals(f"replay:'{path}',speed=2")
    assert process.times(10.0, np.random.default_rng(0)).tolist() == [0.0, 0.5, 1.5]
    assert read_arrivals(str(process)) == process


def test_a_run_is_replayed(tmp_path: Path) -> None:
    run = simulate("hedged:service=exponential(10ms),after=p50", "poisson:rate=50", 10.0)
    run.save(tmp_path / "run")
    again = read_arrivals(f"replay:{tmp_path / 'run'}").times(20.0, np.random.default_rng(0))
    due = read_arrivals("poisson:rate=50").times(10.0, stream(0, "arrivals"))
    assert len(again) == len(due)
    assert np.allclose(again, due - due[0], atol=2e-9)


@pytest.mark.parametrize(
    "text",
    ["onoff:high=100,on=1us,off=1us", "ramp:start=1e9,end=0,over=1ms", "piecewise:1e9@0s,0@1us", "poisson:rate=1e9"],
)
def test_more_than_memory_holds_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="are too many for one run; at most 20,000,000 are"):
        read_arrivals(text).times(100.0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "holds no times"), ("1.0\nlater\n", "entry 2, 'later', is not a time in seconds"), ("nan", "entry 1")],
)
def test_a_recording_that_is_none_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "times.txt").write_text(text)
    with pytest.raises(SpecError, match=sentence):
        read_arrivals(f"replay:{tmp_path / 'times.txt'}")


def test_a_ramp_beyond_the_horizon_counts_as_far_as_it_goes() -> None:
    steep = read_arrivals("ramp:start=0,end=1e6,over=1h")
    found = steep.times(10.0, np.random.default_rng(0))
    assert len(found) == pytest.approx(steep.expected(10.0), rel=0.05)
    assert len(read_arrivals("ramp:start=0,end=1e6,over=1000h").times(60.0, np.random.default_rng(0))) > 0
