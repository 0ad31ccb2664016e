"""HTTP/1.1 as a load generator needs it: where a response ends, while it comes; what it says, afterwards."""

import bisect
import re
from itertools import accumulate

__all__ = ["Framing", "Reply", "WireError", "encode_post"]


class WireError(Exception):
    """Bytes that are no HTTP response: a failed request, not a failed program."""


_HEAD, _LENGTH, _SIZE, _CHUNK, _TRAILER, _UNTIL_CLOSE = range(6)
LONGEST_HEAD = 1 << 16


class Framing:
    """Follows a response as it arrives, just closely enough to know its last byte."""

    __slots__ = ("_left", "_rest", "_state", "keep")

    def __init__(self) -> None:
        self._state = _HEAD
        self._left = 0
        self._rest = b""  # of a line that is not whole yet
        self.keep = True  # the connection may be used again

    @property
    def until_close(self) -> bool:
        """Whether the end of the connection is the end of the response."""
        return self._state == _UNTIL_CLOSE

    def feed(self, data: bytes) -> bool:
        """Whether the response is complete."""
        if self._state == _SIZE and not self._rest:
            stop = data.find(b"\r\n", 0, 10)
            if stop > 0 and stop + 4 + _chunk_size(data[:stop]) == len(data) and data[:1] != b"0":
                return False  # one whole chunk, as most reads of a stream are
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        while True:
            if self._state == _CHUNK or self._state == _LENGTH:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                if self._left:
                    return False
                if self._state == _LENGTH:
                    return True
                self._state = _SIZE
            if self._state == _UNTIL_CLOSE:
                return False
            ends = b"\r\n\r\n" if self._state == _HEAD else b"\r\n"
            stop = data.find(ends, at)
            if stop < 0:
                self._rest = data[at:]
                if len(self._rest) > LONGEST_HEAD:
                    raise WireError("the response has no end to its headers")
                return False
            line, at = data[at:stop], stop + len(ends)
            if self._line(line):
                return True

    def _line(self, line: bytes) -> bool:
        """A head, the size of a chunk or a line after the last; whether it ends the response."""
        if self._state == _HEAD:
            return self._head(line)
        if self._state == _TRAILER:
            return not line
        size = _chunk_size(line)
        self._state, self._left = (_CHUNK, size + 2) if size else (_TRAILER, 0)
        return False

    def _head(self, head: bytes) -> bool:
        status, headers = _read_head(head)
        if status < 200:
            return False  # the real one follows
        named = [each.strip() for each in headers.get("connection", "").lower().split(",")]
        self.keep = "close" not in named and not head.startswith(b"HTTP/1.0")
        if status in (204, 304):
            return True
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._state = _SIZE
        elif "content-length" in headers:
            self._state, self._left = _LENGTH, _length(headers["content-length"])
            return self._left == 0
        else:
            self._state, self.keep = _UNTIL_CLOSE, False
        return False


def _chunk_size(line: bytes) -> int:
    size = line if b";" not in line else line.partition(b";")[0].strip()
    if not size.isalnum() or len(size) > 15:  # int() would take signs, spaces and underscores as well
        raise WireError(f"the response is broken: {line[:40]!r} is no size of a chunk")
    try:
        return int(size, 16)
    except ValueError:
        raise WireError(f"the response is broken: {line[:40]!r} is no size of a chunk") from None


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise WireError(f"the response is broken: {text[:40]!r} is no content-length")
    return int(text)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, their names in small letters."""
    first, *lines = head.decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/1\.[01] (\d{3})", first)
    if match is None:
        raise WireError(f"the server does not speak HTTP: it said {first[:60]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(match[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


class Reply:
    """A response as it was read, block by block: its parts, and when each byte had arrived."""

    def __init__(self, blocks: list[bytes], stamps: list[int]) -> None:
        self._stamps = stamps
        self._block_ends = list(accumulate(map(len, blocks)))
        raw = b"".join(blocks)
        start = 0
        while True:
            stop = raw.find(b"\r\n\r\n", start)
            if stop < 0:
                raise WireError("the response ended before its headers did")
            self.http_status, self.headers = _read_head(raw[start:stop])
            start = stop + 4
            if self.http_status >= 200:
                break
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        spans = _chunks(raw, start) if chunked else [(start, self._end(start, len(raw)))]
        self.body = b"".join([raw[a:b] for a, b in spans])
        self._raw_starts = [a for a, _ in spans]
        self._body_starts = [0, *accumulate(b - a for a, b in spans)]

    def _end(self, start: int, size: int) -> int:
        """Of a body that is not in chunks: what follows its length is not part of it."""
        length = self.headers.get("content-length")
        return size if length is None else min(start + _length(length), size)

    @property
    def first_ns(self) -> int:
        """When the first byte of the body had arrived."""
        return self._stamps[0] if not self.body else self.stamp(0)

    @property
    def last_ns(self) -> int:
        return self._stamps[-1]

    def stamp(self, place: int) -> int:
        """When the byte at this place of the body had arrived."""
        return self._stamps[self._block(place)]

    def _block(self, place: int) -> int:
        span = bisect.bisect_right(self._body_starts, place, 0, len(self._raw_starts)) - 1
        raw = self._raw_starts[span] + place - self._body_starts[span]
        return bisect.bisect_right(self._block_ends, raw)

    def events(self) -> list[tuple[int, int, bytes]]:
        """Server-sent events: which read completed it, when that was, and its data."""
        found = []
        body, stamps = self.body, self._stamps
        if b"\r\n\r\n" in body:
            pieces, gap = body.split(b"\r\n\r\n"), 4
        else:
            pieces, gap = body.split(b"\n\n"), 2
        pieces.pop()  # what follows the last whole event
        starts, raws, ends = self._body_starts, self._raw_starts, self._block_ends
        end = span = block = 0
        for event in pieces:
            end += len(event) + gap
            while starts[span + 1] < end:
                span += 1
            raw = raws[span] + end - starts[span]
            while ends[block] < raw:
                block += 1
            data = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data(event)
            if data is not None:
                found.append((block, stamps[block], data))
        return found


def _data(event: bytes) -> bytes | None:
    """The data lines of an event; None where it has none, as a comment that keeps the connection alive."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _chunks(raw: bytes, at: int) -> list[tuple[int, int]]:
    """Where the data of a chunked body lies, as far as it came."""
    spans: list[tuple[int, int]] = []
    while True:
        stop = raw.find(b"\r\n", at)
        if stop < 0:
            return spans
        size = _chunk_size(raw[at:stop])
        if not size:
            return spans
        spans.append((stop + 2, min(stop + 2 + size, len(raw))))
        at = stop + 4 + size


def encode_post(path: str, host: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1") + body
