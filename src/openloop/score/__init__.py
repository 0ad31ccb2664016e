"""Records and an SLO in, every metric out.

The module can be called: `openloop.score(run, slo)` is `openloop.score.score(run, slo)`, so that the natural name works
whether or not the package has been imported before.
"""

import sys
from types import ModuleType

from openloop.score.metrics import QualityScore, SliceScore, UnitScore, needed_to_see
from openloop.score.money import CostScore, Leak, blended, capacity_needed
from openloop.score.quantiles import Percentiles
from openloop.score.scorer import Score, Summary, TimeWindow, blends, check, score
from openloop.score.server import ServerScore
from openloop.score.verdict import Verdict

__all__ = [
    "CostScore",
    "Leak",
    "Percentiles",
    "QualityScore",
    "Score",
    "ServerScore",
    "SliceScore",
    "Summary",
    "TimeWindow",
    "UnitScore",
    "Verdict",
    "blended",
    "blends",
    "capacity_needed",
    "check",
    "needed_to_see",
    "score",
]


class _Callable(ModuleType):
    __call__ = staticmethod(score)


sys.modules[__name__].__class__ = _Callable
