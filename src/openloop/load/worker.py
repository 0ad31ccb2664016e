"""The loop that sends on time and stamps what comes back. It does nothing else: replies are read elsewhere.

Requests arrive from the conductor ahead of their time. Between any two reads of a socket the schedule is looked at, so
a crowd of tokens does not hold up a send. Times are nanoseconds of the monotonic clock.
"""

import bisect
import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import signal
import socket
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from openloop.clock import READ, WRITE, Poller, Receiver, Rest, keep_memory, raise_file_limit, wake_exactly
from openloop.load.address import Address
from openloop.load.channel import Channel, GoneError
from openloop.load.connection import CLOSED, NO_BLOCKS, NO_MARKS, Connection, ConnectionPool, Request, Tls, TlsError
from openloop.load.intake import IDLE, POSTS, Intake, IntakeLine
from openloop.load.skim import Skimmed
from openloop.load.wire import LARGEST, Framing, Marks, WireError, is_good, opens_chunks

# How a request went, as the worker sees it.
DONE, BROKEN, TIMEOUT, CENSORED, UNSENT, CANCELLED = "done", "broken", "timeout", "censored", "unsent", "cancelled"

# What it is to send: ticket, due_ns, at which address, bytes; and, for the case that its answer is late, where else and
# what (b"": nothing). That copy has the next ticket.
Asked = tuple[int, int, int, bytes, int, bytes]

# What came, its marks (see wire.py), and how many of these are the kernel's. Of an ordinary stream: its head, and in
# place of marks what was found in the rest.
Came = tuple[bytes, Marks | Skimmed, int]

# ticket, fate, error, sent_ns, waited_ns (for a connection), ended_ns, what came as above, whether a copy of it is
# still on its way
Finished = tuple[int, str, str, int, int, int, bytes, Marks | Skimmed, int, bool]

Moments = deque[tuple[int, int, Request]]  # in order

CHECK_NS = 100_000_000
HAND_OVER = 192  # answers, or as many as are
HEAVY = 1 << 18  # bytes
MANY = 1000  # deadlines of what is over
READ_SIZE = 4096
REST_NS = 4_000_000  # at most
FEW = 8
MOST_TRIES = 5
STALE_NS = 25_000_000
POST_NS = 300_000_000  # so long before it is due
LONGEST_PAUSE_NS = 5_000_000_000
NEVER = 1 << 62


@dataclass(frozen=True)
class Plan:
    addresses: list[Address]
    timeout_ns: int
    spare: int  # connections to each that are kept open ahead of need
    limit: int = 0  # connections to each at most; 0: as many as it takes
    users: int = 0  # of a closed loop, each of whom waits for an answer before asking again; 0: an open one
    eager: bool = False  # something may follow from each answer: tell of it at once
    hedge_ns: int = 0  # send a copy where there is no answer after this long; 0: not yet
    hedge_share: float = -1.0  # of requests, at most; negative: none is copied
    free_copies: int = 0  # whatever the share
    code: bytes = b""  # machine code that reads; else Python does
    skims: bool = False  # of an ordinary stream its events are enough, and they are found here


@dataclass
class _Worker:
    plan: Plan
    channel: Channel
    poller: Poller = field(default_factory=Poller)
    receiver: Receiver = field(default_factory=Receiver)

    def __post_init__(self) -> None:
        self.pools = [ConnectionPool(address) for address in self.plan.addresses]
        self.pending: deque[Request] = deque()  # not due yet, in order
        self.connections: dict[int, Connection] = {}
        self.deadlines: Moments = deque()  # when to give up on each
        self.late: Moments = deque()  # when a copy of each is to be sent
        self.hedge_ns = self.plan.hedge_ns
        self.sent = self.copied = 0
        self.in_flight: dict[int, Request] = {}
        self.finished: list[Finished] = []
        self.weight = 0  # of what came, in bytes
        self.check_ns = 0
        self.next_ns = NEVER
        self.stop_ns = NEVER
        exact = self.receiver.exact
        self.rest = Rest(REST_NS if exact and not (self.plan.users or self.plan.limit) else 0)  # nobody waits for reads
        self.looked_ns = self.read_ns = 0  # when sockets were looked at, and are to be next
        self.urgent = bool(self.plan.eager or self.plan.users or self.plan.limit or self.plan.hedge_share >= 0)
        self.intake: Intake | None = None
        if self.plan.code:
            with contextlib.suppress(Exception):  # whatever this system does not let us do, Python reads
                self.intake = Intake(self.plan.code, self.poller, notes=self.plan.skims)
        single = len(self.pools) == 1 and self.pools[0].tls is None
        self.posts = self.intake is not None and single and not self.urgent  # machine code sends
        self.posted: deque[Request] = deque()
        self.gone = 0  # of what was posted
        self.fed = False  # no more requests will come
        self.poller.watch(self.channel.fd, READ)

    def run(self) -> None:
        for pool in self.pools:
            self._keep_spare(pool)
        self.channel.send(("ready",))
        while not (self.fed and not self.pending and not self.posted and not self.in_flight):
            if time.monotonic_ns() >= self.next_ns:
                self._dispatch()
            if self.intake is not None:
                self._gather(self.intake)
            else:
                self._look()
            now = time.monotonic_ns()
            if now >= self.check_ns:
                self._look_at_clock(now)
        self._hand_over()
        self._say_goodbye()

    def _gather(self, intake: Intake) -> None:
        """Let machine code send and read until there is something else to do; then do that."""
        state = intake.state
        if self.posts:
            self._post(intake)
        state.next_ns = self.pending[0].due_ns if self._may_send() else NEVER
        state.check_ns = max(self.check_ns, 1)
        state.eager = self.urgent or any(pool.waiting for pool in self.pools)
        pool = self.pools[0]
        opens = self.posts and self._goes_on(pool) and time.monotonic_ns() >= pool.spare_ns
        hidden = len(pool.idle) - state.idle  # from machine code
        state.few = max(self.plan.spare // 2 - pool.opening - hidden, 0) if opens else 0
        intake.begin_notes()
        intake.gather()
        self._note_gone(intake)
        self._follow_lines(intake)
        for each in self.pools:
            self._keep_enough(each)
        if time.monotonic_ns() >= self.next_ns:
            self._dispatch()
        self._deal_with(intake.troubled())

    def _post(self, intake: Intake) -> None:
        """What is due soon, and where it may be sent; nothing while others wait for a connection."""
        soon = 0 if self.pools[0].waiting else time.monotonic_ns() + POST_NS
        while self.pending and self.pending[0].due_ns < soon and len(self.posted) < POSTS:
            request = self.pending.popleft()
            intake.post(request.due_ns, request.payload)
            self.posted.append(request)
        self._offer(intake)

    def _offer(self, intake: Intake) -> None:
        intake.offer([connection.fd for connection in self.pools[0].idle[-IDLE:] if connection.line is not None])

    def _note_gone(self, intake: Intake) -> None:
        """What machine code has sent; what it could not, for want of a connection, is to be sent here."""
        for fd, now, sent in intake.gone(self.gone):
            request, connection = self.posted.popleft(), self.connections[fd]
            idle = request.pool.idle
            if idle[-1] is connection:
                idle.pop()
            else:
                idle.remove(connection)
            request.taken_ns = now
            self._enter(request)
            self._bind(connection, request, now)
            if sent < len(request.payload):
                self._put(connection, request.payload[max(sent, 0) :])
        self.gone = intake.state.gone
        self.next_ns = self._next_ns()

    def _recall(self) -> None:
        """What is not gone is not to be sent by machine code."""
        if self.intake is not None:
            self.intake.state.posted = self.intake.state.gone
        for each in self.posted:
            self._await(each)
        self.posted.clear()

    def _follow_lines(self, intake: Intake) -> None:
        for fd in intake.told():
            connection = self.connections.get(fd)
            if connection is not None:
                self._carefully(self._follow_line, connection)
            if time.monotonic_ns() >= self.next_ns:
                self._dispatch()

    def _carefully(self, what: Callable[[Connection], None], connection: Connection) -> None:
        """Whatever a server sends costs its own request and no other."""
        try:
            what(connection)
        except Exception as error:
            self._lost(connection, f"{type(error).__name__}: {error}")

    def _deal_with(self, ready: Iterable[tuple[int, int]]) -> None:
        """What files are ready for, looking at the schedule after each."""
        for fd, mask in ready:
            connection = self.connections.get(fd)
            if connection is not None:
                self._carefully(self._writable if mask & WRITE else self._readable, connection)
            elif fd == self.channel.fd:
                self._hear(mask)
            if time.monotonic_ns() >= self.next_ns:
                self._dispatch()

    def _look(self) -> None:
        """Deal with what is ready; where much is, the next look is after a rest, for being woken costs most."""
        now = time.monotonic_ns()
        if now < self.read_ns and now < self.check_ns:
            self.poller.rest(min(self.next_ns, self.read_ns, self.check_ns))
            return
        ready = self.poller.wait(min(self.next_ns, self.check_ns))
        now = time.monotonic_ns()
        self._deal_with(ready)
        crowded = len(ready) * self.rest.ns > 2 * (now - self.looked_ns)
        self.read_ns = now + self.rest.ns if crowded and not any(pool.waiting for pool in self.pools) else 0
        self.looked_ns = now

    def _look_at_clock(self, now: int) -> None:
        """What else is to be done at its time: give up on requests, copy them, stop, hand over what is finished."""
        self.receiver.refresh()
        if self.intake is not None:
            self.intake.state.offset_ns = self.receiver.offset_ns
            self.intake.note_gaps(self.rest)
        else:
            self.rest.adapt()
        for request in self._passed(self.deadlines, now):
            self._give_up(request, TIMEOUT, now)
        for request in self._passed(self.late, now):
            if not _has_begun(request) and self.copied < self.plan.hedge_share * self.sent + self.plan.free_copies:
                self._send_copy(request)
        if now >= self.stop_ns:
            for request in list(self.in_flight.values()):
                self._give_up(request, CENSORED, 0)
            self._recall()
            self.pending.clear()
            self.fed = True
        self._hand_over()
        for pool in self.pools:
            while pool.waiting and pool.waiting[0].ticket not in self.in_flight:
                pool.waiting.popleft()
            if not self.fed or pool.waiting:
                self._keep_spare(pool, FEW)
        soonest = [each[0][0] for each in (self.deadlines, self.late) if each]
        self.check_ns = min(now + CHECK_NS, self.stop_ns, *soonest)

    def _passed(self, moments: Moments, now: int) -> Iterator[Request]:
        """Whose moment has come while they are in flight; others are forgotten once they are first, or many at once."""
        while moments:
            moment, ticket, request = moments[0]
            waits = ticket in self.in_flight
            if waits and moment > now:
                break
            moments.popleft()
            if waits:
                yield request
        if len(moments) > 2 * len(self.in_flight) + MANY:
            still = [each for each in moments if each[1] in self.in_flight]
            moments.clear()
            moments.extend(still)

    # Messages from the conductor.

    def _hear(self, mask: int) -> None:
        if mask & WRITE:
            self.channel.flush()
            if not self.channel.full:
                self.poller.change(self.channel.fd, READ)
        for message in self.channel.receive():
            match message:
                case ("ask", asks):
                    for ticket, due_ns, where, payload, elsewhere, copy in asks:
                        request = Request(ticket, due_ns, self.pools[where], payload)
                        if copy:
                            request.copy = (self.pools[elsewhere], copy)
                        self._await(request)
                case ("hedge", after_ns):
                    self.hedge_ns = after_ns
                case ("end",):
                    self.fed = True
                case ("halt", from_ns, until_ns):  # nothing that is due from then on is sent
                    self._recall()
                    self.pending = deque(each for each in self.pending if each.due_ns < from_ns)
                    self.fed = True
                    self.stop_ns = until_ns
                case ("drain", until_ns):
                    self.stop_ns = until_ns
        self.check_ns = min(self.check_ns, self.stop_ns)
        self.next_ns = self._next_ns()

    def _hand_over(self) -> None:
        if self.finished:
            self.channel.send(("done", self.finished))
            self.finished, self.weight = [], 0
        if self.channel.full:
            self.poller.change(self.channel.fd, READ | WRITE)

    def _say_goodbye(self) -> None:
        self.channel.send(("bye",))
        while self.channel.full:
            self.poller.change(self.channel.fd, READ | WRITE)
            self.poller.wait(None)
            self.channel.flush()

    # Sending.

    def _await(self, request: Request) -> None:
        """Its moment; most are told of in order."""
        if not self.pending or self.pending[-1].due_ns < request.due_ns:
            self.pending.append(request)
        else:
            bisect.insort(self.pending, request, key=lambda each: (each.due_ns, each.ticket))

    def _next_ns(self) -> int:
        """When to send next."""
        pending = self.pending[0].due_ns if self._may_send() else NEVER
        return min(self.posted[0].due_ns, pending) if self.posted else pending

    def _may_send(self) -> bool:
        """Whether something is there; and where there are users, one of them must be free."""
        return bool(self.pending) and not (self.plan.users and len(self.in_flight) >= self.plan.users)

    def _dispatch(self) -> None:
        """Send whatever is due; look at the clock after each."""
        if self.posted and self.intake is not None:
            self._offer(self.intake)
            self.intake.state.check_ns = 0  # and nothing else
            self.intake.gather()
            self._note_gone(self.intake)
            if self.next_ns <= time.monotonic_ns() and not self.intake.state.idle:  # there is no connection for it
                self._recall()
        now = time.monotonic_ns()
        while self._may_send() and self.pending[0].due_ns <= now:
            request = self.pending.popleft()
            if self.plan.users:
                request.due_ns = now  # a closed loop has no schedule
            self._begin(request, now)
            self.sent += 1
            if request.copy and self.hedge_ns:
                _insert(self.late, (request.due_ns + self.hedge_ns, request.ticket, request))
                self.check_ns = min(self.check_ns, self.late[0][0])
            now = time.monotonic_ns()
        self.next_ns = self._next_ns()

    def _begin(self, request: Request, now: int) -> None:
        pool = request.pool
        request.taken_ns = now
        self._enter(request)
        if pool.idle:
            self._send(pool.idle.pop(), request)
        else:
            pool.waiting.append(request)
            self.read_ns = 0
            self._keep_spare(pool, FEW)
        self._keep_enough(pool)

    def _keep_enough(self, pool: ConnectionPool) -> None:
        """Open a few more, if idle ones get few: opening many would hold up everything."""
        if self._goes_on(pool) and len(pool.idle) + pool.opening < self.plan.spare // 2:
            self._keep_spare(pool, FEW)

    def _goes_on(self, pool: ConnectionPool) -> bool:
        """Whether somebody may want another connection."""
        return bool(not self.fed or self.pending or self.posted or pool.waiting)

    def _enter(self, request: Request) -> None:
        self.in_flight[request.ticket] = request
        _insert(self.deadlines, (request.due_ns + self.plan.timeout_ns, request.ticket, request))

    def _send_copy(self, request: Request) -> None:
        """The same again, elsewhere: whichever answers first is kept."""
        assert request.copy is not None
        pool, payload = request.copy
        twin = Request(request.ticket + 1, request.due_ns, pool, payload)
        request.twin, twin.twin = twin, request
        self.copied += 1
        self._begin(twin, time.monotonic_ns())

    def _send(self, connection: Connection, request: Request) -> None:
        if connection.line is not None:
            connection.line.ours, connection.line.chunked = 1, 0
        self._bind(connection, request, time.monotonic_ns())
        payload = request.payload
        if connection.tls is not None:
            try:
                connection.tls.write(payload)
            except TlsError as error:
                self._lost(connection, str(error))
                return
            payload = connection.tls.to_send()
        self._put(connection, payload)

    def _bind(self, connection: Connection, request: Request, now: int) -> None:
        """A request goes out on it."""
        connection.request, request.connection = request, connection
        if connection.framing.size:  # of the answer before
            connection.framing = Framing()
        connection.sent_ns = now
        if request.sent_ns:
            request.waited_ns += now - request.sent_ns  # lost on a connection that turned out to be stale
        else:
            request.sent_ns = now
            request.waited_ns = now - request.taken_ns

    def _put(self, connection: Connection, data: bytes) -> None:
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            connection.unsent = data
            self._hear_out(connection)
            self._lost(connection, _words(error.errno))
            return
        if sent < len(data):
            connection.unsent = data[sent:]
            self.poller.change(connection.fd, READ | WRITE)

    def _hear_out(self, connection: Connection) -> None:
        """What a server said before it hung up on a request that it did not read to its end."""
        heard = -1
        while (request := connection.request) is not None and len(request.marks) > heard and connection.opened:
            heard = len(request.marks)
            self._readable(connection)

    # Connections.

    def _keep_spare(self, pool: ConnectionPool, most: int = NEVER) -> None:
        """Open as many connections as are wanted now, and soon if these are not too many."""
        spare = self.plan.spare if time.monotonic_ns() >= pool.spare_ns else 0
        wanted = len(pool.waiting) + spare - len(pool.idle) - pool.opening
        room = self.plan.limit - pool.count if self.plan.limit else wanted
        for _ in range(min(wanted, room, len(pool.waiting) + most)):
            if not self._open(pool):
                return

    def _open(self, pool: ConnectionPool) -> bool:
        try:
            sock = socket.socket(pool.address.family)
        except OSError as error:  # no more files: those that wait go on waiting for a connection that gets free
            pool.spare_ns = time.monotonic_ns() + CHECK_NS
            while pool.waiting and not pool.count:
                self._end(pool.waiting.popleft(), UNSENT, f"no connection: {_words(error.errno)}")
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiver.prepare(sock)
        connection = Connection(sock, pool, self._line(sock.fileno(), pool))
        connection.begun_ns = time.monotonic_ns()
        self.connections[connection.fd] = connection
        self.poller.watch(connection.fd, READ | WRITE)
        pool.opening += 1
        pool.count += 1
        code = sock.connect_ex(pool.address.where)
        if code not in (0, errno.EINPROGRESS):
            self._lost(connection, _words(code))
            return False
        return True

    def _line(self, fd: int, pool: ConnectionPool) -> IntakeLine | None:
        if self.intake is None or pool.tls is not None or fd >= self.intake.count:
            return None
        line: IntakeLine = self.intake.lines[fd]
        ctypes.memset(ctypes.addressof(line), 0, ctypes.sizeof(line))
        return line

    def _writable(self, connection: Connection) -> None:
        if not connection.opened and connection.tls is None:
            code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._lost(connection, _words(code))
                return
            self.poller.change(connection.fd, READ)
            pool = connection.pool
            if pool.tls is not None:
                connection.tls = Tls(pool.tls, pool.address.name)
                self._shake_hands(connection, connection.tls)
            else:
                self._opened(connection)
            return
        data, connection.unsent = connection.unsent, b""
        self.poller.change(connection.fd, READ)
        if data:
            self._put(connection, data)

    def _shake_hands(self, connection: Connection, tls: Tls) -> None:
        try:
            connection.opened = tls.shake_hands()
        except TlsError as error:
            self._lost(connection, str(error))
            return
        data = tls.to_send()
        if data:
            self._put(connection, data)
        if connection.opened and connection.fd in self.connections:
            self._opened(connection)

    def _opened(self, connection: Connection) -> None:
        connection.opened = True
        connection.pool.opening -= 1
        now = time.monotonic_ns()
        connection.reach_ns = max(2 * (now - connection.begun_ns), STALE_NS)
        self._free(connection)

    def _free(self, connection: Connection) -> None:
        """It may carry the next request."""
        connection.request = None
        connection.rested = False
        if connection.line is not None:
            connection.line.ours = 0
        pool = connection.pool
        while pool.waiting:
            request = pool.waiting.popleft()
            if request.ticket in self.in_flight:
                self._send(connection, request)
                return
        connection.rested = True
        pool.idle.append(connection)

    def _lost(self, connection: Connection, why: str) -> None:
        """A connection is gone: with the request that it carried, or that waited for it."""
        request, pool, opening = connection.request, connection.pool, not connection.opened
        if self.connections.get(connection.fd) is not connection:
            return
        delivered = _was_delivered(connection)
        self._close(connection)
        now = time.monotonic_ns()
        if not connection.used and request is None:  # a server that takes no spare connections is not to be flooded
            pool.pause_ns = min(max(2 * pool.pause_ns, CHECK_NS), LONGEST_PAUSE_NS)
            pool.spare_ns = now + pool.pause_ns
        if opening:
            if len(pool.waiting) > pool.opening:  # nobody else is on the way to it
                self._end(pool.waiting.popleft(), UNSENT, f"no connection: {why}")
        elif request is None:
            return
        elif not delivered and self._stale(connection, request, now):
            request.tried += 1
            request.connection = None
            pool.waiting.appendleft(request)
            self._open(pool)
        else:
            self._end(request, BROKEN, why)

    def _stale(self, connection: Connection, request: Request, now: int) -> bool:
        """Whether the server had closed a connection that was open already before the request reached it.

        It did if it never acknowledged the request, and the loss shows so soon after sending that it cannot have worked
        on it.
        """
        soon = now - connection.sent_ns <= connection.reach_ns
        open_before = connection.rested or connection.used
        return open_before and soon and not request.blocks and request.tried < MOST_TRIES

    def _close(self, connection: Connection) -> None:
        if self.connections.get(connection.fd) is not connection:
            return
        if connection.request is not None:
            self._gain(connection, connection.request)
        if connection.line is not None:
            connection.line.ours = 0
        del self.connections[connection.fd]
        pool = connection.pool
        pool.count -= 1
        if pool.waiting:
            self.check_ns = 0  # there may be room for another
        if not connection.opened:
            pool.opening -= 1
        elif connection.request is None and connection in pool.idle:
            pool.idle.remove(connection)
        self.poller.forget(connection.fd)
        connection.sock.close()

    # Receiving.

    def _follow_line(self, connection: Connection) -> None:
        """What machine code has read of it: chunks that need no look, and what comes after them."""
        request, intake = connection.request, self.intake
        if request is None or intake is None or connection.line is None:
            return
        fd = connection.fd
        _, used, reads, size, followed, over, kernel, noted = intake.kept(fd)
        if not used:
            return
        head = bytes(intake.data(fd, size))
        if over and not request.blocks and request.twin is None and opens_chunks(head):  # all of it, as of most answers
            marks = intake.marks(fd, reads)
            ended_ns = marks[-1]
            events = intake.events(noted) if noted and is_good(head) else None
            less = events is not None and _weight(events) < used  # more: each of them says something new
            came = (head, events) if events and less else (bytes(intake.data(fd, used)), bytes(marks))
            intake.clear(fd)
            self._complete(connection, request, ended_ns, (*came, kernel))
        else:
            data = self._gain(connection, request)
            self._heard_first(request)
            self._follow(connection, request, data, size, followed)

    def _gain(self, connection: Connection, request: Request) -> bytes:
        """Move to a request what machine code has read for it; that."""
        intake, fd = self.intake, connection.fd
        if connection.line is None or intake is None:
            return b""
        _, used, reads, _, _, _, kernel, _ = intake.kept(fd)
        if not used:
            return b""
        data = bytes(intake.data(fd, used))
        request.keep(data, intake.marks(fd, reads), kernel)
        intake.clear(fd)
        return data

    def _readable(self, connection: Connection) -> None:
        self._follow_line(connection)
        if self.connections.get(connection.fd) is not connection:
            return
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
        if connection.tls is not None:
            plain, over = self._decrypt(connection, connection.tls, data)
            if plain:
                self._received(connection, plain, stamp, kernel)
            if over is not None and self.connections.get(connection.fd) is connection:
                self._ended_by_server(connection, over)
        else:
            self._received(connection, data, stamp, kernel)

    def _received(self, connection: Connection, data: bytes, stamp: int, kernel: bool) -> None:
        request = connection.request
        if request is None:  # nobody asked: whatever it is, the connection is of no use any more
            self._close(connection)
            return
        if request.marks:
            self.rest.note(stamp - request.marks[-1])
        request.keep(data, (len(data), stamp), kernel)
        self._heard_first(request)
        if not connection.framing.is_chunk(data):
            self._follow(connection, request, data)

    def _heard_first(self, request: Request) -> None:
        """Whichever of two copies is answered first is kept."""
        if request.twin is not None and request.twin.ticket in self.in_flight and _has_begun(request):
            self._give_up(request.twin, CANCELLED, time.monotonic_ns())

    def _follow(self, connection: Connection, request: Request, data: bytes, head: int = 0, followed: int = 0) -> None:
        """What is not one whole chunk, as most reads of a stream are: the beginning, the end, or several at once.

        It is whole chunks up to a place that was followed, after a head that ends there, if it is chunks at all.
        """
        framing = connection.framing
        try:
            whole = bool(head) and framing.feed(data[:head])
            if followed > head and framing.between_chunks:
                framing.pass_over(followed - head)
                head = followed
            whole = whole or framing.feed(data[head:])
        except WireError as error:
            if framing.size > LARGEST:  # nobody wants to read it
                del request.blocks[1:], request.marks[2:]
                request.blocks[0] = request.blocks[0][: request.marks[0]]
            self._close(connection)
            self._end(request, BROKEN, str(error))
            return
        if whole:
            if framing.end < request.marks[-2]:
                framing.keep = False
                _forget_after(request, framing.end)
            self._complete(connection, request)
        elif connection.line is not None:
            wait = self.plan.hedge_share >= 0 and not _has_begun(request)  # to be told when it does
            connection.line.chunked = 1 if framing.between_chunks and not wait else -1

    def _decrypt(self, connection: Connection, tls: Tls, data: bytes) -> tuple[bytes, str | None]:
        """What it says, and why it will say no more, if so."""
        tls.receive(data)
        if not connection.opened:
            self._shake_hands(connection, tls)
            if not connection.opened or connection.fd not in self.connections:
                return b"", None
        return tls.read()

    def _ended_by_server(self, connection: Connection, why: str = CLOSED) -> None:
        request = connection.request
        if request is not None and connection.framing.until_close and why == CLOSED:
            self._close(connection)
            self._end(request, DONE, "")
        else:
            self._lost(connection, why)

    def _complete(
        self, connection: Connection, request: Request, ended_ns: int | None = None, came: Came | None = None
    ) -> None:
        self._end(request, DONE, "", ended_ns, came)
        connection.used = True
        connection.pool.pause_ns = 0
        if connection.framing.keep and not connection.unsent:
            self._free(connection)
        else:
            self._close(connection)

    # Ends.

    def _give_up(self, request: Request, fate: str, ended_ns: int) -> None:
        """Stop listening; the connection goes, for its answer may still come."""
        if request.connection is not None:
            self._close(request.connection)
        self._end(request, fate, "", ended_ns)

    def _end(
        self, request: Request, fate: str, why: str, ended_ns: int | None = None, came: Came | None = None
    ) -> None:
        if self.in_flight.pop(request.ticket, None) is None:
            return
        if ended_ns is None:
            ended_ns = request.marks[-1] if fate == DONE else time.monotonic_ns()
        times = request.sent_ns, request.waited_ns, ended_ns
        came = came or (b"".join(request.blocks), request.marks.tobytes(), request.kernel)
        copied = request.twin is not None and request.twin.ticket in self.in_flight
        self.finished.append((request.ticket, fate, why, *times, *came, copied))
        request.payload, request.blocks, request.marks = b"", NO_BLOCKS, NO_MARKS  # a deadline may outlive it
        request.copy = request.twin = request.connection = None
        if self.plan.users:
            self.next_ns = self._next_ns()
        self.weight += len(came[0]) + _weight(came[1])
        waits = len(self.pending) < self.plan.users  # for more to ask, which comes when these are known to be over
        if len(self.finished) >= HAND_OVER or self.weight >= HEAVY or self.plan.eager or waits:
            self._hand_over()


def _weight(marks: Marks | Skimmed) -> int:
    return sum(map(len, marks)) if isinstance(marks, tuple) else len(marks)


def _insert(moments: Moments, moment: tuple[int, int, Request]) -> None:
    """Most come in order."""
    if not moments or moments[-1] < moment:
        moments.append(moment)
    else:
        bisect.insort(moments, moment)


def _forget_after(request: Request, end: int) -> None:
    """What came in reads after the one that completed an answer is no part of it."""
    marks = request.marks
    while len(marks) > 2 and marks[-4] >= end:
        del marks[-2:]
    request.blocks = [b"".join(request.blocks)[: marks[-2]]]
    request.kernel = min(request.kernel, len(marks) // 2)


def _has_begun(request: Request) -> bool:
    """Whether a good answer is there beyond its head, which many servers send long before they have anything to say."""
    body = b"" if request.begun else b"".join(request.blocks)
    while body:
        head, _, body = body.partition(b"\r\n\r\n")
        if head[9:10] != b"1":  # as in HTTP/1.1 100
            request.begun = bool(body) and is_good(head)
            break
    return request.begun


def _was_delivered(connection: Connection) -> bool:
    """Whether the other side has all that was sent to it, as its kernel says; a closed one acknowledges nothing."""
    try:
        left = fcntl.ioctl(connection.sock, termios.TIOCOUTQ, bytes(4))
    except OSError:  # not every system tells
        return False
    return not connection.unsent and not any(left)


def _words(code: int | None) -> str:
    return os.strerror(code).lower() if code else "unknown error"


def work(sock: socket.socket) -> None:
    """The body of a worker process: the first message is its plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the conductor decides what an interrupt means
    gc.disable()  # nothing here makes cycles, and a collection would hold up everything
    raise_file_limit()
    wake_exactly()
    keep_memory()
    channel = Channel(sock)
    with contextlib.suppress(GoneError):
        addresses, *plan = channel.first()
        _Worker(Plan([Address(*each) for each in addresses], *plan), channel).run()


if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])))
