"""Time as precisely as this system tells it: exact moments to wake up at, and when bytes reached this machine.

All times are nanoseconds of the monotonic clock, which every process of a machine shares. Where the kernel stamps what
it receives (Linux), a stamp is free of whatever delays this process: it is brought from the kernel's wall clock to ours
by an offset that is measured anew all the time.
"""

import contextlib
import ctypes
import os
import resource
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READ: Final = 1
WRITE: Final = 4
EDGE: Final = 1 << 31  # told once: nobody has to read it

TOGETHER_NS: Final = 250_000  # what comes within it was sent at once, as the end of most answers is

_SHORTEST_NS: Final = 125_000
_FEW: Final = 100
_LIGHT_NS: Final = 1_000_000
_TIMESTAMPNS: Final = 35  # SO_TIMESTAMPNS, the same on all common architectures
_ANCILLARY: Final = 64
_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_SOON_NS: Final = 20_000_000
_LONG_NS: Final = 600_000_000_000
_unpack: Final = struct.Struct("qq").unpack
_TIMER_SLACK: Final = 29  # PR_SET_TIMERSLACK
_TRIM_THRESHOLD: Final = -1  # as mallopt knows them
_MMAP_THRESHOLD: Final = -3


@dataclass(frozen=True)
class Offset:
    """Another machine's clock minus ours, and how far from that it can be."""

    ns: int
    error_ns: int

    def corrected(self, measured: "Offset") -> "Offset":
        """The same, unless a measurement proves it wrong; then changed by as much as is proven."""
        low, high = measured.ns - measured.error_ns, measured.ns + measured.error_ns
        ns = min(max(self.ns, low), high)
        return self if ns == self.ns else Offset(ns, 2 * measured.error_ns)


def offset_of(readings: Iterable[tuple[int, int, int]]) -> Offset:
    """From readings of the other clock, each between two of ours.

    Every one is a proof: the other clock was not ahead by more than it shows against our earlier time, and not by less
    than against our later one. What all of them allow is the answer; nothing is assumed of the ways there and back.
    """
    kept = list(readings)
    high = min(there - before for before, there, _ in kept)
    low = max(there - after for _, there, after in kept)
    return Offset((low + high) // 2, abs(high - low + 1) // 2 + 1)


class Receiver:
    """Reads sockets, and says when what it read had arrived."""

    exact = sys.platform == "linux"  # by the kernel

    def __init__(self) -> None:
        self.offset_ns = self._known_ns = 0  # a moment that is past
        self.refresh()

    @staticmethod
    def prepare(sock: socket.socket) -> None:
        """Ask the kernel to stamp what this socket receives, where it can."""
        if Receiver.exact:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)

    def refresh(self) -> None:
        """Measure the offset between the clocks, by the tightest of three readings; do so a few times a second."""
        readings = []
        for _ in range(3):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            readings.append((after - before, wall - (before + after) // 2))
        self.offset_ns = min(readings)[1]

    def read(self, sock: socket.socket, size: int = 16384) -> tuple[bytes, int, bool]:
        """What a socket holds, when (the last of) it had arrived, and whether it is the kernel that says so."""
        if sys.platform != "linux":
            return sock.recv(size), time.monotonic_ns(), False
        data, ancillary, _, _ = sock.recvmsg(size, _ANCILLARY)
        if not ancillary:
            return data, time.monotonic_ns(), False
        seconds, rest = _unpack(ancillary[0][2])
        wall = seconds * 1_000_000_000 + rest
        stamp = wall - self.offset_ns
        if self._known_ns - _SOON_NS < stamp <= self._known_ns:
            return data, stamp, True
        return data, *self._checked(wall)

    def _checked(self, wall: int) -> tuple[int, bool]:
        """A stamp of the wall clock on ours, if it can be; else now."""
        now = self._known_ns = time.monotonic_ns()
        if not now - _SOON_NS < wall - self.offset_ns <= now:  # the wall clock was set, or nobody read for a while
            self.refresh()
            if not now - _LONG_NS < wall - self.offset_ns <= now + _SOON_NS:
                return now, False
        return wall - self.offset_ns, True


class Rest:
    """How long a crowd of sockets may be left alone, for the kernel stamps what arrives and being woken costs most.

    Two tokens that come meanwhile are one read, and the time of the first is lost. So it is half of the time between
    two reads of a socket, but for few of them, and hardly any where it is long.
    """

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        self.ns = self._shortest_ns = min(_SHORTEST_NS, longest_ns)
        self.gaps = self.brisk = self.lively = 0  # times between reads, and those too short for this rest and a longer

    @property
    def brisk_ns(self) -> int:
        return 2 * self.ns

    @property
    def lively_ns(self) -> int:
        return 2 * self._longer_ns

    @property
    def _longer_ns(self) -> int:
        return min(2 * self.ns, self._longest_ns)

    def note(self, gap_ns: int) -> None:
        """So much time was between two reads of a socket."""
        if gap_ns > TOGETHER_NS:
            self.gaps += 1
            self.brisk += gap_ns < self.brisk_ns
            self.lively += gap_ns < self.lively_ns

    def adapt(self) -> None:
        """Go by what was noted since the last time, if that is enough."""
        if self.gaps < _FEW:
            return
        if self.brisk > _few(self.ns) * self.gaps:
            self.ns = max(self.ns // 2, self._shortest_ns)
        elif self.lively <= _few(self._longer_ns) * self.gaps:
            self.ns = self._longer_ns
        self.gaps = self.brisk = self.lively = 0


def _few(rest_ns: int) -> float:
    """The share of times between reads that may be too short for a rest."""
    return 0.05 if rest_ns <= _LIGHT_NS else 0.01


class Poller:
    """Waits for sockets until an exact moment."""

    def __init__(self) -> None:
        self._exact = sys.platform == "linux"
        if self._exact:
            self._epoll = select.epoll()
            self._timer = Timer()
            self._epoll.register(self._timer.fd, READ | EDGE)
        else:
            self._selector = selectors.DefaultSelector()

    def fileno(self) -> int:
        """Of the kernel's own poller."""
        return self._epoll.fileno()

    def watch(self, fd: int, mask: int) -> None:
        if self._exact:
            self._epoll.register(fd, mask)
        else:
            self._selector.register(fd, _selected(mask))

    def change(self, fd: int, mask: int) -> None:
        if self._exact:
            self._epoll.modify(fd, mask)
        else:
            self._selector.modify(fd, _selected(mask))

    def forget(self, fd: int) -> None:
        if self._exact:
            self._epoll.unregister(fd)
        else:
            self._selector.unregister(fd)

    def wait(self, until_ns: int | None) -> list[tuple[int, int]]:
        """What can be read (or is broken) or written, as (fd, mask), until the moment comes; then maybe nothing.

        The timer may be among them: a file that nobody knows.
        """
        if not self._exact:
            return self._select(until_ns)
        ready = self._epoll.poll(0)
        if ready or (until_ns is not None and until_ns <= time.monotonic_ns()):
            return ready
        self._timer.set(until_ns)
        return self._epoll.poll()

    def rest(self, until_ns: int) -> None:
        """Wait for the moment and for nothing else, where that can be told exactly."""
        left = until_ns - time.monotonic_ns()
        if self._exact and left > 0:
            time.sleep(left / 1e9)

    def close(self) -> None:
        if self._exact:
            self._epoll.close()
            self._timer.close()
        else:
            self._selector.close()

    def _select(self, until_ns: int | None) -> list[tuple[int, int]]:
        timeout = None if until_ns is None else max(until_ns - time.monotonic_ns(), 0) / 1e9
        found = self._selector.select(timeout)
        return [
            (key.fd, bool(mask & selectors.EVENT_READ) * READ | bool(mask & selectors.EVENT_WRITE) * WRITE)
            for key, mask in found
        ]


def _selected(mask: int) -> int:
    return bool(mask & READ) * selectors.EVENT_READ | bool(mask & WRITE) * selectors.EVENT_WRITE


def raise_file_limit() -> None:
    """As many sockets at once as this process may have."""
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def wake_exactly() -> None:
    """A sleep of this thread ends when it is over, where the system else rounds up to be woken less often."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def keep_memory() -> None:
    """What is let go of is soon wanted again: asking the kernel for it each time costs more than all copying."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_TRIM_THRESHOLD, 16 << 20)
            mallopt(_MMAP_THRESHOLD, 1 << 20)


def stolen_s() -> float:
    """Seconds of processor time that the host of this virtual machine gave to others, since it started."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """A timer of the kernel that becomes readable at a moment: waiting by a number of milliseconds is too coarse."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._settime = libc.timerfd_settime
        self._setting = _Setting()
        self._pointer = ctypes.byref(self._setting)
        self._at: int | None = None

    def set(self, at_ns: int | None) -> None:
        """The moment, or None for never. One that is set already has not passed: the caller looked at the clock."""
        if at_ns != self._at:
            value = self._setting.value
            value.seconds, value.nanoseconds = divmod(at_ns or 0, 1_000_000_000)
            self._settime(self.fd, _ABSOLUTE, self._pointer, None)
            self._at = at_ns

    def close(self) -> None:
        os.close(self.fd)
