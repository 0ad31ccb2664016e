"""The loop that sends on time and stamps what comes back. It does nothing else: replies are read elsewhere.

Requests arrive from the conductor ahead of their time. Between any two reads of a socket the schedule is looked at, so
a crowd of tokens does not hold up a send. Times are nanoseconds of the monotonic clock.
"""

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from openloop.clock import READ, WRITE, Poller, Receiver, raise_file_limit
from openloop.load.address import Address, tls_context
from openloop.load.channel import Channel, GoneError
from openloop.load.wire import Framing, WireError

__all__ = ["BROKEN", "CENSORED", "DONE", "TIMEOUT", "UNSENT", "Finished", "Plan", "work"]

# How a request went, as the worker sees it.
DONE, BROKEN, TIMEOUT, CENSORED, UNSENT = "done", "broken", "timeout", "censored", "unsent"

# number, fate, error, sent_ns, waited_ns (for a connection), ended_ns, blocks, stamps, how many stamps are the kernel's
Finished = tuple[int, str, str, int, int, int, list[bytes], list[int], int]

CHECK_NS = 100_000_000
HAND_OVER = 32
READ_SIZE = 16384
GRAIN_NS = 500_000  # the kernel stamps what arrives, so a crowd of tokens can be read this much later, together
MOST_TRIES = 5
STALE_NS = 10_000_000
LONGEST_PAUSE_NS = 5_000_000_000
CLOSED = "the server closed the connection"
NEVER = 1 << 62


@dataclass(frozen=True)
class Plan:
    address: Address
    timeout_ns: int
    spare: int  # connections that are kept open ahead of need
    limit: int = 0  # connections at most; 0: as many as it takes
    users: int = 0  # of a closed loop, each of whom waits for an answer before asking again; 0: an open one


class _Request:
    __slots__ = (
        "blocks",
        "due_ns",
        "kernel",
        "number",
        "payload",
        "sent_ns",
        "stamps",
        "taken_ns",
        "tried",
        "waited_ns",
    )

    def __init__(self, number: int, due_ns: int, payload: bytes) -> None:
        self.number = number
        self.due_ns = due_ns
        self.payload = payload
        self.sent_ns = 0
        self.taken_ns = 0
        self.waited_ns = 0
        self.tried = 0  # on connections that turned out to be stale
        self.blocks: list[bytes] = []
        self.stamps: list[int] = []
        self.kernel = 0


class _Connection:
    __slots__ = (
        "begun_ns",
        "fd",
        "framing",
        "inside",
        "opened",
        "outside",
        "reach_ns",
        "request",
        "rested",
        "sent_ns",
        "sock",
        "tls",
        "unsent",
        "used",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.opened = False
        self.used = False  # has carried a response before
        self.rested = False  # has waited for a request
        self.begun_ns = self.sent_ns = 0
        self.reach_ns = 0  # a server that had closed it is heard from in this time
        self.request: _Request | None = None
        self.framing = Framing()
        self.unsent = b""
        self.tls: ssl.SSLObject | None = None
        self.inside: ssl.MemoryBIO | None = None
        self.outside: ssl.MemoryBIO | None = None


@dataclass
class _Worker:
    plan: Plan
    channel: Channel
    poller: Poller = field(default_factory=Poller)
    receiver: Receiver = field(default_factory=Receiver)

    def __post_init__(self) -> None:
        self.tls = tls_context(self.plan.address)
        self.pending: deque[_Request] = deque()  # not due yet, in order
        self.waiting: deque[_Request] = deque()  # due, and without a connection
        self.idle: list[_Connection] = []
        self.connections: dict[int, _Connection] = {}
        self.opening = 0
        self.deadlines: deque[tuple[int, _Request]] = deque()
        self.in_flight: dict[int, _Request] = {}
        self.finished: list[Finished] = []
        self.check_ns = 0
        self.spare_ns = self.pause_ns = 0  # no spare connections before, and for how long not
        self.next_ns = NEVER
        self.stop_ns = NEVER
        self.may_rest = self.receiver.exact and not (self.plan.users or self.plan.limit)  # where nobody waits for reads
        self.crowded = False
        self.woken_ns = 0
        self.fed = False  # no more requests will come
        self.poller.watch(self.channel.fd, READ)

    def run(self) -> None:
        self._keep_spare()
        self.channel.send(("ready",))
        while not (self.fed and not self.pending and not self.in_flight):
            now = time.monotonic_ns()
            if now >= self.next_ns:
                self._dispatch()
            if now >= self.check_ns:
                self._look_at_clock(now)
            for fd, mask in self._wait(min(self.next_ns, self.check_ns)):
                connection = self.connections.get(fd)
                if connection is None:
                    if fd == self.channel.fd:
                        self._hear(mask)
                else:
                    try:
                        if mask & WRITE:
                            self._writable(connection)
                        else:
                            self._readable(connection)
                    except Exception as error:  # whatever a server sends costs its own request and no other
                        self._lost(connection, f"{type(error).__name__}: {error}")
                if time.monotonic_ns() >= self.next_ns:
                    self._dispatch()
        self._hand_over()
        self._say_goodbye()

    def _wait(self, until_ns: int) -> list[tuple[int, int]]:
        """What can be read; where much is, not before there is more of it, for being woken is what costs most."""
        if self.crowded:
            self.poller.rest(min(until_ns, self.woken_ns + GRAIN_NS))
        ready = self.poller.wait(until_ns)
        now = time.monotonic_ns()
        self.crowded = self.may_rest and now - self.woken_ns < 2 * GRAIN_NS
        self.woken_ns = now
        return ready

    def _look_at_clock(self, now: int) -> None:
        """What else is to be done at its time: give up on requests, stop, hand over what is finished."""
        self.receiver.refresh()
        while self.deadlines and (self.deadlines[0][0] <= now or self.deadlines[0][1].number not in self.in_flight):
            _, request = self.deadlines.popleft()
            if request.number in self.in_flight:
                self._give_up(request, TIMEOUT, now)
        if now >= self.stop_ns:
            for request in list(self.in_flight.values()):
                self._give_up(request, CENSORED, 0)
            self.pending.clear()
            self.fed = True
        self._hand_over()
        while self.waiting and self.waiting[0].number not in self.in_flight:
            self.waiting.popleft()
        if not self.fed or self.waiting:
            self._keep_spare()
        deadline = self.deadlines[0][0] if self.deadlines else NEVER
        self.check_ns = min(now + CHECK_NS, self.stop_ns, deadline)

    # Messages from the conductor.

    def _hear(self, mask: int) -> None:
        if mask & WRITE:
            self._flush_channel()
        for message in self.channel.receive():
            match message:
                case ("ask", asks):
                    self.pending.extend(_Request(*ask) for ask in asks)
                case ("end",):
                    self.fed = True
                case ("halt", until_ns):  # nothing more is sent, and what is in flight has until then
                    self.pending.clear()
                    self.fed = True
                    self.stop_ns = until_ns
                case ("drain", until_ns):
                    self.stop_ns = until_ns
        self.check_ns = min(self.check_ns, self.stop_ns)
        self.next_ns = self._next_ns()

    def _hand_over(self) -> None:
        if self.finished:
            self.channel.send(("done", self.finished))
            self.finished = []
        if self.channel.full:
            self.poller.change(self.channel.fd, READ | WRITE)

    def _flush_channel(self) -> None:
        self.channel.flush()
        if not self.channel.full:
            self.poller.change(self.channel.fd, READ)

    def _say_goodbye(self) -> None:
        self.channel.send(("bye",))
        while self.channel.full:
            self.poller.change(self.channel.fd, READ | WRITE)
            self.poller.wait(None)
            self.channel.flush()

    # Sending.

    def _next_ns(self) -> int:
        """When to send next; where there are users, one of them must be free."""
        if not self.pending or (self.plan.users and len(self.in_flight) >= self.plan.users):
            return NEVER
        return self.pending[0].due_ns

    def _dispatch(self) -> None:
        """Send whatever is due; look at the clock after each."""
        now = time.monotonic_ns()
        while self._next_ns() <= now:
            request = self.pending.popleft()
            request.taken_ns = now
            if self.plan.users:
                request.due_ns = now  # a closed loop has no schedule
            self.in_flight[request.number] = request
            self.deadlines.append((request.due_ns + self.plan.timeout_ns, request))
            if self.idle:
                self._send(self.idle.pop(), request)
            else:
                self.waiting.append(request)
                self._keep_spare()
            now = time.monotonic_ns()
        self.next_ns = self._next_ns()
        if len(self.idle) + self.opening < self.plan.spare // 2:
            self._keep_spare()

    def _send(self, connection: _Connection, request: _Request) -> None:
        connection.request = request
        connection.framing = Framing()
        payload = request.payload
        now = connection.sent_ns = time.monotonic_ns()
        if request.sent_ns:
            request.waited_ns += now - request.sent_ns  # lost on a connection that turned out to be stale
        else:
            request.sent_ns = now
            request.waited_ns = now - request.taken_ns
        if connection.tls is not None and connection.outside is not None:
            try:
                connection.tls.write(payload)
            except ssl.SSLError as error:
                self._lost(connection, f"TLS failed: {error.reason or error}")
                return
            payload = connection.outside.read()
        self._put(connection, payload)

    def _put(self, connection: _Connection, data: bytes) -> None:
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(connection, _words(error.errno))
            return
        if sent < len(data):
            connection.unsent = data[sent:]
            self.poller.change(connection.fd, READ | WRITE)

    # Connections.

    def _keep_spare(self) -> None:
        """Open as many connections as are wanted now and soon."""
        spare = self.plan.spare if time.monotonic_ns() >= self.spare_ns else 0
        wanted = len(self.waiting) + spare - len(self.idle) - self.opening
        room = self.plan.limit - len(self.connections) if self.plan.limit else wanted
        for _ in range(min(wanted, room)):
            if not self._open():
                return

    def _open(self) -> bool:
        try:
            sock = socket.socket(self.plan.address.family)
        except OSError as error:  # no more files: those that wait go on waiting for a connection that gets free
            if not self.connections:
                self._fail_waiting(_words(error.errno))
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiver.prepare(sock)
        connection = _Connection(sock)
        connection.begun_ns = time.monotonic_ns()
        self.connections[connection.fd] = connection
        self.poller.watch(connection.fd, READ | WRITE)
        self.opening += 1
        code = sock.connect_ex(self.plan.address.where)
        if code not in (0, errno.EINPROGRESS):
            self._lost(connection, _words(code))
            return False
        return True

    def _writable(self, connection: _Connection) -> None:
        if not connection.opened and connection.tls is None:
            code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._lost(connection, _words(code))
                return
            self.poller.change(connection.fd, READ)
            if self.tls is not None:
                connection.inside, connection.outside = ssl.MemoryBIO(), ssl.MemoryBIO()
                connection.tls = self.tls.wrap_bio(
                    connection.inside, connection.outside, server_hostname=self.plan.address.name
                )
                self._shake_hands(connection)
            else:
                self._opened(connection)
            return
        data, connection.unsent = connection.unsent, b""
        self.poller.change(connection.fd, READ)
        if data:
            self._put(connection, data)

    def _shake_hands(self, connection: _Connection) -> None:
        assert connection.tls is not None
        assert connection.outside is not None
        try:
            with contextlib.suppress(ssl.SSLWantReadError):
                connection.tls.do_handshake()
                connection.opened = True
        except ssl.SSLError as error:
            self._lost(connection, f"TLS failed: {error.reason or error}")
            return
        data = connection.outside.read()
        if data:
            self._put(connection, data)
        if connection.opened and connection.fd in self.connections:
            self._opened(connection)

    def _opened(self, connection: _Connection) -> None:
        connection.opened = True
        self.opening -= 1
        now = time.monotonic_ns()
        connection.reach_ns = max(2 * (now - connection.begun_ns), STALE_NS)
        self._free(connection)

    def _free(self, connection: _Connection) -> None:
        """It may carry the next request."""
        connection.request = None
        while self.waiting:
            request = self.waiting.popleft()
            if request.number in self.in_flight:
                self._send(connection, request)
                return
        connection.rested = True
        self.idle.append(connection)

    def _lost(self, connection: _Connection, why: str) -> None:
        """A connection is gone: with the request that it carried, or that waited for it."""
        request, opening = connection.request, not connection.opened
        if self.connections.get(connection.fd) is not connection:
            return
        self._close(connection)
        now = time.monotonic_ns()
        if not connection.used and request is None:  # a server that takes no spare connections is not to be flooded
            self.pause_ns = min(max(2 * self.pause_ns, CHECK_NS), LONGEST_PAUSE_NS)
            self.spare_ns = now + self.pause_ns
        if opening:
            if len(self.waiting) > self.opening:  # nobody else is on the way to it
                self._end(self.waiting.popleft(), UNSENT, f"no connection: {why}")
        elif request is None:
            return
        elif self._stale(connection, request, now):
            request.tried += 1
            self.waiting.appendleft(request)
            self._open()
        else:
            self._end(request, BROKEN, why)

    def _stale(self, connection: _Connection, request: _Request, now: int) -> bool:
        """Whether the server had closed a resting connection before the request reached it.

        It did if the loss shows so soon after sending that the server cannot have worked on it.
        """
        soon = now - connection.sent_ns <= connection.reach_ns
        return connection.rested and soon and not request.blocks and request.tried < MOST_TRIES

    def _fail_waiting(self, why: str) -> None:
        while self.waiting:
            self._end(self.waiting.popleft(), UNSENT, f"no connection: {why}")

    def _close(self, connection: _Connection) -> None:
        if self.connections.get(connection.fd) is not connection:
            return
        del self.connections[connection.fd]
        if self.waiting:
            self.check_ns = 0  # there may be room for another
        if not connection.opened:
            self.opening -= 1
        elif connection.request is None and connection in self.idle:
            self.idle.remove(connection)
        self.poller.forget(connection.fd)
        connection.sock.close()

    # Receiving.

    def _readable(self, connection: _Connection) -> None:
        try:
            data, stamp, kernel = self.receiver.read(connection.sock, READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(connection, _words(error.errno))
            return
        if not data:
            self._ended_by_server(connection)
            return
        if connection.tls is None:
            self._received(connection, data, stamp, kernel)
            return
        plain, over = self._decrypt(connection, data)
        if plain:
            self._received(connection, plain, stamp, kernel)
        if over is not None and self.connections.get(connection.fd) is connection:
            self._ended_by_server(connection, over)

    def _received(self, connection: _Connection, data: bytes, stamp: int, kernel: bool) -> None:
        request = connection.request
        if request is None:  # nobody asked: whatever it is, the connection is of no use any more
            self._close(connection)
            return
        request.blocks.append(data)
        request.stamps.append(stamp)
        request.kernel += kernel
        try:
            whole = connection.framing.feed(data)
        except WireError as error:
            self._close(connection)
            self._end(request, BROKEN, str(error))
            return
        if whole:
            self._complete(connection, request)

    def _decrypt(self, connection: _Connection, data: bytes) -> tuple[bytes, str | None]:
        """What it says, and why it will say no more, if so."""
        assert connection.tls is not None
        assert connection.inside is not None
        connection.inside.write(data)
        if not connection.opened:
            self._shake_hands(connection)
            if not connection.opened or connection.fd not in self.connections:
                return b"", None
        plain: list[bytes] = []
        over: str | None = None
        try:
            while piece := connection.tls.read(65536):
                plain.append(piece)
            over = CLOSED
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            over = CLOSED
        except ssl.SSLError as error:
            over = f"TLS failed: {error.reason or error}"
        return b"".join(plain), over

    def _ended_by_server(self, connection: _Connection, why: str = CLOSED) -> None:
        request = connection.request
        if request is not None and connection.framing.until_close and why == CLOSED:
            self._close(connection)
            self._end(request, DONE, "")
        else:
            self._lost(connection, why)

    def _complete(self, connection: _Connection, request: _Request) -> None:
        self._end(request, DONE, "")
        connection.used = True
        self.pause_ns = 0
        if connection.framing.keep and not connection.unsent:
            self._free(connection)
        else:
            self._close(connection)

    # Ends.

    def _give_up(self, request: _Request, fate: str, ended_ns: int) -> None:
        """Stop listening; the connection goes, for its answer may still come."""
        for connection in self.connections.values():
            if connection.request is request:
                self._close(connection)
                break
        self._end(request, fate, "", ended_ns)

    def _end(self, request: _Request, fate: str, why: str, ended_ns: int | None = None) -> None:
        if self.in_flight.pop(request.number, None) is None:
            return
        if ended_ns is None:
            ended_ns = request.stamps[-1] if fate == DONE else time.monotonic_ns()
        self.finished.append(
            (
                request.number,
                fate,
                why,
                request.sent_ns,
                request.waited_ns,
                ended_ns,
                request.blocks,
                request.stamps,
                request.kernel,
            )
        )
        request.blocks, request.stamps, request.payload = [], [], b""  # a deadline may outlive it
        if self.plan.users:
            self.next_ns = self._next_ns()
        if len(self.finished) >= HAND_OVER:
            self._hand_over()


def _words(code: int | None) -> str:
    return os.strerror(code).lower() if code else "unknown error"


def work(sock: socket.socket) -> None:
    """The body of a worker process: the first message is its plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the conductor decides what an interrupt means
    gc.disable()  # nothing here makes cycles, and a collection would hold up everything
    raise_file_limit()
    channel = Channel(sock)
    with contextlib.suppress(GoneError):
        select.select([sock], [], [])
        for address, *plan in channel.receive():
            _Worker(Plan(Address(*address), *plan), channel).run()
            return


if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])))
