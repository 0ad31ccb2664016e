"""A user's own policy, in whatever Python: `choose(request, replicas, now)` gives a place, or None to shed."""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np

from openloop.plugins import find_function
from openloop.routing.policy import NOBODY, Policy, signature
from openloop.terms import TEXT, param


@dataclass(frozen=True)
class Own(Policy):
    """A function of yours, as `own:policy.py:choose`, called with the row of the request, the rows of all replicas and
    the time. Decorated with `numba.njit` it is as fast as any; plain Python is called as it is, and slower."""

    name = "own"
    function: str = param(TEXT)
    sees = frozenset({"cache", "session", "memory"})

    @property
    def choose(self) -> Any:
        return _python(self.function)

    def caller(self) -> Any:
        return self.choose

    @property
    def note(self) -> str | None:
        if _is_compiled(find_function(self.function)):
            return None
        return f"{self} is plain Python: the simulator asks it for every request, which takes longer; try numba.njit"

    def pointer(self, ask: Any, views: Any, errors: list[Exception]) -> Any:
        function = find_function(self.function)
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return self.choose
        if _is_compiled(function):

            def choose(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> Any:
                found = function(ask[0], views, now)
                return NOBODY if found is None else found

            return numba.cfunc(signature())(choose)

        def call_python(now: float) -> int:
            if errors:
                return NOBODY
            try:
                found = function(ask[0], views, now)
                return NOBODY if found is None else int(found)
            except Exception as error:  # it is raised when the loop is back
                errors.append(error)
                return NOBODY

        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_double)(call_python)

        def ask_python(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> Any:
            return call(now)

        found = numba.cfunc(signature())(ask_python)
        found.kept = call  # type: ignore[attr-defined]  # as long as its caller
        return found


def _is_compiled(function: Any) -> bool:
    return hasattr(function, "py_func")


@cache
def _python(name: str) -> Any:
    function = find_function(name)

    def choose(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
        found = function(ask.view(np.recarray)[0], views.view(np.recarray), now)
        return NOBODY if found is None else int(found)

    return choose
