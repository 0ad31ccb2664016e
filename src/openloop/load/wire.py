"""HTTP/1.1 as a load generator needs it: where a response ends, while it comes; what it says, afterwards."""

import re
from bisect import bisect_left
from functools import cached_property, lru_cache
from itertools import accumulate


class WireError(Exception):
    """Bytes that are no HTTP response: a failed request, not a failed program."""


_HEAD, _LENGTH, _SIZE, _CHUNK, _TRAILER, _UNTIL_CLOSE = range(6)
LONGEST_HEAD = 1 << 16
LARGEST = 64 << 20  # a response: 200,000 tokens with an event each are as much
BOM = b"\xef\xbb\xbf"


def _heads_of_chunks(longest: int) -> list[bytes]:
    """How a chunk begins that has so many bytes with its head and end; nothing begins so where there is none."""
    found = [bytes(longest)] * longest
    for size in range(1, longest):
        head = b"%x\r\n" % size
        if len(head) + size + 2 < longest:
            found[len(head) + size + 2] = head
    return found


_HEADS = _heads_of_chunks(4096)
_HEADS_OF_DATA = [head + b"data: " for head in _HEADS[4:]]  # by the length without the four line ends after it


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

    @property
    def between_chunks(self) -> bool:
        return self._state == _SIZE and not self._rest

    def is_chunk(self, data: bytes) -> bool:
        """Whether this is exactly one chunk, as most reads of a stream are; then it needs not be fed."""
        size = len(data)
        if self._state == _SIZE and size < len(_HEADS) and data.startswith(_HEADS[size]) and not self._rest:
            self.size += size
            return self.size <= LARGEST
        return False

    def pass_over(self, size: int) -> None:
        """So much came, and is whole chunks."""
        self.size += size
        if self.size > LARGEST:
            raise WireError(f"the response is larger than {LARGEST >> 20} MB")

    def feed(self, data: bytes) -> bool:
        """Whether the response is complete."""
        self.pass_over(len(data))
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
                    self.keep = self.keep and at == size
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
                self.keep = self.keep and at == size  # nobody asked for what follows
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


def joined(reads: list[bytes]) -> tuple[bytes, list[int]]:
    """All bytes, and where each read ends among them."""
    return b"".join(reads), list(accumulate(map(len, reads)))


class Reply:
    """A response as it was read: its parts, and when each byte had arrived."""

    def __init__(self, raw: bytes, ends: list[int], stamps: list[int]) -> None:
        """All bytes, where each read ends among them, and when it was."""
        self._stamps, self._block_ends = stamps, ends
        start = 0
        while True:
            stop = raw.find(b"\r\n\r\n", start)
            if stop < 0:
                raise WireError("the response ended before its headers did")
            self.http_status, self.headers = _read_head(raw[start:stop])
            start = stop + 4
            if self.http_status >= 200:
                break
        self._raw, self._start = raw, start
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._in_chunks = _events_in_chunks(raw, start) if self._chunked else None

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
        return size if length is None else min(start + _length(length), size)

    @property
    def first_ns(self) -> int:
        """When the first byte of the body had arrived."""
        if self._in_chunks:
            first = self._raw.index(b"\n", self._start) + 2
        elif self.body:
            first = self._spans[1][0] - len(self._spans[0][0]) + 1
        else:
            return self._stamps[0]
        return self._stamps[bisect_left(self._block_ends, first)]

    @property
    def last_ns(self) -> int:
        return self._stamps[-1]

    def events(self) -> tuple[list[int], list[int], list[bytes]]:
        """Server-sent events: which read completed each, when that was, and its data."""
        if self._in_chunks:
            ends, data = self._in_chunks
        else:
            body_ends, data = _events(self.body)
            ends = self._raw_ends(body_ends)
        block_ends, stamps = self._block_ends, self._stamps
        blocks = [bisect_left(block_ends, end) for end in ends]
        if b"" in data:  # as of a comment that keeps the connection alive
            blocks = [block for block, each in zip(blocks, data, strict=True) if each]
            data = [each for each in data if each]
        return blocks, [stamps[block] for block in blocks], data

    def _raw_ends(self, ends: list[int]) -> list[int]:
        """Where so many bytes of the body end in what was read."""
        parts, raw_ends = self._spans
        body_ends = list(accumulate(map(len, parts)))
        spans = [bisect_left(body_ends, end) for end in ends]
        return [end + raw_ends[span] - body_ends[span] for end, span in zip(ends, spans, strict=True)]


def _events_in_chunks(raw: bytes, start: int) -> tuple[list[int], list[bytes]] | None:
    """Where each event ends, and its data, if each is a line of data in a chunk of its own, as in most streams."""
    chunks = raw[start:].split(b"\n\n\r\n")
    if chunks.pop() != b"0\r\n\r\n" or not chunks:
        return None
    sizes = list(map(len, chunks))
    if max(sizes) >= len(_HEADS_OF_DATA):
        return None
    heads = [_HEADS_OF_DATA[size] for size in sizes]
    if not all(map(bytes.startswith, chunks, heads)):
        return None
    data = [chunk[len(head) :] for chunk, head in zip(chunks, heads, strict=True)]
    lines = b"".join(data)
    if b"\n" in lines or b"\r" in lines:
        return None
    return list(accumulate([size + 4 for size in sizes], initial=start - 2))[1:], data


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


def _chunks(raw: bytes, at: int) -> tuple[list[bytes], list[int]]:
    """The data of a chunked body, as far as it came, and where each chunk of it ends."""
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
