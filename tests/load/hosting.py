"""Machines for tests: a process each, with a clock that is wrong by as much as is wanted."""

import contextlib
import pickle
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from openloop import __version__
from openloop.cluster import Host
from openloop.load.spread import MachinePart

HOME = Path(__file__).parents[2]
LENGTH = struct.Struct("<Q")


class Machine(Host):
    """Hosts a MachinePart. Its clock is ahead of ours by `skew_ns`; where it is `apart`, it does not see our disk."""

    def __init__(self, name: str, skew_ns: int = 0, *, apart: bool = False, version: str = __version__) -> None:
        self.name, self.skew_ns, self.apart = name, skew_ns, apart
        call = [sys.executable, "-m", "tests.load.hosting", version]
        self.process = subprocess.Popen(call, cwd=HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._asked: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._heard = True
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, method: str, *args: Any) -> "Future[Any]":
        if method in ("begin", "shift"):
            args = (args[0] - self.skew_ns, *args[1:])
        if method == "run" and self.apart:
            args = (*args[:-1], b"no such manifest")
        answer: Future[Any] = Future()
        with self._lock:
            self._count += 1
            self._asked[self._count] = method, answer
            if not self._heard:
                return answer
            assert self.process.stdin is not None
            try:
                _send(self.process.stdin, (self._count, method, args))
            except OSError:
                answer.set_exception(ConnectionError("the machine is gone"))
        return answer

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def cut(self) -> None:
        """Not heard of any more, and at work."""
        self._heard = False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for each in (self.process.stdin, self.process.stdout):
            assert each is not None
            with contextlib.suppress(OSError):
                each.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while message := _receive(self.process.stdout):
            number, failed, found = message
            method, answer = self._asked.pop(number)
            if not self._heard:
                continue
            if failed:
                answer.set_exception(found)
            elif method == "clock":
                answer.set_result(found + self.skew_ns)
            elif method == "news":
                answer.set_result((found[0], found[1] + self.skew_ns))
            else:
                answer.set_result(found)
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the machine is gone"))


def _send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    pipe.write(LENGTH.pack(len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(LENGTH.size)
    return pickle.loads(pipe.read(LENGTH.unpack(head)[0])) if len(head) == LENGTH.size else None


def main() -> None:
    part, lock = MachinePart(sys.argv[1]), threading.Lock()

    def answer(number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            found = number, False, getattr(part, method)(*args)
        except Exception as error:
            found = number, True, error
        with lock:
            _send(sys.stdout.buffer, found)

    while message := _receive(sys.stdin.buffer):
        threading.Thread(target=answer, args=message, daemon=True).start()


if __name__ == "__main__":
    main()
