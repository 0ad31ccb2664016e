"""HTTP/1.1 as a load generator needs it: where a response ends, while it comes; what it says, afterwards."""

import re
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add

__all__ = ["LARGEST", "Framing", "Reply", "WireError", "encode_head"]


class WireError(Exception):
    """Bytes that are no HTTP response: a failed request, not a failed program."""


_HEAD, _LENGTH, _SIZE, _CHUNK, _TRAILER, _UNTIL_CLOSE = range(6)
LONGEST_HEAD = 1 << 16
LARGEST = 64 << 20  # a response: 200,000 tokens with an event each are as much
BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n")


class Framing:
    """Follows a response as it arrives, just closely enough to know its last byte."""

    __slots__ = ("_left", "_rest", "_state", "keep", "size")

    def __init__(self) -> None:
        self._state = _HEAD
        self._left = 0
        self._rest = b""  # of a line that is not whole yet
        self.keep = True  # the connection may be used again
        self.size = 0  # of what came so far

    @property
    def until_close(self) -> bool:
        """Whether the end of the connection is the end of the response."""
        return self._state == _UNTIL_CLOSE

    def feed(self, data: bytes) -> bool:
        """Whether the response is complete."""
        self.size += len(data)
        if self.size > LARGEST:
            raise WireError(f"the response is larger than {LARGEST >> 20} MB")
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


@lru_cache(64)  # servers say the same again and again
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
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            spans, self._raw_ends = _chunks(raw, start)
        else:
            spans, self._raw_ends = [raw[start : self._end(start, len(raw))]], [self._end(start, len(raw))]
        self.body = b"".join(spans)
        self._body_ends = list(accumulate(map(len, spans)))

    def _end(self, start: int, size: int) -> int:
        """Of a body that is not in chunks: what follows its length is not part of it."""
        length = self.headers.get("content-length")
        return size if length is None else min(start + _length(length), size)

    @property
    def first_ns(self) -> int:
        """When the first byte of the body had arrived."""
        if not self.body:
            return self._stamps[0]
        return self._stamps[bisect_left(self._block_ends, self._raw_ends[0] - self._body_ends[0] + 1)]

    @property
    def last_ns(self) -> int:
        return self._stamps[-1]

    def _blocks(self, ends: list[int]) -> list[int]:
        """For the first so many bytes of the body each, which read completed them."""
        body_ends, raw_ends, block_ends = self._body_ends, self._raw_ends, self._block_ends
        if ends != body_ends:  # they are the same where every event is a chunk
            spans = [bisect_left(body_ends, end) for end in ends]
            raw_ends = [end + raw_ends[span] - body_ends[span] for end, span in zip(ends, spans, strict=True)]
        return [bisect_left(block_ends, end) for end in raw_ends]

    def events(self) -> tuple[list[int], list[int], list[bytes]]:
        """Server-sent events: which read completed each, when that was, and its data."""
        ends, data = _events(self.body)
        blocks, stamps = self._blocks(ends), self._stamps
        if b"" in data:  # as of a comment that keeps the connection alive
            blocks = [block for block, each in zip(blocks, data, strict=True) if each]
            data = [each for each in data if each]
        return blocks, [stamps[block] for block in blocks], data


def _events(body: bytes) -> tuple[list[int], list[bytes]]:
    """Where each event ends, and its data."""
    plain = _plain(body)
    if plain is not None:
        return list(accumulate([len(data) + 8 for data in plain])), plain
    feeds, returns = body.count(b"\n"), body.count(b"\r")
    if body.startswith(BOM) or (returns and not feeds == returns == body.count(b"\r\n")):
        return _scan(body)
    gap = b"\r\n\r\n" if returns else b"\n\n"
    pieces = body.split(gap)
    pieces.pop()  # what follows the last whole event
    return list(accumulate([len(piece) + len(gap) for piece in pieces])), [_data(piece) for piece in pieces]


def _plain(body: bytes) -> list[bytes] | None:
    """The data of events, if each is `data: `, a line, and an empty line, as most streams have it."""
    if not (body.startswith(b"data: ") and body.endswith(b"\n\n")):
        return None
    found = body[6:-2].split(b"\n\ndata: ")
    lines = b"".join(found)
    return None if b"\n" in lines or b"\r" in lines else found


def _data(event: bytes) -> bytes:
    """The data lines of an event."""
    name, _, data = event.partition(b"\ndata: ")
    if data and name[:6] == b"event:" and b"\n" not in name and b"\n" not in data:
        return data
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _scan(body: bytes) -> tuple[list[int], list[bytes]]:
    """Events line by line, however lines end."""
    ends: list[int] = []
    found: list[bytes] = []
    begun = at = len(BOM) if body.startswith(BOM) else 0
    for line in re.finditer(rb"\r\n|\n|\r", body):
        if line.start() == at:  # an empty one
            ends.append(line.end())
            found.append(_data(body[begun:at]))
            begun = line.end()
        at = line.end()
    return ends, found


def _chunks(raw: bytes, start: int) -> tuple[list[bytes], list[int]]:
    """The data of a chunked body, as far as it came, and where each chunk of it ends."""
    parts = _LINE_END.split(raw[start:])  # sizes and data in turn, where no data has such a line end
    lengths = list(map(len, parts))
    try:
        sizes = list(map(int, parts[:-3:2], repeat(16)))
    except ValueError:
        sizes = [0]
    if parts[-3:] != [b"0", b"", b""] or sizes != lengths[1:-3:2] or 0 in sizes:
        return _chunks_one_by_one(raw, start)
    ends = list(accumulate(lengths))[1:-3:2]
    return parts[1:-3:2], list(map(add, ends, range(start + 2, start + 2 + 4 * len(ends), 4)))


def _chunks_one_by_one(raw: bytes, at: int) -> tuple[list[bytes], list[int]]:
    spans: list[bytes] = []
    ends: list[int] = []
    while True:
        stop = raw.find(b"\r\n", at)
        try:
            size = _chunk_size(raw[at:stop]) if stop >= 0 else 0
        except WireError:  # whoever followed it as it came has said so
            size = 0
        if not size:
            return spans, ends
        spans.append(raw[stop + 2 : stop + 2 + size])
        ends.append(stop + 2 + len(spans[-1]))
        at = stop + 4 + size


def encode_head(method: str, path: str, host: str, headers: dict[str, str]) -> bytes:
    """The head of a request, up to what changes from one to the next."""
    lines = [f"{method} {path or '/'} HTTP/1.1", f"Host: {host}", *map(": ".join, headers.items()), ""]
    return "\r\n".join(lines).encode("latin-1")
