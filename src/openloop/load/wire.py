"""HTTP/1.1 as a load generator needs it: where a response ends, while it comes."""

import contextlib
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


class WireError(Exception):
    """Bytes that are no HTTP response: a failed request, not a failed program."""


_HEAD, _LENGTH, _SIZE, _CHUNK, _TRAILER, _UNTIL_CLOSE = range(6)
LONGEST_HEAD = 1 << 16
LISTS = ("connection", "transfer-encoding")  # headers that go on where they are given again
LARGEST = 64 << 20  # a response: 200,000 tokens with an event each are as much


def _heads_of_chunks(longest: int) -> list[bytes]:
    """How a chunk begins that has so many bytes with its head and end; nothing begins so where there is none."""
    found = [bytes(longest)] * longest
    for size in range(1, longest):
        head = b"%x\r\n" % size
        if len(head) + size + 2 < longest:
            found[len(head) + size + 2] = head
    return found


HEADS = _heads_of_chunks(4096)


@dataclass(slots=True, eq=False)
class Framing:
    """Follows a response as it arrives, just closely enough to know its last byte."""

    _state: int = _HEAD
    _left: int = 0
    _rest: bytes = b""  # of a line that is not whole yet
    keep: bool = True  # the connection may be used again
    size: int = 0  # of what came so far
    end: int = 0  # of a complete response, among that

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
        if self._state == _SIZE and size < len(HEADS) and data.startswith(HEADS[size]) and not self._rest:
            self.size += size
            return self.size <= LARGEST
        return False

    def pass_over(self, size: int) -> None:
        """So much came, and is whole chunks."""
        self.size += size
        if self.size > LARGEST:
            raise WireError(f"the response is larger than {LARGEST >> 20} MB: it was not read to its end")

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
                    return self._ends(size - at)
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
                return self._ends(size - at)

    def _ends(self, more: int) -> bool:
        """It is complete, and so much follows, which nobody asked for."""
        self.end = self.size - more
        self.keep = self.keep and not more
        return True

    def _line(self, line: bytes) -> bool:
        """A head, the size of a chunk or a line after the last; whether it ends the response."""
        if self._state == _HEAD:
            return self._head(line)
        if self._state == _TRAILER:
            return not line
        size = chunk_size(line)
        self._state, self._left = (_CHUNK, size + 2) if size else (_TRAILER, 0)
        return False

    def _head(self, head: bytes) -> bool:
        status, headers = read_head(head)
        if status < 200:
            return False  # the real one follows
        self.keep = "close" not in listed(headers.get("connection", "")) and not head.startswith(b"HTTP/1.0")
        if status in (204, 304):
            return True
        if comes_in_chunks(headers):
            self._state = _SIZE
        elif "content-length" in headers:
            self._state, self._left = _LENGTH, length_of(headers["content-length"])
            return self._left == 0
        else:
            self._state, self.keep = _UNTIL_CLOSE, False
        return False


@lru_cache(64)
def opens_chunks(head: bytes) -> bool:
    """Whether a head is whole, chunks follow it, and the connection stays open after them."""
    framing = Framing()
    with contextlib.suppress(WireError):
        return not framing.feed(head) and framing.between_chunks and framing.keep
    return False


def is_good(head: bytes) -> bool:
    """Whether it begins a success."""
    return head[9:10] == b"2"


def chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].rstrip(b" \t")  # older servers fill it up with blanks
    if not size.isalnum() or len(size) > 15:  # int() would take signs, spaces and underscores as well
        raise WireError(f"the response is broken: {line[:40]!r} is no size of a chunk")
    try:
        return int(size, 16)
    except ValueError:
        raise WireError(f"the response is broken: {line[:40]!r} is no size of a chunk") from None


def length_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise WireError(f"the response is broken: {text[:40]!r} is no content-length")
    return int(text)


@lru_cache(64)  # servers say the same again and again
def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, their names in small letters."""
    first, *lines = head.decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/1\.[01] (\d{3})", first)
    if match is None:
        raise WireError(f"the server does not speak HTTP: it said {first[:600]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]},{value}" if name in LISTS and name in headers else value
    return int(match[1]), headers


def listed(header: str) -> list[str]:
    return [word for each in header.lower().split(",") if (word := each.strip())]


def comes_in_chunks(headers: Mapping[str, str]) -> bool:
    """Whether a body does; what else was done to it on the way nobody asked for. `identity` is nothing."""
    return _is_chunked(headers.get("transfer-encoding", ""))


@lru_cache(64)
def _is_chunked(told: str) -> bool:
    codings = set(listed(told)) - {"identity"}
    if codings - {"chunked"}:
        raise WireError(f"the response is sent as {told[:40]!r}, which nobody asked for: only chunked is read")
    return bool(codings)


# Of an answer as it was read: where each read ends among all bytes, and when that was, in turns.
Marks = bytes
MARK = 16  # bytes of each such pair


def joined(reads: Sequence[bytes], stamps: Iterable[int]) -> tuple[bytes, Marks]:
    """All bytes, and their marks."""
    ends = accumulate(map(len, reads))
    return b"".join(reads), array("q", [each for mark in zip(ends, stamps, strict=True) for each in mark]).tobytes()


def encode_head(method: str, path: str, host: str, headers: dict[str, str]) -> bytes:
    """The head of a request, up to what changes from one to the next."""
    lines = [f"{method} {path or '/'} HTTP/1.1", *map(": ".join, ({"Host": host} | headers).items()), ""]
    return "\r\n".join(lines).encode("latin-1")
