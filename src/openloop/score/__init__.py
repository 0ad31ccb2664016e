"""Records and an SLO in, every metric out.

The module can be called: `openloop.score(run, slo)` is `openloop.score.score(run, slo)`, so that the natural name works
whether or not the package has been imported before.
"""

import sys
from types import ModuleType
from typing import Any

from openloop.score.leaks import Leak
from openloop.score.metrics import LittleScore, RetryScore, SessionScore, Straggler, TurnScore, UnitScore
from openloop.score.money import Blend, CostScore, blended, capacity_needed
from openloop.score.quality import QualityScore, SliceScore, needed_to_see
from openloop.score.quantiles import Ladder, Percentiles
from openloop.score.scope import GateScore, JointFailure
from openloop.score.scorer import GROUPS, Disruption, Score, Summary, TimeWindow, blends, check, score
from openloop.score.server import ServerScore
from openloop.score.verdict import Verdict

__all__ = [
    "GROUPS",
    "Blend",
    "CostScore",
    "Disruption",
    "GateScore",
    "JointFailure",
    "Ladder",
    "Leak",
    "LittleScore",
    "Percentiles",
    "QualityScore",
    "RetryScore",
    "Score",
    "ServerScore",
    "SessionScore",
    "SliceScore",
    "Straggler",
    "Summary",
    "TimeWindow",
    "TurnScore",
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
    def __call__(self, *args: Any, **kwargs: Any) -> Score:
        return score(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
