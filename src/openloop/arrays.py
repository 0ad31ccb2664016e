"""What arrays hold, in a word; and tables of rows, which compiled code works on."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Counts = NDArray[np.int32]
Codes = NDArray[np.int8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)


def count(those: Bools) -> int:
    return int(np.count_nonzero(those))  # `sum` would make numbers of them first


def only(values: NDArray[Scalar], those: Bools) -> NDArray[Scalar]:
    """Those of the values, and no copy where that is all of them."""
    return values if those.all() else values[those]


def row_kind(whole: str, real: str = "") -> np.dtype[Any]:
    """A row of numbers, by their names."""
    return np.dtype(
        [*((name, np.int64) for name in whole.split()), *((name, np.float64) for name in real.split())], align=True
    )


def records(kind: np.dtype[Any], *shape: int) -> Any:
    """So many rows, all zero."""
    return np.zeros(shape, kind).view(np.recarray)
