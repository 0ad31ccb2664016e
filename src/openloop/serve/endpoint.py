"""The built-in endpoint: HTTP on loopback around an engine, one thread, and a record of the truth.

It notes when each request reached this machine and when each token was handed to the kernel, by the clock that a load
generator on the same machine uses, so the error of a measurement is known to the microsecond.
"""

import contextlib
import random
import socket
import struct
import time
from array import array
from dataclasses import dataclass, field

import msgspec

from openloop.clock import READ, WRITE, Poller, Receiver, raise_file_limit
from openloop.errors import SpecError
from openloop.said import NO_SENSE
from openloop.serve.answers import WORDS, Ask, Behaviour, Voice, chunk, read_ask, respond
from openloop.serve.engine import Engine, EngineSpec

LARGEST_REQUEST = 64 << 20
BACKLOG = 4096
DRIP_NS = 1_000_000_000


@dataclass(slots=True)
class _Truth:
    arrived_ns: int
    written_ns: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    fd: int
    received: bytes = b""
    arrived_ns: int = 0
    unsent: bytes = b""
    answering: "_Answer | None" = None  # requests on a connection are answered one after the other
    last: bool = False  # the client wants it closed after this answer
    closing: bool = False


@dataclass(slots=True)
class _Answer:
    """A request on its way through the engine, which knows it by its key."""

    key: int
    connection: _Connection
    ask: Ask
    chat: bool
    truth: _Truth
    fault: str | None
    prompt_tokens: int
    given: int = 0
    begun: bool = False  # its head and role are out
    dripping: bytes = b""


class Endpoint:
    """`run` until `stop`; requests are served under the model's name."""

    def __init__(
        self, engine: EngineSpec, model: str = "openloop", host: str = "127.0.0.1", port: int = 0, seed: int = 0
    ) -> None:
        raise_file_limit()
        self.behaviour = Behaviour()
        self._engine: Engine = engine.start(seed)
        self._voice = Voice(model)
        self._random = random.Random(seed)
        self._receiver = Receiver()
        self._poller = Poller()
        try:
            host = host.strip("[]")  # which a URL has around it
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            why = (error.strerror or "").partition(" (while")[0]
            raise SpecError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from None
        self._listener.setblocking(False)
        name, self.port = self._listener.getsockname()[:2]
        self.host = f"[{name}]" if ":" in name else name  # as a URL has it
        self._poller.watch(self._listener.fileno(), READ)
        self._woken, self._waker = socket.socketpair()
        self._poller.watch(self._woken.fileno(), READ)
        self._connections: dict[int, _Connection] = {}
        self._answers: dict[int, _Answer] = {}
        self._truth: dict[int, _Truth] = {}
        self._drips: list[tuple[int, _Answer]] = []
        self._served = self._key = self._read_tokens = self._made_tokens = 0
        self._since_ns = time.monotonic_ns()
        self._stopping = False

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        with contextlib.suppress(OSError):  # it may have noticed by itself, and be gone
            self._waker.send(b"!")

    def run(self) -> None:
        refreshed = 0
        while not self._stopping:
            for fd, mask in self._poller.wait(self._next_ns()):
                connection = self._connections.get(fd)
                if connection is None:
                    if fd == self._listener.fileno():
                        self._accept()
                    continue
                if mask & WRITE:
                    self._flush(connection)
                if mask & ~WRITE:
                    self._receive(connection)
            self._give_tokens()
            if time.monotonic_ns() > refreshed + 200_000_000:
                self._receiver.refresh()
                refreshed = time.monotonic_ns()
        self.close()

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        for sock in (self._listener, self._woken, self._waker):
            sock.close()
        self._poller.close()

    def _next_ns(self) -> int | None:
        moments = [self._drips[0][0]] if self._drips else []
        due = self._engine.next_ns()
        if due is not None:
            moments.append(self.behaviour.stalled_until(max(due, time.monotonic_ns()), self._since_ns))
        return min(moments, default=None)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # nobody waits, or there are no more files and those who wait go on waiting
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._receiver.prepare(sock)
                self._connections[sock.fileno()] = _Connection(sock, sock.fileno())
                self._poller.watch(sock.fileno(), READ)

    def _receive(self, connection: _Connection) -> None:
        try:
            data, stamp, _ = self._receiver.read(connection.sock, 65536)
        except BlockingIOError:
            return
        except OSError:
            data, stamp = b"", 0
        if not data:
            self._drop(connection)
            return
        connection.arrived_ns = stamp
        connection.received += data
        self._read_requests(connection)

    def _read_requests(self, connection: _Connection) -> None:
        while connection.received and connection.answering is None and not connection.closing:
            end = connection.received.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = connection.received[:end].decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            length = headers.get("content-length", "0" if "transfer-encoding" not in headers else "not told")
            if not (length.isascii() and length.isdigit() and len(length) < 18) or int(length) > LARGEST_REQUEST:
                self._send(connection, self._voice.refuse(413, "a request is at most 64 MiB, and says its length"))
                self._close_after(connection)
                return
            whole = end + 4 + int(length)
            if len(connection.received) < whole:
                return
            body, connection.received = connection.received[end + 4 : whole], connection.received[whole:]
            method, path = (*lines[0].split(" "), "", "")[:2]
            self._route(connection, method, path.partition("?")[0], headers, body)

    def _route(self, connection: _Connection, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        match method, path.removeprefix("/v1"):
            case "POST", "/chat/completions" | "/completions":
                self._take(connection, path.endswith("/chat/completions"), headers, body)
            case "GET", "/models":
                self._send(connection, self._voice.models())
            case "GET", "/health":
                self._send(connection, respond(200, b"{}"))
            case "GET", "/metrics":
                self._send(connection, respond(200, self._metrics(), "text/plain; version=0.0.4"))
            case "GET", "/truth":
                self._send(connection, respond(200, self._tell_truth()))
            case "DELETE", "/truth":
                self._truth.clear()
                self._send(connection, respond(200, b"{}"))
            case "POST", "/behaviour":
                self._send(connection, self._behave(body))
            case _:
                self._send(connection, self._voice.refuse(404, f"there is nothing at {method} {path}"))
        connection.last = "close" in map(str.strip, headers.get("connection", "").lower().split(","))
        if connection.last and connection.answering is None:
            self._close_after(connection)

    def _behave(self, body: bytes) -> bytes:
        try:
            self.behaviour = msgspec.json.decode(body, type=Behaviour)
        except msgspec.MsgspecError as error:
            return self._voice.refuse(400, str(error))
        self._engine.slowness = self.behaviour.slowness
        self._since_ns = time.monotonic_ns()
        return respond(200, msgspec.json.encode(self.behaviour))

    def _take(self, connection: _Connection, chat: bool, headers: dict[str, str], body: bytes) -> None:
        try:
            ask = read_ask(body)
            words = ask.words()
        except NO_SENSE as error:
            self._send(connection, self._voice.refuse(400, f"the request is no JSON that makes sense: {error}"))
            return
        if ask.model != self._voice.model:
            told = f"the model {ask.model!r} does not exist; there is {self._voice.model!r}"
            self._send(connection, self._voice.refuse(404, told))
            return
        self._key += 1
        number = headers.get("x-request-id", "")
        truth = _Truth(connection.arrived_ns)
        known = number.isascii() and number.isdigit() and len(number) < 18
        self._truth[int(number) if known else -self._key] = truth
        fault = self.behaviour.fault if self._random.random() < self.behaviour.share else None
        if self._refused(connection, fault):
            return
        answer = _Answer(self._key, connection, ask, chat, truth, fault, max(len(words), 1))
        connection.answering = self._answers[self._key] = answer
        if ask.stream and chat and self.behaviour.early_role and fault is None:
            answer.begun = True
            self._send(connection, Voice.STREAM_HEAD + self._voice.role)
        if fault != "hang":
            now = time.monotonic_ns()
            self._engine.submit(self._key, answer.prompt_tokens, ask.output_tokens, now, words)

    def _refuse_failed(self) -> None:
        """Whom the engine does not serve, or not to the end."""
        for key, busy in self._engine.failed():
            answer = self._answers.get(key)
            if answer is None:
                continue
            if answer.given:
                self._drop(answer.connection)
                continue
            why = (
                "there is no room for it now" if busy else "it cannot be served: it is too long, or the replica is gone"
            )
            self._send(answer.connection, self._voice.refuse(429 if busy else 503, why))
            self._finish(answer)

    def _refused(self, connection: _Connection, fault: str | None) -> bool:
        """Faults that come in place of an answer."""
        statuses = {"error": 500, "unauthorized": 401, "overloaded": 503}
        if fault in statuses:
            self._send(connection, self._voice.refuse(statuses[fault], f"{fault}, as commanded"))
        elif fault == "refuse":
            self._drop(connection)
        return fault in statuses or fault == "refuse"

    def _give_tokens(self) -> None:
        now = time.monotonic_ns()
        while self._drips and self._drips[0][0] <= now:
            self._drip(self._drips.pop(0)[1])
        if self.behaviour.stalled_until(now, self._since_ns) > now:
            return
        for key in self._engine.advance(now):
            answer = self._answers.get(key)
            if answer is not None:
                self._give(answer)
        self._refuse_failed()

    def _give(self, answer: _Answer) -> None:
        """One token; with the first come the headers, with the last the rest of the protocol."""
        ask, connection = answer.ask, answer.connection
        answer.given += 1
        self._made_tokens += 1
        self._read_tokens += answer.prompt_tokens if answer.given == 1 else 0
        last = answer.given == ask.output_tokens
        if not ask.stream or answer.fault == "whole":
            if last:
                known = self._engine.cached(answer.key)
                self._write(answer, self._voice.whole(answer.chat, answer.prompt_tokens, ask.output_tokens, known))
                self._finish(answer)
            return
        data = self._voice.tokens[answer.chat][(answer.given - 1) % len(WORDS)]
        if answer.given == 1 and not answer.begun:
            data = Voice.STREAM_HEAD + (self._voice.role if answer.chat else b"") + data
        if last:
            data += self._voice.last[answer.chat]
            if ask.wants_usage:
                known = self._engine.cached(answer.key)
                data += self._voice.usage(answer.chat, answer.prompt_tokens, ask.output_tokens, known)
            data += Voice.DONE + Voice.END
        if answer.fault is not None:
            self._misbehave(answer, data)
            return
        self._write(answer, data)
        if last and connection.answering is answer:
            self._finish(answer)

    def _misbehave(self, answer: _Answer, data: bytes) -> None:
        """Faults in the middle of a stream."""
        connection, half = answer.connection, answer.given > answer.ask.output_tokens // 2
        if answer.fault == "drip":
            answer.dripping += data
            if answer.given == 1:
                self._drips.insert(0, (time.monotonic_ns(), answer))
        elif answer.fault == "garbage":
            self._write(answer, (Voice.STREAM_HEAD if answer.given == 1 else b"") + chunk(b"data: {{garbage\n\n"))
            if answer.given == answer.ask.output_tokens:
                self._send(connection, Voice.END)
                self._finish(answer)
        elif not half:
            self._write(answer, data)
        elif answer.fault == "late":
            self._send(connection, chunk(b'data: {"error": {"message": "it broke, as commanded", "code": 500}}\n\n'))
            self._send(connection, Voice.DONE + Voice.END)
            self._finish(answer)
        elif answer.fault == "cut":
            self._send(connection, Voice.END)
            self._finish(answer)
        else:  # reset: unread bytes are thrown away, and so is what was not yet sent
            with contextlib.suppress(OSError):
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._drop(connection)

    def _drip(self, answer: _Answer) -> None:
        if not self._open(answer.connection):
            return
        self._write(answer, answer.dripping[:1])
        answer.dripping = answer.dripping[1:]
        if answer.dripping or answer.given < answer.ask.output_tokens:
            self._drips.append((time.monotonic_ns() + DRIP_NS, answer))
        else:
            self._finish(answer)

    def _write(self, answer: _Answer, data: bytes) -> None:
        """Send, and remember when."""
        answer.truth.written_ns.append(time.monotonic_ns())
        self._send(answer.connection, data)

    def _finish(self, answer: _Answer) -> None:
        self._served += answer.given == answer.ask.output_tokens
        self._answers.pop(answer.key, None)
        self._engine.cached(answer.key)  # nobody will ask
        if answer.given < answer.ask.output_tokens:
            self._engine.cancel(answer.key)
        connection = answer.connection
        connection.answering = None
        if connection.last:
            self._close_after(connection)
        if self._open(connection):
            self._read_requests(connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if sent < len(data):
            connection.unsent = data[sent:]
            self._poller.change(connection.fd, READ | WRITE)

    def _flush(self, connection: _Connection) -> None:
        data, connection.unsent = connection.unsent, b""
        self._poller.change(connection.fd, READ)
        self._send(connection, data)
        if connection.closing and not connection.unsent:
            self._drop(connection)

    def _close_after(self, connection: _Connection) -> None:
        connection.closing = True
        if not connection.unsent:
            self._drop(connection)

    def _open(self, connection: _Connection) -> bool:
        """The number of one that is closed may be another's by now."""
        return self._connections.get(connection.fd) is connection

    def _drop(self, connection: _Connection) -> None:
        if not self._open(connection):
            return
        del self._connections[connection.fd]
        self._poller.forget(connection.fd)
        connection.sock.close()
        if connection.answering is not None:
            del self._answers[connection.answering.key]
            self._engine.cancel(connection.answering.key)

    def _metrics(self) -> bytes:
        values: dict[str, float] = {
            "vllm:num_requests_running": self._engine.running,
            "vllm:num_requests_waiting": self._engine.waiting,
            "vllm:prompt_tokens_total": self._read_tokens,
            "vllm:generation_tokens_total": self._made_tokens,
            "vllm:request_success_total": self._served,
        }
        values |= self._engine.figures()
        kinds = {True: "counter", False: "gauge"}
        return "".join(
            f"# TYPE {name} {kinds[name.endswith('_total')]}\n{name} {value}\n" for name, value in values.items()
        ).encode()

    def _tell_truth(self) -> bytes:
        """By number of the request: when it arrived, and when each of its tokens was written."""
        told = {
            "number": list(self._truth),
            "arrived_ns": [truth.arrived_ns for truth in self._truth.values()],
            "written_ns": [truth.written_ns.tolist() for truth in self._truth.values()],
        }
        return msgspec.json.encode(told)
