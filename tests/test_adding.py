"""Recipes of ADDING.md, carried out: each extension is added in the one place that the recipe names, and then used."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

import openloop as ol
from openloop import arrivals, quality
from openloop.arrays import Bools
from openloop.compare.change import METRICS, ComparedMetric
from openloop.importers import registry
from openloop.importers.foreign import NO_SCHEDULE, Call, make_run
from openloop.quality.case import Case, Grade
from openloop.quality.gates import QUALITY_GATES, read_gating
from openloop.records import Run
from openloop.report import run as run_report
from openloop.report.compare import as_markdown
from openloop.report.html import page
from openloop.report.page import Section
from openloop.report.read import read_report
from openloop.score.judged import Scope
from openloop.sim import queues
from openloop.slo.gates import GATES, AnswerColumns, GateForm, _Within
from openloop.terms import COUNT, RATE, SECONDS, Term, param
from openloop.units import parse_seconds
from tests.runs import steady_run


class FirstWords(_Within):
    name = "first_words"

    def met(self, answers: AnswerColumns) -> NDArray[np.bool_]:
        return np.asarray(answers.ttft_s <= self.within_s / 2)


def test_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GATES, "first_words", GateForm(FirstWords, "<=", parse_seconds, "first_words<=1s"))
    run = steady_run()
    strict, plain = ol.score(run, "first_words<=1s"), ol.score(run, "ttft<=500ms")
    assert strict.accepted == plain.accepted
    assert str(ol.parse_slo("first_words<=1s")) == "first_words<=1s"


@dataclass(frozen=True)
class Platoons(Term):
    """Several at once, at even times."""

    name = "platoons"
    rate: float = param(RATE)
    size: int = param(COUNT, 4)

    @property
    def cv(self) -> float:
        return math.sqrt(self.size - 1)

    def times(self, horizon_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
        every = self.size / self.rate
        return np.repeat(np.arange(0.0, horizon_s, every), self.size)

    def expected(self, horizon_s: float) -> float:
        return self.rate * horizon_s

    def dispersion(self, horizon_s: float) -> float | None:
        return None


def test_an_arrival_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arrivals.ARRIVALS, "platoons", Platoons)
    run = ol.simulate("fcfs:service=10ms", "platoons:rate=20,size=5", seconds=30)
    slowest = ol.score(run, "e2e<=1s").e2e_s
    assert slowest is not None
    assert slowest.p99 == pytest.approx(0.05)  # the last of five
    assert run.manifest.arrivals == "platoons:rate=20,size=5"


@dataclass(frozen=True)
class Lift(Term):
    """Takes all who wait, every so often."""

    name = "lift"
    every: float = param(SECONDS)
    replicas = 1

    def serve(self, due_s: NDArray[np.float64], rng: np.random.Generator) -> queues.Served:
        return queues.Served(due_s, (np.floor(due_s / self.every) + 1) * self.every)


def test_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(queues.QUEUES, "lift", Lift)
    score = ol.score(ol.simulate("lift:every=2s", "poisson:rate=50", seconds=200), "e2e<=1s")
    assert score.attainment == pytest.approx(0.5, abs=0.02)


@dataclass(frozen=True)
class Polite(quality.case.QualityGate):
    name = "polite"

    def check(self, case: Case) -> Grade:
        return Grade("please" in case.text, why=None if "please" in case.text else "it is rude")


def test_a_quality_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUALITY_GATES, "polite", Polite)
    (gate,) = read_gating("polite").all
    assert [gate.check(Case(text)).passed for text in ("please wait", "wait")] == [True, False]


def test_a_metric_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(scope: Scope, kept: Bools, seconds: float) -> float:
        return float(scope.deliveries.tokens[kept].sum()) / seconds

    monkeypatch.setitem(METRICS, "all_tokens", ComparedMetric("tokens of all", 1, of))
    found = ol.compare(steady_run(), steady_run(), "ttft<=500ms")
    assert found.changes["all_tokens"].change == pytest.approx(0.0)
    assert "tokens of all" in as_markdown(found)


def looks_like(head: str) -> bool:
    return head.startswith('{"stopwatch"')


def read(path: Path) -> Iterator[Run]:
    laps = json.loads(path.read_text())["stopwatch"]
    yield make_run("stopwatch", [Call(sent_ns=a, ended_ns=b, status="ok") for a, b in laps], notes=[NO_SCHEDULE])


def test_an_importer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {**registry.IMPORTERS, "stopwatch": SimpleNamespace(looks_like=looks_like, read=read)}
    monkeypatch.setattr(registry, "IMPORTERS", known)
    laps = [[i * 10**8, i * 10**8 + (5 if i % 4 else 50) * 10**6] for i in range(400)]
    (tmp_path / "laps.json").write_text(json.dumps({"stopwatch": laps}))
    score = ol.score(ol.load(tmp_path / "laps.json"), "e2e<=10ms")
    assert score.attainment == 0.75
    assert NO_SCHEDULE in " ".join([*score.reasons, *score.notes])


def test_a_section_of_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def poem(subject: run_report.RunSubject) -> Section | None:
        return Section("poem", "In verse", f"{subject.score.requests} came, some stayed.", [])

    monkeypatch.setattr(run_report, "RUN_SECTIONS", (*run_report.RUN_SECTIONS, poem))
    steady_run().save(tmp_path / "run")
    shown = page(read_report(tmp_path / "run", slo="ttft<=1s"))
    assert "In verse" in shown
    assert "came, some stayed." in shown
