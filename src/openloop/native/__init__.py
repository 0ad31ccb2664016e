"""Python as machine code: translated to LLVM's language, compiled, kept on disk."""

import struct
from collections.abc import Callable
from typing import Any

__all__ = ["bits_of", "foreign", "kept_by_numba", "whole"]


def kept_by_numba(compile_with: Callable[..., Any], function: Any, *types: Any, **options: Any) -> Any:
    """What numba compiles is kept on disk; the user of a container may have no place for it, and does without."""
    try:
        return compile_with(*types, cache=True, **options)(function)
    except RuntimeError:  # no locator available
        return compile_with(*types, **options)(function)


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
