"""The events of ordinary streams, found by machine code: when each was complete, and which say nothing new.

Most events of a stream are the same but for a word. One that differs from another before it in nothing else needs not
be decoded again: whether it has words, and what else it says, is known. What counts as a word is the text of a key that
ends in `content` or `text`, in letters that need no decoding.

This is Python that LLVM compiles, and it is run as machine code only. Where that cannot be, or a stream is not
ordinary, all events are found and decoded by Python, with the same result.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from openloop.load.intake import hex_digit
from openloop.native import foreign, whole
from openloop.native.kept import code_to_map
from openloop.native.mapped import Mapped, Shapes, find_in_libc

C = ("memchr", "memcmp", "memmem")
# How many bytes there are, in how many reads; where the body begins; how many events were found in all of it, or -1,
# of how many kinds; when its first byte had come.
STATE = ("size", "reads", "start", "found", "kinds", "first_ns", "raw", *C)
EVENT = ("block", "stamp", "kind")  # the read that completed it, and when; what kind it is
WORD_KEYS = b'content":text":'
CONTENT, TEXT = 9, 6  # letters of these keys
SIZE = 1 << 18
READS = 1 << 13
EVENTS = 1 << 12
DATA = 6  # letters before it: `data: `
DIGITS = 7


class Events(NamedTuple):
    """Server-sent events: which read completed each, when that was, and what kind it is of.

    Of each kind there are the data of its first; others of the kind say the same but for a word.
    """

    blocks: list[int]
    stamps: list[int]
    kinds: Sequence[int]
    data: list[bytes]


def skim(state: Any, raw: Any, marks: Any, keys: Any, events: Any, spans: Any) -> None:
    """All events, if each is a line of data in a chunk of its own, and nothing is missing."""
    w = state[0]
    w.found = -1
    w.kinds = 0
    at = w.start
    block = 0
    count = 0
    like = -1  # the latest kind that has a word, with so many bytes before it and after it
    before = 0
    after = 0
    while count < EVENTS:
        digits = at
        size = 0
        while at < min(digits + DIGITS, w.size) and hex_digit(raw[at]) >= 0:
            size = size * 16 + hex_digit(raw[at])
            at += 1
        if at == digits or at + 4 > w.size or line_end(raw, at) == 0:
            return
        at += 2
        if size == 0:
            if at + 2 == w.size and line_end(raw, at):
                w.found = count
            return
        stop = at + size
        if stop + 2 > w.size or line_end(raw, stop) == 0 or is_line(w, raw, at, stop) == 0:
            return
        if count == 0:
            block = read_with(w, marks, block, at + 1)
            w.first_ns = marks[2 * block + 1]
        block = read_with(w, marks, block, stop)
        event = events[count]
        event.block = block
        event.stamp = marks[2 * block + 1]
        begin = at + DATA
        end = stop - 2
        if like >= 0 and is_like(w, raw, spans, like, begin, end, before, after):
            event.kind = like
        else:
            event.kind = w.kinds
            spans[2 * w.kinds] = begin
            spans[2 * w.kinds + 1] = end
            word = word_of(w, raw, keys, begin, end)
            over = word_end(raw, word, end) if word else 0
            if over > word:
                like = w.kinds
                before = word - begin
                after = end - over
            w.kinds += 1
        count += 1
        at = stop + 2


def read_with(w: Any, marks: Any, block: int, size: int) -> int:
    """The read that so many bytes were complete with."""
    while marks[2 * block] < size and block < w.reads - 1:
        block += 1
    return block


def is_line(w: Any, raw: Any, at: int, stop: int) -> int:
    """Whether this is one line of data and an empty line."""
    if stop < at + DATA + 3 or raw[stop - 1] != 10 or raw[stop - 2] != 10:
        return 0
    if raw[at] != 100 or raw[at + 1] != 97 or raw[at + 2] != 116 or raw[at + 3] != 97:  # data
        return 0
    if raw[at + 4] != 58 or raw[at + 5] != 32:  # a colon and a space
        return 0
    size = stop - 2 - at
    return 1 if foreign(w.memchr, raw[at:], 10, size) == 0 and foreign(w.memchr, raw[at:], 13, size) == 0 else 0


def is_like(w: Any, raw: Any, spans: Any, kind: int, begin: int, end: int, before: int, after: int) -> int:
    """Whether it is the same as others but for a word."""
    if end - begin <= before + after:
        return 0
    if whole(foreign(w.memcmp, raw[begin:], raw[spans[2 * kind] :], before)) != 0:
        return 0
    if whole(foreign(w.memcmp, raw[end - after :], raw[spans[2 * kind + 1] - after :], after)) != 0:
        return 0
    return 1 if word_end(raw, begin + before, end) == end - after else 0


def word_of(w: Any, raw: Any, keys: Any, begin: int, end: int) -> int:
    """Where a word begins; 0: there is none."""
    size = CONTENT
    place = foreign(w.memmem, raw[begin:], end - begin, keys, CONTENT)
    if place == 0:
        size = TEXT
        place = foreign(w.memmem, raw[begin:], end - begin, keys[CONTENT:], TEXT)
    if place == 0:
        return 0
    at = place - w.raw + size
    if raw[at] == 32:  # a space
        at += 1
    return int(at + 1) if raw[at] == 34 else 0  # a quotation mark


def word_end(raw: Any, at: int, stop: int) -> int:
    """Where a text of plain letters is over; 0 if it is not one."""
    while at < stop and raw[at] >= 32 and raw[at] < 127 and raw[at] != 92:
        if raw[at] == 34:
            return at
        at += 1
    return 0


def line_end(raw: Any, at: int) -> int:
    return 1 if raw[at] == 13 and raw[at + 1] == 10 else 0


class _State(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in STATE)


TABLES: Shapes = {
    "state": (STATE, 1),
    "raw": ("u1", SIZE),
    "marks": ("i8", 2 * READS),
    "keys": ("u1", len(WORD_KEYS)),
    "events": (EVENT, EVENTS),
    "spans": ("i8", 2 * EVENTS),  # of the data of the first of each kind
}


class Skimmer:
    """Memory that machine code skims streams in, one at a time."""

    def __init__(self, code: bytes) -> None:
        """Raises something where code or memory cannot be mapped."""
        self._skim = mapped = Mapped(code, TABLES)
        self._state = mapped.rows("state", _State)[0]
        self._raw, self._marks, self._events, self._spans = map(mapped.view, ("raw", "marks", "events", "spans"))
        mapped.view("keys")[: len(WORD_KEYS)] = WORD_KEYS
        self._state.raw = mapped.address("raw")
        find_in_libc(self._state, C)
        self._lock = threading.Lock()

    def find(self, raw: bytes, start: int, marks: memoryview) -> tuple[int, Events] | None:
        """When the first byte of the body came, and all events of an ordinary stream."""
        size, count = len(raw), len(marks)
        if size > SIZE or not 0 < count <= 2 * READS:
            return None
        with self._lock:
            self._raw[:size] = raw
            self._marks[:count] = marks
            state = self._state
            state.size, state.reads, state.start = size, count // 2, start
            self._skim()
            if state.found <= 0:
                return None
            first_ns, spans = state.first_ns, self._spans[: 2 * state.kinds].tolist()
            found = self._events[: len(EVENT) * state.found].tolist()
        data = [raw[begin:end] for begin, end in zip(spans[::2], spans[1::2], strict=True)]
        return first_ns, Events(found[::3], found[1::3], found[2::3], data)


@functools.cache
def skimmer() -> Skimmer | None:
    """None where Python has to do it."""
    with contextlib.suppress(Exception):
        if code := code_to_map(skim, TABLES):
            return Skimmer(code)
    return None
