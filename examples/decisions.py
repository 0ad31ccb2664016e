"""Three decisions that goodput changes, as the goodput article ends: each from a file to the page that a manager reads.

Capacity: 4 GPUs by a benchmark, of which production leaves less. Migration: engines that stream 1,200 and 900 tokens
per second, of which the faster one is late for 30% of requests; the article does not say what they cost, so that is as
for the routes of `routes.py`, nor how many of the late answers are bad as well (8 of 100 here). That A's caches suffer
more from restarts is not in it. Models: X is 30% cheaper per token than Y; runs are those of `accepted.py`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from accepted import SLO, TOKEN_PRICE, models
from routes import SLO as ROUTE_SLO
from routes import route

import openloop as ol
from openloop.decide import Decision, decide
from openloop.plan.make import HOURS
from openloop.report.decision import decision_report
from openloop.report.html import page
from openloop.units import format_share

BENCHMARK = 2500  # requests a day of one of the 4 GPUs that were to serve 10,000


def answer(folder: Path, name: str, question: dict[str, Any]) -> Decision:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(question, sort_keys=False))
    found = decide(folder / f"{name}.yaml")
    print(f"{found.question}\n  {found.headline}")
    for sentence in (*found.sentences, *(f"NOT VALID: {why}" for case in found.cases for why in case.reasons)):
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
    print(
        "(the article's two answers are not one: 40% to 60% of the benchmark are 7 to 10 GPUs in place of 4, and 6 to 8"
    )
    print(
        "GPUs are 50% to 67% of it; how much more work a cold request is, and what batches of 8 to 16 in place of 256"
    )
    print("take, it does not say: 1.5 and 2.5 times the work are chosen to give 6 and 8)")


def migration(folder: Path) -> None:
    engines = {
        "A": route("A", 120, slow=30, ttft_ms=1400, tpot_ms=55, bad=slice(22, 50), retried=0, cost=1.10),
        "B": route("B", 90, slow=20, ttft_ms=650, tpot_ms=42, bad=slice(20, 29), retried=0, cost=1.45),
    }
    for name, run in engines.items():
        run.save(folder / name)
    options = {f"engine {name}": {"from": name} for name in engines}
    question = {"decision": "migration", "demand": "10/s", "slo": ROUTE_SLO, "one_time": 20_000}
    speeds = " and ".join(f"{ol.score(run, ROUTE_SLO).output_tokens_per_s:,.0f}" for run in engines.values())
    print(f"(100 requests of each; {speeds} tokens per second)")
    answer(folder, "migration", {**question, "options": options})


def selection(folder: Path) -> None:
    runs, demand = models(), 0.5
    for name, run in runs.items():
        run.save(folder / f"model-{name}")
    options = {f"model {name}": {"from": f"model-{name}"} for name in ("Y", "X")}
    answer(folder, "model", {"decision": "model", "demand": f"{demand}/s", "slo": SLO, "options": options})
    bill = demand * 3600 * HOURS * 600 * TOKEN_PRICE / 1e6  # answers of Y have 600 tokens
    print(f"  (by the price of tokens: X would save {0.3 * bill:,.0f} of {bill:,.0f} a month)")


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        for show in (capacity, migration, selection):
            show(where)
