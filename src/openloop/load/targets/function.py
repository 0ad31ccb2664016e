"""A Python function in place of a server."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, cast

import msgspec

from openloop.errors import SpecError
from openloop.load.targets.base import Outcome, Target
from openloop.workload import Ask

__all__ = ["Function", "find_function"]


class Function(Target):
    """A Python function, `module:function` or `path/file.py:function`; each piece that it gives is a delivery."""

    has_models = False
    worker = "openloop.load.callable_worker"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:  # noqa: ARG004
        return {}

    def encode(self, ask: Ask, number: int) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(ask)

    def read(self, blocks: list[bytes], stamps: list[int]) -> Outcome:
        found = Outcome(event_ns=list(stamps), first_any_ns=stamps[0] if stamps else None)
        if self.keep_text:
            found.text = b"".join(blocks).decode("utf-8", "replace")
        return found


def find_function(name: str) -> Callable[[Ask], Any]:
    """The function that `name` says, from a module or a file."""
    place, _, inner = name.rpartition(":")
    if not place or not inner:
        raise SpecError(f"{name!r} names no function; write module:function or path/file.py:function")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
        found: Any = reduce(getattr, inner.split("."), module)
    except Exception as error:  # whatever a user's module does when it is imported
        raise SpecError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise SpecError(f"{name!r} is a {type(found).__name__}, and no function")
    return cast(Callable[[Ask], Any], found)


def _from_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
