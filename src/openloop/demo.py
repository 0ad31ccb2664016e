"""Goodput collapses while throughput holds: real HTTP load on the built-in endpoint, in under a minute."""

from dataclasses import replace
from pathlib import Path

import click

from openloop.arrivals import Poisson
from openloop.errors import RunError
from openloop.frontier.folder import SweepAsked, make_frontier
from openloop.frontier.point import PointRun, read_trial
from openloop.load.address import find_place
from openloop.load.conductor import drive
from openloop.load.plan import Load
from openloop.load.targets import Chat
from openloop.report.chart import Chart
from openloop.report.curve import frontier_report, frontier_subject
from openloop.report.files import write_text
from openloop.report.html import page
from openloop.score import Score, score
from openloop.serve.process import endpoint_process
from openloop.slo import read_slo
from openloop.workload import Workload, read_source

# A 7B model on an A100, sixteen requests at a time: about 18 requests per second are all it can do.
FLEET = """# Simulated in real time behind a real endpoint; the same file in virtual time: openloop sim fleet.yaml
model: 7b
gpu: a100
max_sequences: 16
"""
ASKED = "synthetic:prompt=uniform(200,600),output=uniform(32,64)"
RATES = {"comfortable": 7.0, "moderate": 12.0, "busy": 15.0, "stressed": 18.0, "overloaded": 26.0}
SECONDS = 6.0
SLO = "ttft<=500ms, tpot<=40ms"
TARGET = 0.95


def demo(out: Path, seconds: float = SECONDS) -> None:
    if out.exists():
        raise RunError(f"{out} is there already; remove it, or choose another folder with -o")
    out.mkdir(parents=True)
    (out / "fleet.yaml").write_text(FLEET, encoding="utf-8")
    click.echo(f"a 7B model on an A100, simulated in real time; SLO {SLO}, {seconds:.0f} s of Poisson arrivals each")
    click.echo("point         offered   completed   goodput  attainment  ttft p50  ttft p99")
    scores: dict[float, Score] = {}
    trials: dict[tuple[float, int], PointRun] = {}
    objectives = read_slo(SLO)
    with endpoint_process(str(out / "fleet.yaml")) as server:
        place = find_place(server.url)
        target, workload = Chat(place.host, "openloop", place.base), Workload.of(read_source(ASKED))
        facts = {"slo": SLO, "target": server.url, "model": "7b", "hardware": "1 x a100, simulated"}
        facts |= {"engine": "openloop serve", "engine_flags": FLEET}
        for seed, (name, rate) in enumerate(RATES.items()):
            load = Load([(place, target)], workload, Poisson(rate), seconds, seed, drain_s=4.0, facts=facts)
            run = drive(load, out / name)
            found = score(run)
            trials[rate, 1] = read_trial(run, objectives, TARGET)
            scores[rate] = found
            ttft = found.ttft_s
            p50, p99 = (f"{1000 * each:>7,.0f}ms" for each in ((ttft.p50, ttft.p99) if ttft else (0.0, 0.0)))
            click.echo(
                f"{name:<12} {found.offered_rps:>6.1f}/s {found.completed_in_window_rps:>9.1f}/s"
                f" {found.goodput_rps:>7.1f}/s {found.attainment:>11.1%} {p50} {p99}"
            )
    chart = _draw(scores)
    for kind in ("png", "svg"):
        chart.save(out / f"collapse.{kind}")
    asked = SweepAsked(
        source="load",
        slo=SLO,
        target=TARGET,
        rates=list(scores),
        seconds=seconds,
        repeat=1,
        precision=0.1,
        scenario={"engine": FLEET},
        stopped="all five rates were measured",
    )
    frontier = make_frontier(asked, SLO, trials)
    names = {rate: name for name, rate in RATES.items()}  # as in the table above, and not by where the knee is
    frontier = replace(frontier, points=tuple(replace(each, name=names[each.rate]) for each in frontier.points))
    write_text(out / "report.html", page(frontier_report(frontier_subject(frontier, objectives))))
    click.echo(f"the picture: {out / 'collapse.png'}; any of the runs: openloop score {out / 'busy'}")
    click.echo(f"the report: {out / 'report.html'}; all of it in a browser: openloop view {out}")


def _draw(scores: dict[float, Score]) -> Chart:
    chart = Chart("Throughput holds at capacity, goodput collapses", "Offered load (requests/s)", "Requests per second")
    chart.line(list(scores), [each.completed_in_window_rps for each in scores.values()], "completed", color="orange")
    chart.line(list(scores), [each.goodput_rps for each in scores.values()], "goodput", color="green")
    chart.note(f"SLO {SLO}")
    return chart
