"""What a worker has in its hands: requests, and connections that carry them, with or without TLS."""

import contextlib
import socket
import ssl
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from openloop.load.address import Address, tls_context
from openloop.load.intake import IntakeLine
from openloop.load.wire import Framing

CLOSED = "the server closed the connection"
READ_SIZE = 1 << 16
NO_BLOCKS: list[bytes] = []  # of all of whom nothing came
NO_MARKS = array("q")


class Request:
    """What a worker is to send, and what became of it so far.

    There are thousands, so each is one small piece of memory: of most of them machine code keeps what comes.
    """

    __slots__ = (
        *("ticket", "due_ns", "pool", "payload", "copy", "twin", "connection"),
        *("sent_ns", "taken_ns", "waited_ns", "begun", "tried", "blocks", "marks", "kernel"),
    )

    def __init__(self, ticket: int, due_ns: int, pool: "ConnectionPool", payload: bytes) -> None:
        self.ticket, self.due_ns, self.pool, self.payload = ticket, due_ns, pool, payload
        self.copy: tuple[ConnectionPool, bytes] | None = None  # to be sent if this one is late to answer
        self.twin: Request | None = None  # the copy, or what it is a copy of
        self.connection: Connection | None = None
        self.sent_ns = self.taken_ns = self.waited_ns = 0
        self.begun = False  # as far as was looked: there is an answer beyond its head
        self.tried = 0  # on connections that turned out to be stale
        self.blocks = NO_BLOCKS  # what came, in pieces
        self.marks = NO_MARKS  # of all of that
        self.kernel = 0

    def keep(self, data: bytes, marks: Sequence[int], kernel: int) -> None:
        """More came; its marks begin anew."""
        if not self.blocks:
            self.blocks, self.marks = [], array("q")
        before = self.marks[-2] if self.marks else 0
        self.blocks.append(data)
        for place in range(0, len(marks), 2):
            self.marks.extend((before + marks[place], marks[place + 1]))
        self.kernel += kernel


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
