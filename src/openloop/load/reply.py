"""What a response says, once it is read at leisure; and when each part of it had arrived."""

import contextlib
import functools
from array import array
from bisect import bisect_left
from functools import cached_property
from itertools import accumulate

import msgspec

from openloop.load.skim import FIRST, TABLES, WIDTH, Skimmed, Skimmer, note_events
from openloop.load.wire import Marks, WireError, chunk_size, comes_in_chunks, length_of, read_head
from openloop.native.kept import code_to_map
from openloop.said import STARTS, split_events


class Events(msgspec.Struct, gc=False):
    """Server-sent events: when each was complete, never before the one ahead of it; and of each run of them its data,
    and a row that ends with how many there are, how many reads completed them, the first and the last of these.

    That is the data of its first event; the others say the same but for a word.
    """

    stamps: "array[int]"
    data: list[bytes]
    runs: list[tuple[int, int, int, int, int, int]]


class Reply:
    """A response as it was read: its parts, and when each byte had arrived. Where every word is wanted, each event is a
    run of its own. One whose events a worker has found is only a head and these."""

    def __init__(self, raw: bytes, marks: Marks | Skimmed, *, every_word: bool = False) -> None:
        if isinstance(marks, tuple):
            self.http_status, self.headers = read_head(raw[:-4])
            self._take(marks)
            return
        self._marks = memoryview(marks).cast("q")
        start = 0
        while True:
            stop = raw.find(b"\r\n\r\n", start)
            if stop < 0:
                raise WireError("the response ended before its headers did")
            self.http_status, self.headers = read_head(raw[start:stop])
            start = stop + 4
            if self.http_status >= 200:
                break
        self._raw, self._start = raw, start
        self._chunked = comes_in_chunks(self.headers)
        finder = skimmer() if self._chunked else None
        self._take(finder.find(raw, start, marks, apart=every_word) if finder else None)

    def _take(self, skimmed: Skimmed | None) -> None:
        self._noted = array("q", skimmed[0]) if skimmed else None
        self._said = skimmed[1] if skimmed else b""

    @property
    def streams(self) -> bool:
        """Whether it is events, whatever it is said to be."""
        return self._noted is not None or self.body.startswith(STARTS)

    @cached_property
    def _spans(self) -> tuple[list[bytes], list[int]]:
        """The parts of the body, and where each ends in what was read."""
        if self._chunked:
            return _chunks(self._raw, self._start)
        end = self._end(self._start, len(self._raw))
        return [self._raw[self._start : end]], [end]

    @cached_property
    def body(self) -> bytes:
        return b"".join(self._spans[0])

    def _end(self, start: int, size: int) -> int:
        """Of a body that is not in chunks: what follows its length is not part of it."""
        length = self.headers.get("content-length")
        return size if length is None else min(start + length_of(length), size)

    @property
    def first_ns(self) -> int:
        """When the first byte of the body had arrived."""
        if self._noted:
            return self._noted[1]
        if not self.body:
            return self._marks[1]
        first = self._spans[1][0] - len(self._spans[0][0]) + 1
        return self._marks[2 * self._blocks([first])[0] + 1]

    def events(self) -> Events:
        if self._noted:
            start = FIRST + self._noted[2]
            runs = list(zip(*[iter(self._noted[start:])] * WIDTH, strict=True))
            return Events(self._noted[FIRST:start], self._said.split(b"\n"), runs)
        ends, data = split_events(self.body)
        blocks = self._blocks(self._raw_ends(ends))
        if b"" in data:  # as of a comment that keeps the connection alive
            blocks = [block for block, each in zip(blocks, data, strict=True) if each]
            data = [each for each in data if each]
        stamps = array("q", accumulate([self._marks[2 * block + 1] for block in blocks], max))
        return Events(stamps, data, [(0, 0, 1, 1, block, block) for block in blocks])

    def _blocks(self, ends: list[int]) -> list[int]:
        """The reads that so many bytes were complete with."""
        block_ends = self._marks[::2].tolist()
        return [bisect_left(block_ends, end) for end in ends]

    def _raw_ends(self, ends: list[int]) -> list[int]:
        """Where so many bytes of the body end in what was read."""
        parts, raw_ends = self._spans
        body_ends = list(accumulate(map(len, parts)))
        spans = [bisect_left(body_ends, end) for end in ends]
        return [end + raw_ends[span] - body_ends[span] for end, span in zip(ends, spans, strict=True)]


@functools.cache
def skimmer() -> Skimmer | None:
    """None where Python has to do it."""
    with contextlib.suppress(Exception):
        if code := code_to_map(note_events, TABLES):
            return Skimmer(code)
    return None


def _chunks(raw: bytes, at: int) -> tuple[list[bytes], list[int]]:
    """The data of a chunked body, as far as it came, and where each chunk of it ends."""
    spans: list[bytes] = []
    ends: list[int] = []
    while True:
        stop = raw.find(b"\r\n", at)
        try:
            size = chunk_size(raw[at:stop]) if stop >= 0 else 0
        except WireError:  # whoever followed it as it came has said so
            size = 0
        if not size:
            return spans, ends
        spans.append(raw[stop + 2 : stop + 2 + size])
        ends.append(stop + 2 + len(spans[-1]))
        at = stop + 4 + size
