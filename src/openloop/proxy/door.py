"""The side of clients: who may come in, how much they may bring, and how long they may take over it."""

import asyncio
import hmac
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.http import RawRequestMessage

from openloop.errors import SpecError
from openloop.proxy.config import ProxySpec
from openloop.units import is_loopback, parse_seconds

BACKLOG = 4096
IDLE_S = 75.0  # a connection that asks nothing
LINGER_S = 1.0  # what a client goes on sending after it was refused is read for so long
BAD = "bad request"
TOO_SLOW = "the request did not come in time"
LATE = (
    f"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: {len(TOO_SLOW)}\r\n\r\n{TOO_SLOW}".encode()
)


class Keeper(Protocol):
    """Who is behind the door. `begin` does what needs no waiting, before there is a task for a request; `handle` gets
    what it gave, or `drop` where the client has gone meanwhile. `refuse` counts whom the door has sent away."""

    def begin(self, request: web.BaseRequest) -> Any: ...
    def refuse(self, why: str) -> None: ...
    def drop(self, errand: Any) -> None: ...
    async def handle(self, request: web.BaseRequest, errand: Any) -> web.StreamResponse: ...


class Refusal(Exception):  # noqa: N818
    """A request that is not understood or not allowed: it is answered, and is no row."""

    def __init__(self, status: int, why: str, message: str) -> None:
        super().__init__(message)
        self.status, self.why = status, why


def said(status: int, message: str, *, wrong: bool = True) -> web.Response:
    """In the form that OpenAI's clients read."""
    body = {"error": {"message": message, "type": "proxy_error", "code": status}} if wrong else {"status": message}
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


class _Visitor(web.RequestHandler):
    """A connection whose requests must be here in time, from their first byte to the end of their head."""

    __slots__ = ("asking", "begun", "door", "errand", "late")

    def __init__(self, door: "Door", **how: Any) -> None:
        super().__init__(door, loop=asyncio.get_running_loop(), **how)
        self.door = door
        self.errand: Any = None  # begun, and nobody waits for it yet
        self.late: asyncio.TimerHandle | None = None
        self.begun = self.asking = False  # a head has begun; it is here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait(IDLE_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.asking:
            return
        came = getattr(self, "_waiter", None) and getattr(self, "_messages", None)  # aiohttp's own: if it has them
        if came and isinstance(came[0][0], RawRequestMessage):
            self.door.begin(self, *came[0])  # before the task of this connection is woken
        elif not self.begun:
            self.begun = True
            self._wait(self.door.slowest_s, self._give_up)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Whoever takes a body calls it, paused or not."""
        if getattr(self, "_reading_paused", True):
            super().resume_reading(resume_parser)

    def head_came(self) -> None:
        self.begun, self.asking = False, True
        self._forget()

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self._forget()
        self.late = asyncio.get_running_loop().call_later(seconds, then)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        self.door.keeper.drop(self.errand)
        self.errand = None
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _give_up(self) -> None:
        self.late = None
        if self.transport is not None and not self.asking:
            self.door.keeper.refuse("too slow")
            self.transport.write(LATE)
            self.transport.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        if status >= 500:
            self.log_exception(exc_info=exc)
        else:
            self.door.keeper.refuse(BAD)
        if request.writer.output_size > 0:
            raise ConnectionResetError
        response = said(status, "the proxy failed" if status >= 500 else "the request is no HTTP that makes sense")
        response.force_close()
        return response

    def log_exception(self, *_: Any, exc_info: BaseException | None = None) -> None:
        """A line without the error's own words, which may be of a header or a prompt."""
        at = exc_info.__traceback__ if exc_info else None
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f" in {Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno}" if at else ""
        self.logger.error("a request failed in the proxy: %s%s", type(exc_info).__name__, where)


class Door(web.Server):
    """Listens; `check` and `read_body` refuse whom they must."""

    def __init__(self, keeper: Keeper, spec: ProxySpec) -> None:
        host, port = spec.address()
        self._socket = _listen(host, port, spec.listen)
        super().__init__(self._answer, request_factory=self._make, handler_cancellation=True)  # type: ignore[arg-type]
        self.keeper, self._spec, self._token = keeper, spec, spec.token()
        self._local = is_loopback(host)
        self.slowest_s = parse_seconds(spec.slowest)
        self.closing = False

    def __call__(self) -> web.RequestHandler:
        return _Visitor(
            self,
            access_log=None,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            max_line_size=self._spec.largest_header,
            max_field_size=self._spec.largest_header,
            auto_decompress=False,
        )

    def begin(self, visitor: _Visitor, message: Any, payload: Any) -> None:
        visitor.head_came()
        visitor.errand = self.keeper.begin(self._request(message, payload, visitor, None, None))

    def _make(
        self, message: Any, payload: Any, protocol: _Visitor, writer: Any, task: "asyncio.Task[None]"
    ) -> web.BaseRequest:
        if not protocol.asking:
            self.begin(protocol, message, payload)
        return self._request(message, payload, protocol, writer, task)

    def _request(self, message: Any, payload: Any, visitor: _Visitor, writer: Any, task: Any) -> web.BaseRequest:
        loop, most = asyncio.get_running_loop(), self._spec.largest_body
        return web.BaseRequest(message, payload, visitor, writer, task, loop, client_max_size=most)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        visitor = request.protocol
        assert isinstance(visitor, _Visitor)
        errand, visitor.errand = visitor.errand, None
        try:
            return await self.keeper.handle(request, errand)
        finally:
            visitor.asking = False

    @property
    def guarded(self) -> bool:
        """Whether strangers are kept out, by the address or by a token."""
        return self._token is not None or self._local

    async def open(self) -> int:
        """The port."""
        self._runner = web.ServerRunner(self, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, backlog=BACKLOG).start()
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        self.closing = True
        await self._runner.cleanup()

    def check(self, request: web.BaseRequest) -> None:
        if self._token is not None:
            shown = request.headers.get("Authorization", "")
            if not hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {self._token}".encode()):
                raise Refusal(401, "token", "this proxy needs its token, as Authorization: Bearer ...")
        elif self._local and not is_loopback(request.host):
            # A page elsewhere can point a name of its own here.
            raise Refusal(403, "host", "this proxy listens on loopback and answers to loopback's names only")

    def check_body(self, request: web.BaseRequest) -> None:
        if (request.content_length or 0) > self._spec.largest_body:
            raise self._too_large()
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refusal(415, "encoding", "a request is sent as it is, without a content encoding")

    async def read_body(self, request: web.BaseRequest) -> bytes:
        """All of it, if it is not too much and does not take too long."""
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self.slowest_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except TimeoutError:
            raise Refusal(408, "too slow", TOO_SLOW) from None

    def _too_large(self) -> Refusal:
        return Refusal(413, "too large", f"a request has at most {self._spec.largest_body:,} bytes")


def _listen(host: str, port: int, told: str) -> socket.socket:
    """Before anything else is begun: it may be taken."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise SpecError(f"cannot listen on {told}: {why.lower()}; choose another address") from None
