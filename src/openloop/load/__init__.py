"""`openloop.load(path)` opens a run, or another tool's file; what is in here drives a live endpoint on a schedule.

The module can be called. It asks for what opens runs only then, by name, because workers import this module and must
start quickly.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["load"]


def load(path: Any, *, tool: str | None = None, part: int | None = None) -> Any:
    """The run in a folder, or in a file of another tool; the `part`th, if it holds several."""
    return import_module("openloop.importers").open_any(path, tool=tool, part=part)


class _Callable(ModuleType):
    __call__ = staticmethod(load)


sys.modules[__name__].__class__ = _Callable
