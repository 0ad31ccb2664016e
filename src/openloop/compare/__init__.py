"""Two runs or two frontiers in, a decision with its uncertainty out.

The module can be called: `openloop.compare(a, b)` is `openloop.compare.compare(a, b)`.
"""

import sys
from types import ModuleType
from typing import Any

from openloop.compare.change import Change
from openloop.compare.decide import Comparison, RegressionGate, UnjudgedError, compare, read_regression_gate

__all__ = ["Change", "Comparison", "RegressionGate", "UnjudgedError", "compare", "read_regression_gate"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Comparison:
        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
