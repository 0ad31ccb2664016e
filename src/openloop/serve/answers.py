"""What the built-in endpoint says, in the OpenAI dialect: bytes made beforehand wherever they can be. And how it
misbehaves, on command."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec

from openloop.spec import Strict

SENTENCE = "the quick brown fox jumps over a lazy dog and runs far away from it"
WORDS = tuple(SENTENCE.split())

TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Message(msgspec.Struct):
    content: Any = ""


class Ask(msgspec.Struct):
    """The part of a request that the endpoint looks at."""

    model: str = ""
    messages: list[_Message] | None = None
    prompt: Any = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None

    @property
    def output_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 16

    def words(self) -> list[str]:
        """Tokens, for want of a tokenizer."""
        return _words(self.prompt if self.messages is None else [message.content for message in self.messages])

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def _words(said: Any) -> list[str]:
    """Of a text, of parts that have one, or of several of these; a number is a token."""
    if isinstance(said, list):
        return [word for each in said for word in _words(each)]
    text = said.get("text") if isinstance(said, dict) else said
    return str(text).split() if isinstance(text, str | int) else []


read_ask = msgspec.json.Decoder(Ask).decode  # raises msgspec.MsgspecError where it is none


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def respond(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole response."""
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return f"{first}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Voice:
    """All that is said under one model name."""

    STREAM_HEAD = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    DONE = chunk(b"data: [DONE]\n\n")
    END = b"0\r\n\r\n"

    def __init__(self, model: str) -> None:
        self.model = model
        self.role = self._event(True, {"role": "assistant", "content": ""}, None)
        # One token is one word; the bytes of every event are ready before the first request.
        self.tokens = {
            True: [self._event(True, {"content": f" {word}"}, None) for word in WORDS],
            False: [self._event(False, f" {word}", None) for word in WORDS],
        }
        self.last = {chat: self._event(chat, {} if chat else "", "length") for chat in (True, False)}

    def usage(self, chat: bool, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> bytes:
        counted = self._counted(prompt_tokens, output_tokens, cached_tokens)
        return chunk(b"data: " + self._body(chat, [], counted) + b"\n\n")

    def whole(self, chat: bool, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> bytes:
        """The answer to a request that does not stream."""
        text = " ".join(WORDS[i % len(WORDS)] for i in range(output_tokens))
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "length"}
        return respond(
            200, self._body(chat, [choice], self._counted(prompt_tokens, output_tokens, cached_tokens), whole=True)
        )

    def models(self) -> bytes:
        listed = [{"id": self.model, "object": "model", "owned_by": "openloop"}]
        return respond(200, msgspec.json.encode({"object": "list", "data": listed}))

    def refuse(self, status: int, sentence: str) -> bytes:
        error = {"message": sentence, "type": "invalid_request_error", "code": status}
        return respond(status, msgspec.json.encode({"error": error}))

    def _event(self, chat: bool, said: Any, finish: str | None) -> bytes:
        choice = {"index": 0, "delta" if chat else "text": said, "finish_reason": finish}
        return chunk(b"data: " + self._body(chat, [choice]) + b"\n\n")

    def _body(self, chat: bool, choices: list[Any], usage: Any = None, *, whole: bool = False) -> bytes:
        kind = "text_completion" if not chat else "chat.completion" if whole else "chat.completion.chunk"
        body = {"id": "openloop", "object": kind, "created": 0, "model": self.model, "choices": choices}
        return msgspec.json.encode(body if usage is None else body | {"usage": usage})

    @staticmethod
    def _counted(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
        total = prompt_tokens + output_tokens
        found = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "total_tokens": total}
        return found | ({"prompt_tokens_details": {"cached_tokens": cached_tokens}} if cached_tokens else {})


Fault = Literal[
    "error", "unauthorized", "overloaded", "refuse", "hang", "cut", "reset", "drip", "garbage", "whole", "late"
]

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Behaviour(Strict, frozen=True):
    """A share of requests meets a fault; all of them meet stalls.

    error: status 500. unauthorized: 401. overloaded: 503. refuse: the connection is closed without a word. hang: no
    answer, ever. cut: the stream ends half way, without a finish reason. reset: the connection is reset half way. drip:
    one byte a second. garbage: events that are no JSON. whole: a plain answer to a streaming request. late: an error in
    the middle of the stream.
    """

    fault: Fault | None = None
    share: Share = 1.0
    stall_s: Seconds = 0.0  # everything that is sent stands still so long
    every_s: Annotated[float, msgspec.Meta(ge=0.001, le=86400)] = 10.0  # at the start of each stretch of this length
    slowness: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0  # everything takes this many times as long
    early_role: bool = False  # the event that names the role comes with the request, long before a token

    def stalled_until(self, now_ns: int, since_ns: int) -> int:
        """When what is to be sent now may be sent."""
        if not self.stall_s:
            return now_ns
        every, stall = int(self.every_s * 1e9), int(self.stall_s * 1e9)
        into = (now_ns - since_ns) % every
        return now_ns - into + stall if into < stall else now_ns
