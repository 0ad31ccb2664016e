"""Messages between the conductor and its workers: lists of plain values, over a pair of sockets that never block."""

import contextlib
import marshal
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<Q")
ROOM = 1 << 18  # for messages: most come and go in one piece


class GoneError(Exception):
    """Nobody is at the other end any more."""


class Channel:
    """One end of the pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self.sock = sock
        self.fd = sock.fileno()
        self._received = bytearray(ROOM)
        self._count = 0  # of bytes received
        self._unsent: list[memoryview] = []

    @property
    def full(self) -> bool:
        """Whether something is still to be sent, when the socket will take it."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Send, or keep what does not fit for `flush`. Values are numbers, text, bytes, tuples and lists."""
        data = marshal.dumps(message)
        self._unsent += [memoryview(_LENGTH.pack(len(data)) + data)]
        self.flush()

    def flush(self) -> None:
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                raise GoneError from None
            if sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][sent:]
                return
            del self._unsent[0]

    def receive(self) -> Iterator[Any]:
        """Messages that are here, after one read; raises GoneError after the last when the other end is closed."""
        if self._count == len(self._received):
            self._received += bytes(self._count)
        gone = False
        with contextlib.suppress(BlockingIOError):
            try:
                got = self.sock.recv_into(memoryview(self._received)[self._count :])
            except ConnectionError:
                got = 0
            self._count += got
            gone = not got
        yield from self._whole()
        if gone:
            raise GoneError

    def _whole(self) -> list[Any]:
        """Take out the messages that are whole."""
        messages, at = [], 0
        with memoryview(self._received) as received:
            while at + _LENGTH.size <= self._count:
                stop = at + _LENGTH.size + _LENGTH.unpack_from(received, at)[0]
                if stop > self._count:
                    break
                messages.append(marshal.loads(received[at + _LENGTH.size : stop]))
                at = stop
        self._received[: self._count - at] = self._received[at : self._count]
        self._count -= at
        return messages

    def close(self) -> None:
        self.sock.close()
