"""Two runs or two frontiers in, a decision with its uncertainty out.

The module can be called: `openloop.compare(a, b)` is `openloop.compare.compare(a, b)`.
"""

import sys
from types import ModuleType

from openloop.compare.change import Change
from openloop.compare.decide import Comparison, RegressionGate, UnjudgedError, compare, read_regression_gate

__all__ = ["Change", "Comparison", "RegressionGate", "UnjudgedError", "compare", "read_regression_gate"]


class _Callable(ModuleType):
    __call__ = staticmethod(compare)


sys.modules[__name__].__class__ = _Callable
