"""The worker of Python functions: it calls them when they are due, and stamps each piece that they give.

A function runs in a thread of its own, a coroutine in a loop that they share; whatever they do, the schedule is kept by
the main thread. A thread cannot be ended from outside: one that takes too long is left behind.
"""

import asyncio
import contextlib
import heapq
import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openloop.clock import READ, WRITE, Poller
from openloop.load.channel import Channel, GoneError
from openloop.load.wire import joined
from openloop.load.worker import BROKEN, CENSORED, DONE, TIMEOUT, UNSENT, Finished
from openloop.plugins import find_function
from openloop.workload import Ask

NEVER = 1 << 62
SWITCH_S = 0.0005  # a function that computes gives the schedule its turn so often

_ASK = msgspec.json.Decoder(Ask)


@dataclass(slots=True, eq=False)
class _Call:
    """One request. Its pieces are added by the thread that runs it, and read by the main one."""

    ticket: int
    due_ns: int
    function: Callable[[Ask], Any]
    payload: bytes
    taken_ns: int = 0
    sent_ns: int = 0
    ended_ns: int = 0
    pieces: list[tuple[bytes, int]] = field(default_factory=list)
    why: str = ""
    over: bool = False
    cancel: Callable[[], object] = lambda: None

    def add(self, piece: object) -> bool:
        """Whether somebody still listens."""
        if not isinstance(piece, str):
            raise TypeError(f"the function gave {type(piece).__name__} where it gives text")
        if piece:
            self.pieces.append((piece.encode("utf-8", "replace"), time.monotonic_ns()))
        return not self.over


class _Worker:
    def __init__(self, functions: list[Callable[[Ask], Any]], timeout_ns: int, users: int, channel: Channel) -> None:
        self.functions = functions
        self.timeout_ns = timeout_ns
        self.users = users  # of a closed loop; 0: an open one
        self.channel = channel
        self.pending: list[tuple[int, int, _Call]] = []  # not due yet: a heap
        self.in_flight: dict[int, _Call] = {}
        self.ended: deque[_Call] = deque()  # not handed over yet; filled by those that ran them
        self.finished: list[Finished] = []
        self.stop_ns = NEVER
        self.fed = False  # no more requests will come
        self.bell, self.ring = socket.socketpair()  # rung when a call has ended
        self.bell.setblocking(False)
        self.ring.setblocking(False)
        self.poller = Poller()
        self.poller.watch(channel.fd, READ)
        self.poller.watch(self.bell.fileno(), READ)
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        if any(map(_is_async, self.functions)):
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self._tell("ready")
        while not (self.fed and not self.pending and not self.in_flight):
            self._dispatch()
            self._collect()
            self._look_at_clock(time.monotonic_ns())
            if self.finished:
                self._tell("done", self.finished)
                self.finished = []
                continue
            for fd, _ in self.poller.wait(min(self._next_ns(), self._deadline_ns())):
                if fd == self.channel.fd:
                    self._hear()
                elif fd == self.bell.fileno():
                    self.bell.recv(1 << 16)
        self._tell("bye")
        while self.channel.full:
            self.poller.wait(None)
            self.channel.flush()

    # Messages, as the conductor and every worker exchange them.

    def _hear(self) -> None:
        self.channel.flush()
        self._watch_channel()
        for message in self.channel.receive():
            match message:
                case ("ask", asks):
                    for ticket, due_ns, where, payload, _, _ in asks:
                        call = _Call(ticket, due_ns, self.functions[where], payload)
                        heapq.heappush(self.pending, (due_ns, ticket, call))
                case ("end",):
                    self.fed = True
                case ("halt", from_ns, until_ns):  # nothing that is due from then on is called
                    self.pending = sorted(each for each in self.pending if each[0] < from_ns)
                    self.fed = True
                    self.stop_ns = until_ns
                case ("drain", until_ns):
                    self.stop_ns = until_ns

    def _tell(self, *message: Any) -> None:
        self.channel.send(message)
        self._watch_channel()

    def _watch_channel(self) -> None:
        self.poller.change(self.channel.fd, READ | WRITE if self.channel.full else READ)

    def _finish(self, call: _Call, fate: str, why: str, ended_ns: int) -> None:
        del self.in_flight[call.ticket]
        call.over = True
        pieces = list(call.pieces)  # an abandoned thread may still add to it
        said, stamps = [piece for piece, _ in pieces], [stamp for _, stamp in pieces]
        waited = call.sent_ns - call.taken_ns if call.sent_ns else 0
        self.finished.append((call.ticket, fate, why, call.sent_ns, waited, ended_ns, *joined(said, stamps), 0, False))

    # Calls.

    def _next_ns(self) -> int:
        """When to call next; where there are users, one of them must be free."""
        if not self.pending or (self.users and len(self.in_flight) >= self.users):
            return NEVER
        return self.pending[0][0]

    def _deadline_ns(self) -> int:
        first = min((call.due_ns for call in self.in_flight.values()), default=NEVER)
        return min(self.stop_ns, first + self.timeout_ns)

    def _dispatch(self) -> None:
        now = time.monotonic_ns()
        while self._next_ns() <= now:
            _, _, call = heapq.heappop(self.pending)
            call.taken_ns = now
            if self.users:
                call.due_ns = now  # a closed loop has no schedule
            self.in_flight[call.ticket] = call
            try:
                self._start(call)
            except RuntimeError as error:  # no more threads
                self._finish(call, UNSENT, f"no thread: {error}", time.monotonic_ns())
            now = time.monotonic_ns()

    def _start(self, call: _Call) -> None:
        if _is_async(call.function):
            asked: Coroutine[Any, Any, None] = self._run_async(call)
            call.cancel = asyncio.run_coroutine_threadsafe(asked, self.loop).cancel
        else:
            threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: _Call) -> None:
        if call.over:  # it was given up before it had its thread
            return
        error: BaseException | None = None
        try:
            said = self._call(call)
            if hasattr(said, "__next__"):
                all(map(call.add, said))  # until nobody listens
            else:
                call.add(said)
        except BaseException as raised:
            error = raised
        self._ended(call, error)

    def _call(self, call: _Call) -> Any:
        ask = _ASK.decode(call.payload)
        call.sent_ns = time.monotonic_ns()
        return call.function(ask)

    async def _run_async(self, call: _Call) -> None:
        error: BaseException | None = None
        try:
            said = self._call(call)
            if inspect.isawaitable(said):
                said = await said
            if hasattr(said, "__aiter__"):
                async for piece in said:
                    call.add(piece)
            else:
                call.add(said)
        except BaseException as raised:
            error = raised
        self._ended(call, error)

    def _ended(self, call: _Call, error: BaseException | None) -> None:
        call.ended_ns = time.monotonic_ns()
        if error is not None:
            call.why = f"{type(error).__name__}: {error}"[:300]
        self.ended.append(call)
        with contextlib.suppress(OSError):  # rung often enough, or nobody is there any more
            self.ring.send(b"!")

    def _collect(self) -> None:
        while self.ended:
            call = self.ended.popleft()
            if not call.over:
                self._finish(call, BROKEN if call.why else DONE, call.why, call.ended_ns)

    def _look_at_clock(self, now: int) -> None:
        """Give up on what takes too long; and on everything, when it is time to stop."""
        for call in list(self.in_flight.values()) if now >= self._deadline_ns() else ():
            late = now >= call.due_ns + self.timeout_ns
            if late or now >= self.stop_ns:
                self._finish(call, TIMEOUT if late else CENSORED, "", now if late else 0)
                call.cancel()
        if now >= self.stop_ns:
            self.pending.clear()
            self.fed = True


def _is_async(function: Callable[[Ask], Any]) -> bool:
    called = (function, type(function).__call__)  # an object may be called as well
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called)


def work(sock: socket.socket) -> None:
    """The body of the process: its plan is as other workers', with the function's name in place of an address.

    Connections, and so how many there are, mean nothing here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the conductor decides what an interrupt means
    sys.setswitchinterval(SWITCH_S)
    channel = Channel(sock)
    with contextlib.suppress(GoneError):
        addresses, timeout_ns, _, _, users, *_ = channel.first()
        _Worker([find_function(name) for _, name, *_ in addresses], timeout_ns, users, channel).run()


if __name__ == "__main__":
    try:
        work(socket.socket(fileno=int(sys.argv[1])))
    except Exception as error:
        print(f"a worker stopped: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that were left behind may never end
