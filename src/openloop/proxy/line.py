"""A reply of a replica, heard as it comes: no task is woken between what is read and who passes it on."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpResponseParser
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError
from yarl import URL

KEPT_S = 2.0  # a resting connection to a replica: shorter than servers keep theirs, which would close under a request
STALE_NS = 25_000_000  # after sending: a connection that had been closed before shows it by then
LONGEST_HEAD = 64 << 10
LONGEST_LINE = 4096  # before a chunk, or after the last
MOST_WAITING = 64 << 10  # bytes of a reply that nobody has heard yet
BROKEN = (aiohttp.ClientError, HttpProcessingError)

_HEAD, _SIZE, _CHUNK, _CHUNK_END, _TRAILER, _LENGTH, _UNTIL_CLOSE, _OVER = range(8)
_HEAD_ENDS = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})((?:[ \t]*;[^\r\n]*)?[ \t]*)\r\n")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

# Of a body; and the same as it came, where that is whole chunks and nothing else. Whether it has enough for now.
Hear = Callable[[bytes, bytes], bool]


class Line(asyncio.Protocol):
    """A connection, for one request. It is aiohttp's before and afterwards, which opens, keeps and closes connections
    and reads the heads of replies; where a body ends is followed here."""

    silent = True  # not a byte of a reply has come
    status = 0
    headers: Mapping[str, str]
    error: Exception | None = None  # why it is over before its end

    def __init__(self, connection: Connection, url: URL, rest: Callable[[Connection], None]) -> None:
        assert connection.protocol is not None
        assert connection.transport is not None
        self._connection, self._url, self._let_rest = connection, url, rest
        self._resting, self._transport = connection.protocol, connection.transport
        self._transport.set_protocol(self)
        self._at = _HEAD
        self._left = 0  # of a chunk, or of all
        self._rest = b""  # of a line that is not whole yet
        self._keep = self._paused = False
        self._parts: list[bytes] = []  # came, and nobody has heard it
        self._hear: Hear | None = None
        self._news: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        return self._at == _OVER

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        lines = [f"POST {self._url.raw_path.rstrip('/')}{path} HTTP/1.1", f"Host: {self._url.host_port_subcomponent}"]
        lines += [*map(": ".join, headers.items()), f"Content-Length: {len(body)}"]
        if _FORBIDDEN.search("".join(lines)):
            raise ValueError("a header that cannot be sent on")
        self._transport.writelines([("\r\n".join(lines) + "\r\n\r\n").encode(errors="surrogateescape"), body])

    async def wait_for_head(self) -> None:
        while not self.status and not self.over:
            await self._wait()
        if not self.status and self.error is not None:
            raise self.error

    async def read(self) -> bytes:
        """What has come since; nothing: that was all."""
        while not self._parts and not self.over:
            await self._wait()
        if not self._parts and self.error is not None:
            raise self.error
        data, self._parts = b"".join(self._parts), []
        self._resume()
        return data

    async def pour(self, hear: Hear, drain: Callable[[], Awaitable[None]]) -> None:
        """Let everything be heard, to the end. Who has enough is asked again when `drain` is done."""
        while self._parts:
            data, self._parts = b"".join(self._parts), []
            if hear(data, b""):
                await drain()
        self._hear = None if self.over else hear
        self._resume()
        while not self.over:
            await self._wait()
            if self._paused:
                await drain()
                self._resume()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Whatever has not come is not wanted; the replica notices."""
        self._stop(aiohttp.ServerDisconnectedError())

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            if self._at == _HEAD:
                data = self._read_head(data)
            if data:
                self._read_body(data)
        except BROKEN as error:
            self._stop(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._resting.connection_lost(error)
        if self._at == _UNTIL_CLOSE and error is None:
            self._finish(b"")
        else:
            self._stop(aiohttp.ClientOSError(*error.args) if error else aiohttp.ServerDisconnectedError())

    def _read_head(self, data: bytes) -> bytes:
        """What follows it."""
        self.silent = False
        data, self._rest = self._rest + data, b""
        if data[:5] != b"HTTP/"[: len(data)]:
            raise BadHttpMessage("no HTTP")
        while found := _HEAD_ENDS.search(data):
            parser = HttpResponseParser(self._resting, asyncio.get_running_loop(), MOST_WAITING, read_until_eof=True)
            messages, _, _ = parser.feed_data(data[: found.end()])
            data = data[found.end() :]
            if not messages or messages[0][0].code == 101:
                raise BadHttpMessage("no reply")
            if messages[0][0].code >= 200:  # before it, others may say that it is coming
                self._begin(messages[0][0], data)
                return data if self._at != _OVER else b""
        if len(data) > LONGEST_HEAD:
            raise BadHttpMessage("no end of a head")
        self._rest = data
        return b""

    def _begin(self, head: aiohttp.http.RawResponseMessage, data: bytes) -> None:
        self.status, self.headers, self._keep = head.code, head.headers, not head.should_close
        self._left = int(head.headers.get("Content-Length", 0))
        if head.code in (204, 304):
            self._finish(data)
        elif head.chunked:
            self._at = _SIZE
        elif "Content-Length" not in head.headers:
            self._at = _UNTIL_CLOSE
        elif self._left:
            self._at = _LENGTH
        else:
            self._finish(data)
        self._wake()

    def _read_body(self, data: bytes) -> None:
        if self._at == _UNTIL_CLOSE:
            self._pass(data, b"")
        elif self._at == _LENGTH:
            part, surplus = data[: self._left], data[self._left :]
            self._left -= len(part)
            self._pass(part, b"")
            if not self._left:
                self._finish(surplus)
        else:
            found = _CHUNK_SIZE.match(data) if self._at == _SIZE and not self._rest else None
            start = found.end() if found else 0
            if found and not found[2] and 0 < int(found[1], 16) == len(data) - start - 2 and data.endswith(b"\r\n"):
                self._pass(data[start:-2], data)  # as nearly all of a stream are
            else:
                self._read_chunks(data)

    def _read_chunks(self, data: bytes) -> None:
        data, self._rest = self._rest + data, b""
        parts: list[bytes] = []
        at, over = 0, False
        try:
            while at < len(data) and not over:
                if self._at == _CHUNK:
                    parts.append(data[at : at + self._left])
                    at += len(parts[-1])
                    self._left -= len(parts[-1])
                    self._at = _CHUNK if self._left else _CHUNK_END
                    continue
                stop = data.find(b"\r\n", at, at + LONGEST_LINE)
                if stop < 0:
                    self._rest = data[at:]
                    break
                line, at = data[at : stop + 2], stop + 2
                over = self._read_line(line)
            if len(self._rest) >= LONGEST_LINE:
                raise aiohttp.ClientPayloadError
        finally:
            if parts:
                self._pass(b"".join(parts), b"")
        if over:
            self._finish(data[at:])

    def _read_line(self, line: bytes) -> bool:
        """Whether it is the last."""
        if self._at == _TRAILER:
            return line == b"\r\n"
        if self._at == _CHUNK_END:
            if line != b"\r\n":
                raise aiohttp.ClientPayloadError
            self._at = _SIZE
            return False
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise aiohttp.ClientPayloadError
        self._left = int(found[1], 16)
        self._at = _CHUNK if self._left else _TRAILER
        return False

    def _pass(self, data: bytes, chunk: bytes) -> None:
        if self._hear is not None:
            enough = self._hear(data, chunk)
        else:
            self._parts.append(data)
            enough = sum(map(len, self._parts)) > MOST_WAITING
            self._wake()
        if enough and not self._paused:
            self._paused = True
            self._transport.pause_reading()
            self._wake()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _finish(self, surplus: bytes) -> None:
        self._at, self._hear = _OVER, None
        self._resume()
        self._transport.set_protocol(self._resting)
        keep = self._keep and not surplus and not self._transport.get_write_buffer_size()
        self._let_rest(self._connection) if keep else self._connection.close()
        self._wake()

    def _stop(self, error: Exception) -> None:
        if self._at != _OVER:
            self._at, self._hear, self.error = _OVER, None, error
            self._connection.close()
            self._wake()


class Lines:
    """To replicas. A session opens and closes connections; they rest here, to be had without waiting."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._requests: dict[str, aiohttp.ClientRequest] = {}
        self._resting: dict[str, dict[Connection, asyncio.TimerHandle]] = {}  # each until it has rested too long
        self._opened_ns: dict[str, int] = {}  # how long that took, the last time

    def reach_ns(self, base: str) -> int:
        """The time in which a connection that a replica had closed shows it: two ways there and back, or more."""
        return max(2 * self._opened_ns.get(base, 0), STALE_NS)

    def take(self, base: str) -> Line | None:
        """One that rests, if there is any."""
        resting = self._resting.get(base)
        while resting:
            connection, end = resting.popitem()
            end.cancel()
            if line := self._line(base, connection):
                return line
        return None

    async def open(self, base: str) -> Line:
        request = self._requests.get(base)
        if request is None:
            request = aiohttp.ClientRequest("POST", URL(base), loop=asyncio.get_running_loop(), session=self._session)
            self._requests[base] = request
        assert self._session.connector is not None
        while True:
            began_ns = time.monotonic_ns()
            try:
                connection = await self._session.connector.connect(request, [], self._session.timeout)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError from error
            self._opened_ns[base] = time.monotonic_ns() - began_ns
            if line := self._line(base, connection):
                return line

    def close(self) -> None:
        for resting in self._resting.values():
            for connection, end in resting.items():
                end.cancel()
                connection.close()

    def _line(self, base: str, connection: Connection) -> Line | None:
        protocol = connection.protocol
        if protocol is not None and protocol.is_connected() and not protocol.should_close:
            return Line(connection, self._requests[base].url, partial(self._rest, base))
        connection.close()  # it was closed, or it spoke while nobody asked
        return None

    def _rest(self, base: str, connection: Connection) -> None:
        resting = self._resting.setdefault(base, {})

        def end() -> None:
            del resting[connection]
            connection.close()

        resting[connection] = asyncio.get_running_loop().call_later(KEPT_S, end)
