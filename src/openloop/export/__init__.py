"""Runs and scores for other tools: rows as tables, latencies as histograms, figures as metrics.

The module can be called: `openloop.export(run, ...)` is `openloop.export.export(run, ...)`.
"""

import sys
from types import ModuleType

from openloop.export.registry import EXPORTERS, Exporter, export

__all__ = ["EXPORTERS", "Exporter", "export"]


class _Callable(ModuleType):
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Callable
