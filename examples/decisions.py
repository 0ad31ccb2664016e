"""Three decisions that goodput changes, as the goodput article ends: each from a file to the page that a manager reads.

Capacity: 4 GPUs by a benchmark, of which production leaves less. Migration: engines that stream 1,200 and 800 tokens
per second. Models: X is 30% cheaper per token than Y. Runs are those of `routes.py` and `accepted.py`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from accepted import SLO, models
from routes import SLO as ROUTE_SLO
from routes import route

from openloop.decide import Decision, decide
from openloop.report.decision import decision_report
from openloop.report.html import page
from openloop.units import format_share

BENCHMARK = 2500  # requests a day of one of the 4 GPUs that were to serve 10,000


def answer(folder: Path, name: str, question: dict[str, Any]) -> Decision:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(question, sort_keys=False))
    found = decide(folder / f"{name}.yaml")
    print(f"{found.question}\n  {found.headline}")
    for sentence in found.sentences:
        print(f"  - {sentence}")
    print(f"  not measured: {', '.join(dict.fromkeys(gap.fact for gap in found.gaps))}")
    (folder / f"{name}.html").write_text(page(decision_report(found)))
    return found


def capacity(folder: Path) -> None:
    for cold in (1.5, 2.5):  # times the work of a warm request; 40% are cold, 6% are retried
        knee = BENCHMARK / 1.06 / (1 + 0.4 * (cold - 1))
        gpu = {"throughput": f"{BENCHMARK}/d", "knee": f"{knee!r}/d", "quality": "88%", "price": "3/h"}
        found = answer(
            folder, f"capacity-{cold}", {"decision": "capacity", "demand": "10000/d", "options": {"H100": gpu}}
        )
        print(f"  (effective capacity {format_share(0.88 * knee / BENCHMARK)} of the benchmark)")
        assert found.cases[0].plan is not None


def migration(folder: Path) -> None:
    """The article's 100 requests of each are few: they show that B does more, but not that it costs less."""
    for times in (1, 100):
        engines = {
            "A": route("A", 120, 20, 1400, 55, bad=slice(14, 42), retried=0, cost=1.10, times=times),
            "B": route("B", 80, 20, 650, 42, bad=slice(20, 29), retried=6, cost=1.45, times=times),
        }
        for name, run in engines.items():
            run.save(folder / f"{name}-{times}")
        options = {f"engine {name}": {"from": f"{name}-{times}"} for name in engines}
        question = {"decision": "migration", "demand": "10/s", "slo": ROUTE_SLO, "one_time": 20_000}
        print(f"({100 * times:,} requests of each)")
        answer(folder, f"migration-{times}", {**question, "options": options})


def selection(folder: Path) -> None:
    for name, run in models().items():
        run.save(folder / f"model-{name}")
    options = {f"model {name}": {"from": f"model-{name}"} for name in ("Y", "X")}
    answer(folder, "model", {"decision": "model", "demand": "1/s", "slo": SLO, "options": options})


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        for show in (capacity, migration, selection):
            show(where)
