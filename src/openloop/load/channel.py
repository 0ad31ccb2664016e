"""Messages between the conductor and its workers: lists of plain values, over a pair of sockets that never block."""

import contextlib
import marshal
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<Q")
READ_SIZE = 1 << 16
ROOM = 1 << 18  # for what is sent: most messages go in one piece


class GoneError(Exception):
    """Nobody is at the other end any more."""


class Channel:
    """One end of the pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self.sock = sock
        self.fd = sock.fileno()
        self._received = bytearray()
        self._unsent: list[memoryview] = []

    @property
    def full(self) -> bool:
        """Whether something is still to be sent, when the socket will take it."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Send, or keep what does not fit for `flush`. Values are numbers, text, bytes, tuples and lists."""
        data = marshal.dumps(message)
        length = _LENGTH.pack(len(data))
        pieces = [length + data] if len(data) < ROOM else [length, data]  # what is large is not copied again
        self._unsent += map(memoryview, pieces)
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
        gone = False
        with contextlib.suppress(BlockingIOError):
            try:
                data = self.sock.recv(READ_SIZE)
            except ConnectionError:
                data = b""
            self._received += data
            gone = not data
        while len(self._received) >= _LENGTH.size:
            stop = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < stop:
                break
            with memoryview(self._received) as received, received[_LENGTH.size : stop] as message:
                found = marshal.loads(message)
            del self._received[:stop]
            yield found
        if gone:
            raise GoneError

    def first(self) -> Any:
        """The first message of all, waited for. What follows it is not read yet, so that a poller tells of it."""
        self.sock.setblocking(True)
        try:
            (size,) = _LENGTH.unpack(self.sock.recv(_LENGTH.size, socket.MSG_WAITALL))
            found = marshal.loads(self.sock.recv(size, socket.MSG_WAITALL))
        except (OSError, struct.error, EOFError):
            raise GoneError from None
        self.sock.setblocking(False)
        return found

    def close(self) -> None:
        self.sock.close()
