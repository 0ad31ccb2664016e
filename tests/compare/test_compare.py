"""Which of two, by how much, how sure."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import openloop as ol
from openloop.compare import read_regression_gate
from openloop.compare.decide import _three
from openloop.errors import RunError, SpecError
from openloop.records import Prices, Run
from openloop.report.page import Table
from openloop.report.read import read_comparison
from openloop.score.judged import judge_run
from openloop.sim import simulate
from openloop.slo import read_slo
from tests.frontier.test_sweep import ASKED, FLEET
from tests.reports import write_frontier
from tests.runs import row, run_of, write_run

SLO = "e2e<=150ms"


def queue(service_ms: float = 20.0, rate: float = 36.0, seconds: float = 120.0, seed: int = 0, **facts: Any) -> Run:
    facts = {"slo": SLO, **facts}
    return simulate(f"fcfs:service=exponential({service_ms}ms)", f"poisson:rate={rate}", seconds, seed, **facts)


def truth(service_ms: float, rate: float = 36.0) -> float:
    """P(stay <= 150 ms) in M/M/1."""
    return float(1 - np.exp(-(1000 / service_ms - rate) * 0.15))


def test_a_change_is_what_theory_says_and_pairs_are_sharper() -> None:
    expected = truth(22.0) / truth(20.0) - 1
    own = ol.compare(queue(seed=1, seconds=2000.0), queue(22.0, seed=2, seconds=2000.0))
    same = ol.compare(queue(seed=1, seconds=2000.0), queue(22.0, seed=1, seconds=2000.0))
    for found, paired in ((own, False), (same, True)):
        change = found.changes["goodput"]
        assert found.paired is paired
        assert change.interval is not None
        assert change.interval[0] <= expected <= change.interval[1]
        assert found.winner == "A"
        assert found.sentence.startswith("A, by ")
    assert (same.changes["goodput"].half or 1) < 0.8 * (own.changes["goodput"].half or 0)
    assert same.changes["throughput"].change == 0.0


def test_who_is_better_depends_on_the_metric_and_order_does_not_matter() -> None:
    fast, slow = queue(rate=20.0, seconds=900.0), queue(24.0, rate=20.0, seconds=900.0)
    found, turned = ol.compare(fast, slow), ol.compare(slow, fast)
    assert found.changes["e2e_p99"].winner == "A"
    assert turned.winner == "B"
    assert turned.changes["goodput"].change == pytest.approx(1 / (1 + (found.changes["goodput"].change or 0)) - 1)


@pytest.mark.parametrize(
    ("run", "free"), [({"rate": 45.0, "seconds": 60.0}, 2), ({"rate": 10.0, "seconds": 2000.0}, 3)]
)
def test_a_percentile_has_no_more_degrees_of_freedom_than_busy_stretches(run: dict[str, float], free: int) -> None:
    """Two-sided over one-sided margins tell how many it was given: 3 at least where there are many stretches."""
    found = ol.compare(queue(seed=1, **run), queue(seed=2, **run)).changes["e2e_p99"]
    assert found.interval is not None
    ends = [np.log1p(each or 0.0) for each in (found.interval[1], found.at_most, found.change)]
    ratio = (ends[0] - ends[2]) / (ends[1] - ends[2])
    assert (ratio == pytest.approx(4.303 / 2.920, rel=1e-3)) == (free == 2)
    assert ratio < 1.48


@pytest.mark.parametrize(("accepted", "winner"), [(0, None), (3, None), (300, "B")])
def test_a_handful_against_nothing_shows_nothing_and_hundreds_do(accepted: int, winner: str | None) -> None:
    """Where no request of one is accepted its blocks do not vary, and yet it could as well have been one or two."""
    run = queue()
    stays = np.sort(judge_run(run, read_slo(SLO)).whole.answers.e2e_s)
    slo = f"e2e<={1e6 * (stays[accepted - 1] + stays[accepted]) / 2 if accepted else 1e-3:.6f}us"
    found = ol.compare(queue(1e6), run, slo=slo).changes["goodput"]
    assert round(found.b * 120) == accepted
    assert found.a == 0
    assert (found.interval is None) == (not accepted)
    assert found.winner == winner


def test_throughput_and_goodput_may_have_different_winners() -> None:
    """A is offered more, completes more, and is late with it."""
    found = ol.compare(queue(rate=48.0, seconds=600.0), queue(rate=36.0, seconds=600.0))
    assert found.winner == "B"
    assert found.winner_by_throughput == "A"
    assert found.sentence.endswith("A wins only on raw throughput")
    assert any("not the same workload: offered rps" in each for each in found.warnings)


def test_several_times_as_much_is_a_factor() -> None:
    few = [row(i, i / 20, (0.1 if i % 40 == 0 else 0.9,)) for i in range(4000)]
    many = [row(i, i / 20, (0.1,)) for i in range(4000)]
    more, less = (run_of(rows, slo="ttft<=500ms") for rows in (many, few))
    for winner, found in zip("AB", (ol.compare(more, less), ol.compare(less, more)), strict=True):
        assert found.sentence.startswith(f"{winner}, by a factor of 40 [")
        assert "e+" not in found.sentence


@pytest.mark.parametrize(
    ("value", "text"), [(999.4, "999"), (999.5, "1,000"), (-999.5, "-1,000"), (1234.5, "1,234"), (0.01234, "0.0123")]
)
def test_three_figures_have_no_exponent(value: float, text: str) -> None:
    assert _three(value) == text


def test_no_difference_says_how_long_it_would_take() -> None:
    found = ol.compare(queue(seed=1, seconds=30.0), queue(seed=2, seconds=30.0))
    assert found.winner is None
    assert found.sentence.startswith("no difference shown in goodput")
    assert found.more_minutes is not None
    longer = ol.compare(queue(seed=1, seconds=3000.0), queue(seed=2, seconds=3000.0))
    assert longer.changes["goodput"].half is not None
    needed_s = found.more_minutes * 60 + 30
    reached = longer.changes["goodput"].half * np.sqrt(3000.0 / needed_s)  # what that time would bring
    assert reached == pytest.approx(np.log1p(0.05) * 1.96 / 2.8, rel=0.8)


def test_every_difference_in_the_manifests_is_named() -> None:
    found = ol.compare(queue(model="a", prices=Prices(per_hour=1.0)), queue(model="b", seconds=60.0, workload="other"))
    told = " ".join(found.warnings)
    for what in (
        "model: a and b",
        "prices: per_hour 1.0",
        "and not recorded",
        "different times: 120 s and 60 s",
        "not the same workload: workload",
    ):
        assert what in told
    assert not ol.compare(queue(seed=1), queue(seed=2)).warnings
    drawn = [queue(seed=seed, workload="w", lengths=f"prompt {seed}0 tokens; words of 2") for seed in (1, 2)]
    assert not ol.compare(drawn[0], drawn[1]).warnings  # by chance
    changed = queue(seed=1, workload="w", lengths="prompt 20 tokens; words of 2")
    assert "lengths: prompt 10 tokens; words of 2 and prompt 20" in " ".join(ol.compare(drawn[0], changed).warnings)
    other = queue(seed=2, workload="w", lengths="prompt 20 tokens; words of 3")
    assert "lengths: words of 2 and words of 3" in " ".join(ol.compare(drawn[0], other).warnings)
    a, b = (queue(engine_flags=f'{{"listen": "{"a" * 99}", "routing": "{routing}"}}') for routing in ("x", "y"))
    assert ol.compare(a, b).warnings == ("they differ in engine flags: routing x and routing y",)
    short = ol.compare(queue(seconds=2.0), queue(seconds=2.0, seed=1))
    assert any("B is not valid: only" in each for each in short.warnings)


def test_a_run_that_breaks_after_a_moment_is_worse() -> None:
    """However few blocks hold all that was accepted."""

    def run(until: int) -> Run:
        due = np.arange(3000) * 100_000_000
        took = np.where(due < until * 10**9, 50_000_000, 400_000_000)
        manifest = ol.Manifest(source="test", window_ns=(0, 300 * 10**9), slo="e2e<=100ms")
        times = {"scheduled_ns": due, "sent_ns": due, "ended_ns": due + took}
        return Run.of(manifest, [ol.make_batch({"request_id": np.arange(3000), **times})])

    for until in (15, 30, 45):
        found = ol.compare(run(300), run(until), fail_if=["goodput < -5%"])
        assert found.winner == "A"
        assert found.failed
        change = found.changes["goodput"]
        assert change.interval is not None
        assert -1 < change.interval[0] < until / 300 - 1 < change.interval[1] < 0


def test_a_cost_that_is_a_lower_bound_is_said() -> None:
    prices = Prices(per_million_input_tokens=1.0, per_million_output_tokens=1.0)
    rows = [row(i, due=i / 10, tokens=[0.1], prompt_tokens=9) for i in range(400)]
    told, untold = (
        run_of([{**each, **more} for each in rows], slo=SLO, prices=prices) for more in ({}, {"prompt_tokens": None})
    )
    warnings = ol.compare(told, untold).warnings
    assert [each for each in warnings if "lower bound" in each] == [
        each for each in warnings if each.startswith("B: cost")
    ]
    assert any("cost is known in full for 0.0% of requests" in each for each in warnings)


@pytest.mark.parametrize("per_hour", [0.0, 36.0])
def test_judges_and_reviewers_cost_what_a_score_says(per_hour: float) -> None:
    prices = Prices(per_hour=per_hour, per_human_review=0.5, reviewed_share=0.1)
    rows = [row(i, due=i / 10, tokens=[0.1], quality=i % 4 > 0, review_cost=0.01) for i in range(400)]
    rows += [
        row(i, attempt=1, kind="retry", due=i / 10, tokens=[0.1], quality=False, review_cost=0.02)
        for i in range(200, 400)
    ]
    run = run_of(rows, slo="ttft<=1s, quality", prices=prices)
    assert ol.compare(run, run).changes["cost"].a == pytest.approx(ol.score(run).cost_per_accepted)


@pytest.mark.parametrize(
    ("gate", "fails"),
    [("goodput < -5%", True), ("goodput < -50%", False), ("e2e_p99 > 20%", True), ("e2e_p99>1000%", False)],
)
def test_a_gate_fails_where_a_change_is_surely_beyond_it(gate: str, fails: bool) -> None:
    found = ol.compare(queue(seconds=1000.0), queue(25.0, seconds=1000.0), fail_if=[gate])
    assert bool(found.failed) == fails


def test_a_collapse_fails_its_gate() -> None:
    dead = queue(seconds=30.0, slo="e2e<=1us")
    found = ol.compare(queue(seconds=30.0), dead, "e2e<=150ms", ["goodput < -5%"])
    assert not found.failed
    worse = simulate("fcfs:service=1s", "poisson:rate=36", 30.0, 0, slo=SLO, prices=Prices(per_hour=1.0))
    better = queue(seconds=30.0, prices=Prices(per_hour=1.0))
    found = ol.compare(better, worse, fail_if=["goodput < -5%", "cost > 10%"])
    assert found.failed == ("goodput < -5%", "cost > 10%")
    with pytest.raises(SpecError, match="tpot_p99 > 1% cannot be judged"):
        ol.compare(better, worse, fail_if=["tpot_p99 > 1%"])
    assert found.winner == "A"
    assert ol.compare(worse, worse).sentence == "neither has any goodput: nothing to choose between"
    with pytest.raises(SpecError, match="goodput < -5% cannot be judged, for the baseline has none of it"):
        ol.compare(worse, worse, fail_if=["goodput < -5%"])


def test_a_gate_that_cannot_be_judged_does_not_pass() -> None:
    """All that completes of B does so in its first moments: there is no telling how sure its p99 is."""
    rows = [row(i, due=i / 10, tokens=[0.1 if i < 8 else 9.0], status="ok" if i < 8 else "error") for i in range(400)]
    outage = run_of(rows, slo=SLO, window_ns=(0, 40 * 10**9))
    assert ol.compare(queue(), outage).changes["e2e_p99"].at_least is None
    with pytest.raises(SpecError, match="e2e_p99 > 10% cannot be judged, for too few requests"):
        ol.compare(queue(), outage, fail_if=["e2e_p99 > 10%"])
    with pytest.raises(SpecError, match="; failed is goodput < -5%"):
        ol.compare(queue(), outage, fail_if=["goodput < -5%", "e2e_p99 > 10%"])
    assert ol.compare(queue(), outage, fail_if=["goodput < -5%"]).failed == ("goodput < -5%",)


@pytest.mark.parametrize("text", ["goodput", "goodput <= -5%", "goodput < 5", "speed < -5%", ""])
def test_a_gate_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(SpecError, match="is no gate|unknown metric"):
        read_regression_gate(text)


def test_two_slos_are_not_mixed() -> None:
    strict = queue(slo="e2e<=50ms")
    with pytest.raises(SpecError, match="give one for both with --slo"):
        ol.compare(queue(), strict)
    assert ol.compare(queue(), strict, "e2e<=50ms").slo == "e2e<=50ms"
    with pytest.raises(SpecError, match="no goodput without an SLO"):
        ol.compare(queue(slo=None), queue(slo=None))


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two fleets, the second half as fast again."""
    folder = tmp_path_factory.mktemp("sweeps")
    for name, speed in (("a", 1.0), ("b", 1.5)):
        fleet = {**FLEET, "speed": speed}
        ol.sweep(folder / name, ASKED, fleet, rates=[10.0, 20.0, 30.0, 40.0, 60.0, 90.0], target=0.95, processes=1)
    return folder / "a", folder / "b"


def test_frontiers_are_compared_at_their_knees_and_at_every_common_rate(sweeps: tuple[Path, Path]) -> None:
    found = ol.compare(*sweeps)
    assert found.kind == "frontiers"
    assert found.winner == "B"
    assert found.paired
    assert list(found.by_rate) == [10.0, 20.0, 30.0, 40.0, 60.0, 90.0]
    assert "they differ in engine flags: speed left out and speed 1.5" in found.warnings
    json.dumps(found.to_dict(), allow_nan=False)
    knee = found.changes["knee"]
    assert knee.interval is not None
    assert knee.interval[0] < 0.5 < knee.interval[1] + 0.4


def test_what_cannot_be_concluded_from_a_frontier_is_said(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    one = ol.sweep(tmp_path / "one", ASKED, FLEET, rates=[10.0], target=0.95, processes=1)
    assert one.path is not None
    told = ol.compare(sweeps[0], one.path)
    assert any("has one point" in each for each in told.warnings)
    assert any("has no knee: beyond" in each for each in told.warnings)
    drowned = ol.sweep(tmp_path / "all", ASKED, FLEET, rates=[300.0, 400.0], target=0.95, processes=1)
    told = ol.compare(sweeps[0], str(drowned.path))
    assert any("overloaded at every rate" in each for each in told.warnings)
    assert any("no rate in common" in each for each in told.warnings)
    assert ol.compare(*sweeps).valid
    ol.sweep(tmp_path / "none", ASKED, FLEET, rates=[10.0], budget_s=1.0, target=0.95)
    with pytest.raises(RunError, match="has no finished run"):
        ol.compare(sweeps[0], tmp_path / "none")
    with pytest.raises(RunError, match="nowhere does not exist"):
        ol.compare(sweeps[0], tmp_path / "nowhere")
    with pytest.raises(RunError, match="a run and a frontier"):
        ol.compare(sweeps[0], sweeps[1] / "points" / "10-1")
    with pytest.raises(RunError, match="points/10-1 and .* are a run and a frontier"):
        ol.compare(ol.open_run(sweeps[1] / "points" / "10-1"), sweeps[0])


def test_what_a_frontier_short_of_its_knee_accepts_is_a_lower_bound(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    whole, low = sweeps[1], tmp_path / "low"
    ol.sweep(low, ASKED, {**FLEET, "speed": 1.5}, rates=[5.0, 10.0], target=0.95, processes=1)
    change = ol.compare(whole, low).changes["goodput"]
    assert change.a > 3 * change.b
    assert (change.change, change.interval, change.winner, change.at_most) == (None, None, None, None)
    told = "goodput < -5% cannot be judged, for goodput may be higher .*; knee of B: beyond 10.0/s"
    with pytest.raises(SpecError, match=told):
        ol.compare(whole, low, fail_if=["goodput < -5%"])
    with pytest.raises(SpecError, match="cannot be judged"):
        ol.compare(low, whole, fail_if=["goodput < -5%"])
    assert not ol.compare(whole, low, fail_if=["goodput < -99%"]).failed  # what was measured is more than that
    assert ol.compare(low, whole, fail_if=["goodput < 999%"]).failed  # nor can it have risen by more
    (table,) = next(each for each in read_comparison(whole, low).sections if each.key == "numbers").parts
    assert isinstance(table, Table)
    assert next(row for row in table.rows if row[0] == "peak goodput")[-1] == "-"


def test_a_target_that_is_never_met_leaves_the_highest_goodput_known(tmp_path: Path) -> None:
    slo = "e2e<=20ms"  # six in ten make it, alone
    a, b = (
        write_frontier(tmp_path / name, (5.0, 20.0, 30.0, 45.0), 60.0, "fcfs:service=exponential(20ms)", slo)
        for name in "ab"
    )
    found = ol.compare(a, b, fail_if=["goodput < -50%"])
    assert found.knees is not None
    assert found.knees[0].startswith("below")
    assert found.changes["goodput"].interval is not None
    assert not found.failed
    low = write_frontier(tmp_path / "low", (5.0, 10.0), 60.0, "fcfs:service=exponential(20ms)", slo)
    with pytest.raises(SpecError, match="cannot be judged"):  # it was only asked less
        ol.compare(a, low, fail_if=["goodput < -5%"])


def test_the_command_gates_and_writes_what_builds_read(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = (each / "points" / "30-1" for each in sweeps)
    command = [sys.executable, "-m", "openloop", "compare", str(b), str(a), "--fail-if", "e2e_p99 > 10%"]
    command += ["--fail-if", "goodput < -90%", "--junit", str(tmp_path / "x.xml"), "--md", str(tmp_path / "x.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    change = ol.compare(b, a).changes["e2e_p99"]
    assert change.at_least is not None
    bound = f"{100 * change.at_least:+,.0f}%" if change.at_least >= 1 else f"{100 * change.at_least:+.3g}%"
    assert f"FAILED: e2e_p99 > 10%: the change is at least {bound} (95%, one-sided)" in done.stdout
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["e2e_p99 > 10%"]
    assert "| E2E p99 |" in (tmp_path / "x.md").read_text()
    better = [*command[:4], str(a), str(b), "--fail-if", "goodput < -90%"]
    assert subprocess.run(better, capture_output=True, check=False).returncode == 0
    wrong = subprocess.run([*command[:6], "--fail-if", "x"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("openloop: 'x' is no gate")


def test_a_gate_that_cannot_be_judged_is_in_what_builds_read(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = (each / "points" / "30-1" for each in sweeps)
    files = ["--junit", str(tmp_path / "x.xml"), "--md", str(tmp_path / "x.md")]
    gates = ["--fail-if", "knee < -5%", "--fail-if", "goodput < -90%"]
    command = [sys.executable, "-m", "openloop", "compare", str(a), str(b), *files, *gates]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("openloop: knee < -5% cannot be judged, for knee is not known of both")
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "1")
    assert [case.get("name") for case in suite if case.find("error") is not None] == ["knee < -5%"]
    assert "- NOT JUDGED: knee < -5%: knee is not known of both" in (tmp_path / "x.md").read_text()


def test_a_run_that_is_not_valid_makes_no_comparison(sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    good = sweeps[0] / "points" / "30-1"
    short = write_run(tmp_path / "short", [row(i, due=i / 10, tokens=[0.1]) for i in range(20)])
    files = ["--junit", str(tmp_path / "x.xml"), "--md", str(tmp_path / "x.md"), "--fail-if", "goodput < -99%"]
    command = [sys.executable, "-m", "openloop", "compare", str(good), str(short), "--slo", "e2e<=1s", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("NOT VALID: ")
    assert "short is not valid: only 20 requests" in done.stdout
    assert "~~10.0/s~~" in done.stdout
    assert (tmp_path / "x.md").read_text().startswith("**NOT VALID: ")
    suite = ElementTree.parse(tmp_path / "x.xml").getroot()
    failing = [case.get("name") for case in suite if case.find("failure") is not None]
    assert (suite.get("tests"), suite.get("failures"), failing) == ("2", "1", ["comparison"])
    assert ol.compare(good, good).valid


def test_a_tail_differs_by_chance_no_more_often_than_it_is_said() -> None:
    """Pairs of the same queue, in runs that are short for it: an interval of p99 misses the truth once in twenty."""
    found = [ol.compare(queue(seed=n, seconds=20.0), queue(seed=n + 40, seconds=20.0)) for n in range(40)]
    assert sum(each.changes["e2e_p99"].winner is not None for each in found) <= 2
