"""What a worker has in its hands: requests, and connections that carry them, with or without TLS."""

import contextlib
import socket
import ssl
from array import array
from collections import deque

from openloop.load.address import Address, tls_context
from openloop.load.intake import IntakeLine
from openloop.load.wire import Framing

CLOSED = "the server closed the connection"
READ_SIZE = 1 << 16


class Request:
    __slots__ = (
        "begun",
        "blocks",
        "connection",
        "copy",
        "due_ns",
        "kernel",
        "marks",
        "payload",
        "pool",
        "sent_ns",
        "taken_ns",
        "ticket",
        "tried",
        "twin",
        "waited_ns",
    )

    def __init__(self, ticket: int, due_ns: int, pool: "ConnectionPool", payload: bytes) -> None:
        self.ticket = ticket
        self.due_ns = due_ns
        self.pool = pool
        self.payload = payload
        self.copy: tuple[ConnectionPool, bytes] | None = None  # to be sent if this one is late to answer
        self.twin: Request | None = None  # the copy, or what it is a copy of
        self.connection: Connection | None = None
        self.sent_ns = 0
        self.taken_ns = 0
        self.waited_ns = 0
        self.begun = False  # as far as was looked: there is an answer beyond its head
        self.tried = 0  # on connections that turned out to be stale
        self.blocks: list[bytes] = []  # what came, in pieces
        self.marks = array("q")  # of all of that
        self.kernel = 0


class ConnectionPool:
    """The connections to one address, and who waits for one."""

    __slots__ = ("address", "count", "idle", "opening", "pause_ns", "spare_ns", "tls", "waiting")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.tls = tls_context(address)
        self.idle: list[Connection] = []
        self.waiting: deque[Request] = deque()  # due, and without a connection
        self.count = self.opening = 0
        self.spare_ns = self.pause_ns = 0  # no spare connections before, and for how long not


class Connection:
    __slots__ = (
        "begun_ns",
        "fd",
        "framing",
        "line",
        "opened",
        "pool",
        "reach_ns",
        "request",
        "rested",
        "sent_ns",
        "sock",
        "tls",
        "unsent",
        "used",
    )

    def __init__(self, sock: socket.socket, pool: ConnectionPool, line: IntakeLine | None) -> None:
        self.sock = sock
        self.line = line  # where machine code reads it
        self.pool = pool
        self.fd = sock.fileno()
        self.opened = False
        self.used = False  # has carried a response before
        self.rested = False  # has waited for a request
        self.begun_ns = self.sent_ns = 0
        self.reach_ns = 0  # a server that had closed it is heard from in this time
        self.request: Request | None = None
        self.framing = Framing()
        self.unsent = b""
        self.tls: Tls | None = None


class TlsError(Exception):
    """What one side says is nothing that the other takes."""

    def __init__(self, error: ssl.SSLError) -> None:
        super().__init__(f"TLS failed: {error.reason or error}")


class Tls:
    """Encrypts in memory, so that sockets are sent to and read from as any other."""

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._inside, self._outside = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._inside, self._outside, server_hostname=name)

    def receive(self, data: bytes) -> None:
        """What a socket has brought."""
        self._inside.write(data)

    def to_send(self) -> bytes:
        """What a socket is to take."""
        return self._outside.read()

    def shake_hands(self) -> bool:
        """Whether that is done."""
        try:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                return True
        except ssl.SSLError as error:
            raise TlsError(error) from None
        return False

    def write(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise TlsError(error) from None

    def read(self) -> tuple[bytes, str | None]:
        """What the other side says, and why it will say no more, if so."""
        plain: list[bytes] = []
        over: str | None = None
        try:
            while piece := self._tls.read(READ_SIZE):
                plain.append(piece)
            over = CLOSED
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            over = CLOSED
        except ssl.SSLError as error:
            over = str(TlsError(error))
        return b"".join(plain), over
