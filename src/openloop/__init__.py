"""openloop: how much work does a serving system do that users accept, and what does each accepted result cost?

    import openloop as ol

    run = ol.load("run/")  # or a file of vllm bench, aiperf, guidellm, ...
    print(ol.score(run, "ttft<=500ms, tpot<=40ms").goodput_rps)

Names are loaded when they are first used, so that `import openloop` and `openloop --help` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openloop.compare import Comparison, compare
    from openloop.errors import OpenloopError, RecordError, RunError, SpecError, StorageError
    from openloop.export import export
    from openloop.frontier import Frontier, open_frontier, sweep
    from openloop.load import load
    from openloop.load.conductor import drive
    from openloop.load.plan import Load
    from openloop.quality.grading import grade_run
    from openloop.records import (
        Manifest,
        Prices,
        Run,
        RunWriter,
        TimedEvent,
        make_batch,
        make_lists,
        open_run,
        read_prices,
    )
    from openloop.score import Score, Verdict, check, score
    from openloop.sim import simulate
    from openloop.slo import SLO, Objectives, parse_slo, read_slo

__version__ = "0.1.0"

_HOME = {
    "errors": ["OpenloopError", "RecordError", "RunError", "SpecError", "StorageError"],
    "compare": ["Comparison", "compare"],
    "export": ["export"],
    "frontier": ["Frontier", "open_frontier", "sweep"],
    "load": ["load"],
    "load.conductor": ["Load", "drive"],
    "quality.grading": ["grade_run"],
    "records": [
        *("Manifest", "Prices", "Run", "RunWriter", "TimedEvent"),
        *("make_batch", "make_lists", "open_run", "read_prices"),
    ],
    "score": ["Score", "Verdict", "check", "score"],
    "sim": ["simulate"],
    "slo": ["SLO", "Objectives", "parse_slo", "read_slo"],
}

__all__ = [
    "SLO",
    "Comparison",
    "Frontier",
    "Load",
    "Manifest",
    "Objectives",
    "OpenloopError",
    "Prices",
    "RecordError",
    "Run",
    "RunError",
    "RunWriter",
    "Score",
    "SpecError",
    "StorageError",
    "TimedEvent",
    "Verdict",
    "__version__",
    "check",
    "compare",
    "drive",
    "export",
    "grade_run",
    "load",
    "make_batch",
    "make_lists",
    "open_frontier",
    "open_run",
    "parse_slo",
    "read_prices",
    "read_slo",
    "score",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    for room, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"openloop.{room}"), name)
    raise AttributeError(f"module 'openloop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
