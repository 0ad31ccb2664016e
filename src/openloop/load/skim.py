"""The events of ordinary streams, found by machine code: when each was complete, and which say nothing new.

Most events of a stream are the same but for a word. One that differs from the one before it in nothing else needs not
be decoded again: whether it has words, and what else it says, is known. What counts as a word is the text of a key that
ends in `content` or `text`.

This is Python that LLVM compiles, and it is run as machine code only. Where that cannot be, or a stream is not
ordinary, all events are found and decoded by Python, with the same result.
"""

import sys
import threading
from typing import Any

from openloop.load.wire import MARK, Marks
from openloop.native import foreign, whole
from openloop.native.mapped import Mapped, Shapes, address_of, find_in_libc

C = ("memchr", "memcmp", "memcpy", "memmem")
# How many bytes there are, where in memory, in how many reads; where the body begins; how many events were found in all
# of it, or -1, in how many runs; when its first byte had come; how much is noted, and said in these notes; and where
# what was found is noted, counted from 1, or 0 where it is not. Where events are to be apart, each is a run.
SKIM = ("size", "raw", "reads", "start", "apart", "found", "runs", "first_ns", "noted", "said", "place")
# Where the data of its first event are, and how many events there are; how many reads completed them, the first and the
# last of these.
RUN = ("begin", "end", "size", "reads", "first", "last")
WIDTH = len(RUN)
NOTE = 3  # numbers before what is noted of a stream: how much it is, and from where to where its data are said
FIRST = 3  # numbers in it, before times and runs
WORD_KEYS = b'content":text":'
CONTENT, TEXT = 9, 6  # letters of these keys
EVENTS = 1 << 12
NOTES = 1 << 16
SAID = 1 << 20
DATA = 6  # letters before it: `data: `
DIGITS = 7

# What is to be known of an ordinary stream, in a form to be sent. Numbers: how many reads it took, when the first byte
# of its body had come, how many events there are; when each was complete, never before the one ahead of it; each RUN.
# Bytes: of each run the data of its first event, in a line; the others say the same but for a word.
Skimmed = tuple[bytes, bytes]


def reads_of(skimmed: Skimmed) -> int:
    return int.from_bytes(skimmed[0][:8], sys.byteorder)


def note_events(state: Any, raw: Any, marks: Any, keys: Any, stamps: Any, runs: Any, notes: Any, said: Any) -> None:
    """Note what is to be known of an ordinary stream."""
    w = state[0]
    w.place = 0
    skim(state, raw, marks, keys, stamps, runs)
    size = NOTE + FIRST + w.found + WIDTH * w.runs
    if w.found <= 0 or w.noted + size > len(notes) or w.said + w.size > len(said):
        return
    w.place = w.noted + 1
    at = w.noted
    notes[at] = size
    notes[at + 1] = w.said
    at += NOTE
    notes[at] = w.reads
    notes[at + 1] = w.first_ns
    notes[at + 2] = w.found
    at += FIRST
    for place in range(w.found):
        notes[at + place] = stamps[place]
    at += w.found
    for place in range(w.runs):
        run = runs[place]
        notes[at] = run.begin
        notes[at + 1] = run.end
        notes[at + 2] = run.size
        notes[at + 3] = run.reads
        notes[at + 4] = run.first
        notes[at + 5] = run.last
        at += WIDTH
        if place > 0:
            said[w.said] = 10
            w.said += 1
        foreign(w.memcpy, said[w.said :], raw[run.begin :], run.end - run.begin)
        w.said += run.end - run.begin
    notes[w.noted + 2] = w.said
    w.noted += size


def skim(state: Any, raw: Any, marks: Any, keys: Any, stamps: Any, runs: Any) -> None:
    """All events, if each is a line of data in a chunk of its own, and nothing is missing."""
    w = state[0]
    w.found = -1
    w.runs = 0
    at = w.start
    block = 0
    latest = 0
    count = 0
    before = 0  # bytes of the latest run's data that come before a word, if there is one, and after it
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
        latest = max(latest, marks[2 * block + 1])
        stamps[count] = latest
        begin = at + DATA
        end = stop - 2
        if before and is_like(w, raw, runs, begin, end, before, after):
            run = runs[w.runs - 1]
            run.size += 1
            run.reads += 1 if block > run.last else 0
            run.last = block
        else:
            run = runs[w.runs]
            run.begin = begin
            run.end = end
            run.size = 1
            run.reads = 1
            run.first = block
            run.last = block
            w.runs += 1
            word = word_of(w, raw, keys, begin, end) if w.apart == 0 else 0
            over = word_end(raw, word, end) if word else 0
            before = word - begin if over > word else 0
            after = end - over
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


def is_like(w: Any, raw: Any, runs: Any, begin: int, end: int, before: int, after: int) -> int:
    """Whether it is the same as the latest run but for a word."""
    if end - begin <= before + after:
        return 0
    run = runs[w.runs - 1]
    if whole(foreign(w.memcmp, raw[begin:], raw[run.begin :], before)) != 0:
        return 0
    if whole(foreign(w.memcmp, raw[end - after :], raw[run.end - after :], after)) != 0:
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
    """Where a text is over; 0 if something in it is wrong, or takes more than a look."""
    while at < stop and raw[at] >= 32:
        if raw[at] == 34:
            return at
        size = letter_size(raw, at)
        if size == 0:
            return 0
        at += size
    return 0


def letter_size(raw: Any, at: int) -> int:
    """Bytes of a letter, by itself or after a backslash; 0 if it is none, or is written as a number."""
    first = raw[at]
    second = raw[at + 1]
    if first == 92:
        named = second == 98 or second == 102 or second == 110 or second == 114 or second == 116  # as \\n is
        return 2 if named or second == 34 or second == 47 or second == 92 else 0
    if first < 128:
        return 1
    size = 2 + (1 if first >= 224 else 0) + (1 if first >= 240 else 0)
    least = 160 if first == 224 else 144 if first == 240 else 128  # or it could be written in fewer
    most = 159 if first == 237 else 143 if first == 244 else 191  # or it is half of one, or none that there is
    if first < 194 or first > 244 or second < least or second > most:
        return 0
    for place in range(2, size):
        if raw[at + place] < 128 or raw[at + place] > 191:
            return 0
    return size


def line_end(raw: Any, at: int) -> int:
    return 1 if raw[at] == 13 and raw[at + 1] == 10 else 0


def hex_digit(letter: int) -> int:
    if letter >= 48 and letter <= 57:
        return letter - 48
    small = letter | 32
    if small >= 97 and small <= 102:
        return small - 87
    return -1


# What `note_events` works on besides an answer.
OWN: Shapes = {
    "keys": ("u1", len(WORD_KEYS)),
    "stamps": ("i8", EVENTS),
    "runs": (RUN, EVENTS),
    "notes": ("i8", NOTES),
    "said": ("u1", SAID),
}
TABLES: Shapes = {"state": ((*SKIM, *C), 1), "raw": ("u1", 0), "marks": ("i8", 0), **OWN}


class Notes:
    """Of streams, as machine code writes them into its tables."""

    def __init__(self, mapped: Mapped) -> None:
        self._notes, self._said = mapped.view("notes"), mapped.view("said")
        mapped.view("keys")[: len(WORD_KEYS)] = WORD_KEYS

    def read(self, place: int) -> Skimmed:
        """What is noted at a place, which is counted from 1."""
        at = place - 1
        size, begin, end = self._notes[at : at + NOTE].tolist()
        return bytes(self._notes[at + NOTE : at + size]), bytes(self._said[begin:end])


class Skimmer:
    """Memory that machine code skims streams in, one at a time."""

    def __init__(self, code: bytes) -> None:
        """Raises something where code or memory cannot be mapped."""
        self._note_events = mapped = Mapped(code, TABLES)
        self._state = mapped.rows("state")[0]
        self._notes = Notes(mapped)
        find_in_libc(self._state, C)
        self._lock = threading.Lock()

    def find(self, raw: bytes, start: int, marks: Marks, *, apart: bool = False) -> Skimmed | None:
        """All events of an ordinary stream, whose body starts there."""
        state, where, reads = self._state, address_of(raw), len(marks) // MARK
        if not reads:
            return None
        with self._lock:
            self._note_events.put("raw", where, len(raw))
            self._note_events.put("marks", address_of(marks), 2 * reads)
            state.size, state.raw, state.reads, state.start, state.apart = len(raw), where, reads, start, apart
            state.noted = state.said = 0
            self._note_events()
            return self._notes.read(state.place) if state.place else None
