"""The workers of a run: processes that send and stamp; what they are told, and what they bring back."""

import contextlib
import functools
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from openloop.clock import READ, WRITE, Poller
from openloop.load.channel import Channel, GoneError
from openloop.load.intake import gather, tables
from openloop.load.plan import Load, share_of
from openloop.load.worker import Finished
from openloop.native.kept import code_to_map
from openloop.persistence import SPARE
from openloop.units import to_ns


@dataclass
class Worker:
    channel: Channel
    process: "subprocess.Popen[bytes]"
    numbers: range  # of the requests that are its own
    ready: bool = False
    over: bool = False  # it has said goodbye, or is gone


class Crew:
    """All of them. Whoever dies is told of through `lost`."""

    def __init__(self, lost: Callable[[Worker], None]) -> None:
        self.workers: list[Worker] = []
        self.brought: deque[Finished] = deque()
        self.quiet_ns = 0  # when nobody had anything to say
        self._lost = lost
        self._poller = Poller()

    @property
    def ready(self) -> bool:
        return all(worker.ready or worker.over for worker in self.workers)

    @property
    def over(self) -> bool:
        return all(worker.over for worker in self.workers)

    def start(self, load: Load, requests: int, *, eager: bool) -> None:
        """As many as a run wants; where answers decide what is sent next, they are eager to bring them."""
        for number in range(load.workers):
            self.workers.append(self._start(load, number, requests, eager))

    def _start(self, load: Load, number: int, requests: int, eager: bool) -> Worker:
        limit, users = (share_of(each, number, load.workers) for each in (load.connections, load.users))
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", load.sites[0][1].worker, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                process_group=0,  # an interrupt at the terminal is for us to hear
            )
        channel = Channel(ours)
        mine = range(number, requests, load.workers)
        rate = len(mine) / load.seconds / len(load.sites) if not load.users else 0.0
        spare = max(4, min(256, int(rate * 0.1)))
        spare = min(spare, limit) if limit else spare
        addresses = [astuple(place.address) for place, _ in load.sites]
        hedge = load.hedge.after.seconds if load.hedge else None
        share = load.hedge.budget if load.hedge else -1.0
        free = (number + 1) * SPARE // load.workers - number * SPARE // load.workers
        plan = (to_ns(load.timeout_s), spare, limit, users, eager, to_ns(hedge or 0.0), share, free)
        skims = all(target.skims for _, target in load.sites)
        channel.send((addresses, *plan, intake_code(), skims))
        self._poller.watch(channel.fd, READ)
        return Worker(channel, process, mine)

    def listen(self, until_ns: int | None) -> None:
        """To all of them, until somebody says something or the moment comes."""
        for worker in self.workers:
            if not worker.over:
                self._poller.change(worker.channel.fd, READ | WRITE if worker.channel.full else READ)
        ready = dict(self._poller.wait(until_ns))
        if not any(worker.channel.fd in ready for worker in self.workers):
            self.quiet_ns = time.monotonic_ns()
        for worker in self.workers:
            if worker.over or worker.channel.fd not in ready:
                continue
            try:
                if ready[worker.channel.fd] & WRITE:
                    with contextlib.suppress(GoneError):
                        worker.channel.flush()
                for message in worker.channel.receive():
                    self._hear(worker, message)
            except GoneError:
                if not worker.over:
                    self._end(worker)
                    self._lost(worker)

    def _hear(self, worker: Worker, message: Any) -> None:
        match message:
            case ("ready",):
                worker.ready = True
            case ("done", finished):
                self.brought.extend(finished)
            case ("bye",):
                self._end(worker)

    def send(self, worker: Worker, message: Any) -> None:
        with contextlib.suppress(GoneError):  # it may have said goodbye, or more, which is to be heard first
            worker.channel.send(message)

    def tell(self, message: Any) -> None:
        """All that are at work."""
        for worker in self.workers:
            if not worker.over:
                self.send(worker, message)

    def _end(self, worker: Worker) -> None:
        worker.over = True
        self._poller.forget(worker.channel.fd)

    def give_up(self) -> None:
        """Nobody listens any more."""
        for worker in self.workers:
            worker.over = True

    def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
            worker.channel.close()
        self._poller.close()


@functools.cache
def intake_code() -> bytes:
    """For workers to read by; nothing where they have to do so in Python."""
    return code_to_map(gather, tables(1))
