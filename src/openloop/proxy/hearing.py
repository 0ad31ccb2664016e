"""What passes through, overheard: what is asked, and when tokens came and how many. None of the words is kept."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from openloop.said import (
    NO_SENSE,
    STARTS,
    Outcome,
    Said,
    fail,
    hear,
    hear_all,
    listed,
    settle,
    split_events,
    tokens_between,
)

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
LETTERS_PER_TOKEN = 4  # a guess, to weigh requests by
ENDS = (b"\n\n", b"\n\r\n")  # of an event, from the end of its line
LONGEST = 4 << 20  # bytes of one event, or of a whole answer, that are read
MOST_EVENTS = 1 << 18  # of one answer


class Ask(msgspec.Struct):
    """The prompt stays as it came: equal beginnings are equal bytes. What makes no sense is the replica's to refuse."""

    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: msgspec.Raw = msgspec.Raw(b"")  # nobody else's blocks are its own

    @property
    def text(self) -> bytes:
        return bytes(self.messages or self.prompt or self.input)

    @property
    def prompt_tokens(self) -> int:
        return max(len(self.text) // LETTERS_PER_TOKEN, 1)

    @property
    def most_tokens(self) -> int | None:
        found = self.max_completion_tokens or self.max_tokens
        return found if type(found) is int and 0 < found < 2**31 else None


_ASKS: "msgspec.json.Decoder[Ask]" = msgspec.json.Decoder(Ask)


def read_ask(body: bytes) -> Ask | None:
    """None: it is no JSON that makes sense."""
    try:
        return _ASKS.decode(body)
    except NO_SENSE:
        return None


class _Whole(Said):
    data: list[msgspec.Raw] | None = None  # embeddings


_SAID, _WHOLE = msgspec.json.Decoder(Said), msgspec.json.Decoder(_Whole)


@dataclass(slots=True)
class Hearing:
    """Fed with a reply as it comes; bytes are only looked at."""

    streamed: bool  # as it is said; what begins as a stream is one
    found: Outcome = field(default_factory=Outcome)
    _tail: bytes = b""  # of an event that is not whole yet
    # Tokens so far at each event with words, by usage and by lists of them.
    _counts: list[tuple[int | None, int | None]] = field(default_factory=list)
    _listed: int = 0
    _over: bool = False

    @property
    def spoken(self) -> bool:
        return bool(self.found.event_ns)

    def feed(self, data: bytes, now_ns: int) -> None:
        if self.found.first_any_ns is None:
            self.found.first_any_ns = now_ns
            self.streamed = self.streamed or data.startswith(STARTS)
        if self._over:
            return
        if not self.streamed:
            self._tail += data
            self._over = len(self._tail) > LONGEST
            return
        end = data.find(b"\n")
        if (
            data[end:] in ENDS
            and data[:6] == b"data: "
            and end > 7
            and data.find(b"\r") in (-1, end - 1)
            and not self._tail
        ):
            self._event(data[6:end], now_ns)  # one line, as nearly all are
            return
        data = self._tail + data
        ends, events = split_events(data)
        self._tail = data[ends[-1] :] if ends else data
        before = len(self.found.event_ns)
        for event in filter(None, events):
            if not self._over:
                self._event(event, now_ns)
        self.found.merged_events += max(len(self.found.event_ns) - before - 1, 0)
        if len(self._tail) > LONGEST:
            self._stop("an event is too long to be read")

    def _event(self, data: bytes, now_ns: int) -> None:
        if data.strip() == b"[DONE]":
            self._over = True
            return
        try:
            said = _SAID.decode(data)
        except NO_SENSE:
            self._stop("an event is not JSON that makes sense")
            return
        some = listed(said)
        self._listed += some
        if hear(said, b"", self.found):
            self.found.event_ns.append(now_ns)
            told = said.usage.completion_tokens if said.usage else None
            self._counts.append((told, self._listed if some else None))
            if len(self._counts) >= MOST_EVENTS:
                self._stop(f"the answer has more than {MOST_EVENTS:,} events, and is not read any further")
        elif said.error is not None:
            self._stop("an error in the stream")

    def _stop(self, why: str) -> None:
        fail(self.found, why)
        self._tail, self._over = b"", True

    def close(self) -> Outcome:
        """All has passed: what it says, as a whole."""
        found = self.found
        if not self.streamed:
            self._whole()
        elif found.status == "ok" and found.finish_reason is None:
            fail(found, "the stream ended without a finish reason")
        return self.settled()

    def settled(self) -> Outcome:
        """What is known so far, where it ended early."""
        self.found.event_tokens = tokens_between(self._counts)
        settle(self.found)
        self._tail, self._counts = b"", []
        return self.found

    def _whole(self) -> None:
        if self._over:  # too long to be read
            return
        try:
            said = _WHOLE.decode(self._tail)
        except NO_SENSE:
            fail(self.found, "the answer is not JSON that makes sense")
            return
        if said.error is not None:
            fail(self.found, "the answer is an error")
            return
        hear_all(said, self.found)
        if not said.choices and not said.data:
            fail(self.found, "the answer holds no choices and no embedding")
