"""Machine code to be run where it was sent: by whoever has neither Python's source nor a compiler at hand."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any, Literal

NO_RESERVE = 0x4000  # memory that nobody touches costs nothing

FORMS: dict[str, Literal["q", "i", "B"]] = {"i8": "q", "i4": "i", "u1": "B"}

# What code works on, by name: the kind of items, and how many; rows have names of whole numbers.
Shapes = dict[str, tuple[str | tuple[str, ...], int]]


class Located(ctypes.Union):
    """Where bytes are: those that it was given last."""

    _fields_ = (("data", ctypes.c_char_p), ("address", ctypes.c_int64))


def address_of(data: bytes) -> int:
    """Where bytes are, for as long as somebody has them."""
    found: int = Located(data).address
    return found


class Mapped:
    """A function that works on tables, which it has in memory of its own."""

    def __init__(self, code: bytes, shapes: Shapes) -> None:
        """Raises something where code or memory cannot be mapped."""
        entry = _run_from(code)
        sizes = {name: _size(*each) for name, each in shapes.items()}
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._memory = mmap.mmap(-1, sum(sizes.values()), flags=flags)
        self._memory.madvise(mmap.MADV_NOHUGEPAGE)  # most of it may never be needed
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._shapes, self._spans, at = shapes, {}, 0
        for name, size in sizes.items():
            self._spans[name], at = slice(at, at + size), at + size
        box = [each for name, (_, count) in shapes.items() for each in (self.address(name), count)]
        self._box = (ctypes.c_int64 * len(box))(*box)
        self._places = {name: 2 * place for place, name in enumerate(shapes)}
        self._entry, self._at = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entry), ctypes.addressof(self._box)

    def __call__(self) -> None:
        self._entry(self._at)

    def address(self, name: str) -> int:
        return self._base + self._spans[name].start

    def put(self, name: str, address: int, count: int) -> None:
        """A table is somewhere else, with so many items, and somebody else's: it must stay there."""
        place = self._places[name]
        self._box[place], self._box[place + 1] = address, count

    def view(self, name: str) -> memoryview:
        """A table as numbers."""
        kind, _ = self._shapes[name]
        return memoryview(self._memory)[self._spans[name]].cast(FORMS[kind] if isinstance(kind, str) else "q")

    def rows(self, name: str) -> Any:
        """A table of rows."""
        names, count = self._shapes[name]
        kind: Any = type(name, (ctypes.Structure,), {"_fields_": [(each, ctypes.c_int64) for each in names]})
        return (kind * count).from_buffer(self._memory, self._spans[name].start)


def find_in_libc(state: ctypes.Structure, names: Sequence[str]) -> None:
    """Note where functions of C are."""
    libc = ctypes.CDLL(None)
    for name in names:
        setattr(state, name, ctypes.cast(getattr(libc, name), ctypes.c_void_p).value)


def _size(kind: str | tuple[str, ...], count: int) -> int:
    """In bytes, of whole words."""
    return -(-count * (int(kind[1:]) if isinstance(kind, str) else 8 * len(kind)) // 64) * 64


def _run_from(code: bytes) -> int:
    """Where it can be run."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    file: int = libc.memfd_create(b"openloop", 1)  # closed in children; os has it only where Python was built with it
    if file < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    try:
        os.write(file, code)
        found: int = libc.mmap(None, len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
    finally:
        os.close(file)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return found
