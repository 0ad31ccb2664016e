"""What a worker has in its hands: requests, and connections that carry them, with or without TLS."""

import contextlib
import socket
import ssl
from array import array
from collections import deque
from dataclasses import dataclass, field

from openloop.load.address import Address, tls_context
from openloop.load.intake import IntakeLine
from openloop.load.wire import Framing

CLOSED = "the server closed the connection"
READ_SIZE = 1 << 16


class Request:
    """Most of it is as it is of all others, so it stands with the class."""

    copy: "tuple[ConnectionPool, bytes] | None" = None  # to be sent if this one is late to answer
    twin: "Request | None" = None  # the copy, or what it is a copy of
    connection: "Connection | None" = None
    sent_ns: int = 0
    taken_ns: int = 0
    waited_ns: int = 0
    begun: bool = False  # as far as was looked: there is an answer beyond its head
    tried: int = 0  # on connections that turned out to be stale
    kernel: int = 0

    def __init__(self, ticket: int, due_ns: int, pool: "ConnectionPool", payload: bytes) -> None:
        self.ticket, self.due_ns, self.pool, self.payload = ticket, due_ns, pool, payload
        self.blocks: list[bytes] = []  # what came, in pieces
        self.marks = array("q")  # of all of that


@dataclass(slots=True, eq=False)
class ConnectionPool:
    """The connections to one address, and who waits for one."""

    address: Address
    tls: ssl.SSLContext | None = field(init=False)
    idle: "list[Connection]" = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)  # due, and without a connection
    count: int = 0
    opening: int = 0
    spare_ns: int = 0  # no spare connections before
    pause_ns: int = 0  # and for how long not

    def __post_init__(self) -> None:
        self.tls = tls_context(self.address)


@dataclass(slots=True, eq=False)
class Connection:
    sock: socket.socket
    pool: ConnectionPool
    line: IntakeLine | None  # where machine code reads it
    fd: int = field(init=False)
    opened: bool = False
    used: bool = False  # has carried a response before
    rested: bool = False  # has waited for a request
    begun_ns: int = 0
    sent_ns: int = 0
    reach_ns: int = 0  # a server that had closed it is heard from in this time
    request: Request | None = None
    framing: Framing = field(default_factory=Framing)
    unsent: bytes = b""
    tls: "Tls | None" = None

    def __post_init__(self) -> None:
        self.fd = self.sock.fileno()


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
