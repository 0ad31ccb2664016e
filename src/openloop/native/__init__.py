"""Python as machine code: translated to LLVM's language, compiled, kept on disk."""

import struct
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["bits_of", "foreign", "jitable", "kept_by_numba", "numba", "whole"]

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: list[Callable[..., Any]] = []  # to numba
_TELLING = threading.Lock()


def jitable(function: F) -> F:
    """What numba compiles may call it."""
    _UNKNOWN.append(function)
    if "numba" in sys.modules:
        numba()
    return function


def numba() -> Any:
    """By name, because it takes longer to import than all else together, and few commands compile anything with it."""
    found = import_module("numba")
    with _TELLING:
        while _UNKNOWN:
            import_module("numba.extending").register_jitable(_UNKNOWN.pop())
    return found


def kept_by_numba(compile_with: str, function: Any, *types: Any, **options: Any) -> Any:
    """What numba compiles is kept on disk; the user of a container may have no place for it, and does without."""
    compiler = getattr(numba(), compile_with)
    try:
        return compiler(*types, cache=True, **options)(function)
    except RuntimeError:  # no locator available
        return compiler(*types, **options)(function)


def foreign(address: int, *given: Any) -> int:
    """A function of C, by its address: whole numbers and tables in, a whole number out. Only compiled code can."""
    raise NotImplementedError(f"{address:#x} cannot be called with {given} from Python")


def whole(number: int) -> int:
    """What C calls an int: half of what comes back."""
    return (number << 32) >> 32


def bits_of(number: float) -> int:
    """A real number as it is held, read as a whole one."""
    found: int = struct.unpack("q", struct.pack("d", number))[0]
    return found
