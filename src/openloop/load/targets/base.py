"""What all targets have in common: what they are told, what they tell, and how a server's refusal is read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec

from openloop.load.address import secrets_of
from openloop.load.reply import Events, Reply
from openloop.load.skim import Skimmed
from openloop.load.wire import Marks, encode_head
from openloop.said import NO_SENSE, SHED, Outcome, fail, message, settle, short, without_keys, without_secrets
from openloop.workload import Ask

T = TypeVar("T")

OWN_HEADERS = ("x-request-id", "content-length")
OPEN, CLOSE = b"{}"


@dataclass(frozen=True)
class Target(ABC):
    """Somebody to ask."""

    key_env: ClassVar[str] = "OPENAI_API_KEY"  # the variable that usually holds the key
    has_models: ClassVar[bool] = True  # and tells which
    worker: ClassVar[str] = "openloop.load.worker"  # who sends

    host: str
    model: str = ""
    base: str = ""  # path before /v1
    headers: dict[str, str] = field(default_factory=dict)
    stream: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # more for the body of every request
    keep_text: bool = False
    replica_header: str = ""  # of responses: says who served
    query: str = ""  # of the URL, with its question mark

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:
        """How a request shows an API key."""
        return {"Authorization": f"Bearer {key}"}

    @cached_property
    def secrets(self) -> dict[str, str]:
        return secrets_of(self.headers, self.query)

    @abstractmethod
    def encode(self, ask: Ask, number: int) -> bytes:
        """The whole request."""

    @property
    def skims(self) -> bool:
        """Whether an answer may be read by its events alone."""
        return False

    @abstractmethod
    def read(self, raw: bytes, marks: Marks | Skimmed) -> Outcome:
        """What came back, and how it came; or only its head and events, where these are enough."""


class HttpTarget(Target):
    """A server over HTTP."""

    method: str = "POST"
    path: str = ""
    usual_headers: ClassVar[dict[str, str]] = {"Content-Type": "application/json"}
    fewest: ClassVar[int] = 1  # tokens of an answer that may be asked for

    def wrap(self, body: bytes, number: int) -> bytes:
        return b"%bX-Request-Id: %d\r\nContent-Length: %d\r\n\r\n%b" % (self._head, number, len(body), body)

    @cached_property
    def _head(self) -> bytes:
        """What the user says of a header goes, but for those that every request has its own of."""
        given = {name: value for name, value in self.headers.items() if name.lower() not in OWN_HEADERS}
        names = {name.lower() for name in given}
        usual = {name: value for name, value in self.usual_headers.items() if name.lower() not in names}
        return encode_head(self.method, self.base + self.path + self.query, self.host, usual | given)

    def read(self, raw: bytes, marks: Marks | Skimmed) -> Outcome:
        return self.decode(Reply(raw, marks, every_word=self.keep_text))

    def decode(self, reply: Reply) -> Outcome:
        status = reply.http_status
        found = Outcome(http_status=status, first_any_ns=reply.first_ns)
        if self.replica_header:
            found.replica = reply.headers.get(self.replica_header.lower())
        if 200 <= status < 300:
            self.read_reply(reply, found)
            settle(found)
        else:
            fail(found, refusal(reply), "shed" if status in SHED else "error")
        found.error = found.error and without_secrets(found.error, self.secrets)
        for name in ("finish_reason", "replica", "text") if self.secrets else ():
            if said := getattr(found, name):
                setattr(found, name, without_keys(said, self.secrets))
        return found

    @abstractmethod
    def read_reply(self, reply: Reply, found: Outcome) -> None:
        """Of a success."""


def refusal(reply: Reply) -> str:
    """What is said in place of a success: it may repeat secrets."""
    elsewhere = reply.headers.get("location") if 300 <= reply.http_status < 400 else None
    return f"status {reply.http_status}: {f'it is at {elsewhere}' if elsewhere else message(reply.body)}"


class JsonTarget(HttpTarget):
    """A server that is posted JSON, and answers with JSON or with events of it."""

    streams: bool = True  # it can
    event: ClassVar["msgspec.json.Decoder[Any]"]
    answer: ClassVar["msgspec.json.Decoder[Any]"]

    @property
    def skims(self) -> bool:
        return self.stream and self.streams and not self.keep_text

    def encode(self, ask: Ask, number: int) -> bytes:
        body = {"model": self.model, **self.body(ask), **self.extra, **(ask.body or {})}
        return self.wrap(msgspec.json.encode(body), number)

    @abstractmethod
    def body(self, ask: Ask) -> dict[str, Any]:
        """What it says besides the model."""

    def hear(self, said: list[Any], data: list[bytes], found: Outcome) -> list[int]:  # noqa: ARG002
        """Read the runs of a stream, each by its first event, which is there as it came as well; the numbers of those
        with words, in order. Of a server that never streams, none has."""
        return []

    def tokens(self, said: list[Any], events: Events, spoken: list[int]) -> list[int] | None:  # noqa: ARG002
        """How many each event with words brought, if the server tells; these runs of events are what it said."""
        return None

    @abstractmethod
    def hear_all(self, said: Any, found: Outcome) -> None:
        """Read an answer that came at once: when its tokens were made is not known."""

    def read_reply(self, reply: Reply, found: Outcome) -> None:
        kind = reply.headers.get("content-type", "").lower()
        packed = reply.headers.get("content-encoding", "").lower()
        if packed not in ("", "identity"):
            fail(found, f"the answer is packed as {packed[:40]}, which nobody asked for")
        elif not (self.stream and self.streams):
            self._read_answer(reply, found)
        elif "event-stream" in kind or reply.streams:
            self._read_stream(reply, found)
        else:
            fail(found, f"a streaming request was answered with {kind or 'nothing that says what it is'}")

    def _read_stream(self, reply: Reply, found: Outcome) -> None:
        events = reply.events()
        data = events.data
        if b"[DONE]" in data:
            data = data[: data.index(b"[DONE]")]
        said, bad = _decode_all(self.event, data)
        spoken = self.hear(said, data, found)
        found.event_tokens = self.tokens(said, events, spoken)
        at, latest, coming = 0, -1, iter(spoken)
        next_spoken = next(coming, -1)
        for place, (_, _, size, reads, first, last) in enumerate(events.runs):
            if place == next_spoken:
                found.event_ns += events.stamps[at : at + size]
                found.merged_events += size - reads + (first == latest)
                latest, next_spoken = last, next(coming, -1)
            at += size
        if found.status == "ok" and bad is not None and bad.strip() != b"[DONE]":
            fail(found, f"an event is not JSON that makes sense: {short(bad)}")
        elif found.status == "ok" and found.finish_reason is None:
            fail(found, "the stream ended without a finish reason")

    def _read_answer(self, reply: Reply, found: Outcome) -> None:
        try:
            said = self.answer.decode(reply.body)
        except NO_SENSE:
            fail(found, f"the answer is not JSON that makes sense: {short(reply.body)}")
            return
        if said.error is not None:
            fail(found, message(reply.body))
        else:
            self.hear_all(said, found)


def _decode_all(decoder: "msgspec.json.Decoder[T]", data: Sequence[bytes]) -> tuple[list[T], bytes | None]:
    """Every event up to the first that makes no sense, and that one. In one call, where all do."""
    try:
        for each in data:
            if each[0] != OPEN or each[-1] != CLOSE:  # one may be two values, another none
                break
        else:
            found = decoder.decode_lines(b"\n".join(data))
            if len(found) == len(data):
                return found, None
    except NO_SENSE:
        pass
    found = []
    for each in data:
        try:
            found.append(decoder.decode(each))
        except NO_SENSE:
            return found, each
    return found, None
