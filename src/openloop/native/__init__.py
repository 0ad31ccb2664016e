"""Python as machine code: translated to LLVM's language, compiled, kept on disk."""

from typing import Any

__all__ = ["foreign", "whole"]


def foreign(address: int, *given: Any) -> int:
    """A function of C, by its address: whole numbers and tables in, a whole number out. Only compiled code can."""
    raise NotImplementedError(f"{address:#x} cannot be called with {given} from Python")


def whole(number: int) -> int:
    """What C calls an int: half of what comes back."""
    return (number << 32) >> 32
