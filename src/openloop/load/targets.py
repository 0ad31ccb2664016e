"""Whom to ask: a target turns what is asked into bytes, and the bytes that came back into what a user got."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec

from openloop.load.wire import Reply, encode_post
from openloop.workload import Ask

__all__ = ["TARGETS", "Chat", "Completions", "Outcome", "Target"]


@dataclass(slots=True)
class Outcome:
    """What a reply says, once it is read at leisure."""

    status: str = "ok"
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    event_ns: list[int] = field(default_factory=list)
    event_tokens: list[int] | None = None
    first_any_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    merged_events: int = 0


class Target(Protocol):
    def encode(self, ask: Ask, number: int) -> bytes:
        """The whole request."""

    def decode(self, reply: Reply) -> Outcome: ...


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls or self.refusal)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Said(msgspec.Struct):
    """An event of a stream, or a whole answer."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Said)


@dataclass(frozen=True)
class _OpenAI(ABC):
    """What the two OpenAI dialects have in common."""

    host: str
    model: str
    base: str = ""  # path before /v1
    headers: dict[str, str] = field(default_factory=dict)
    stream: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # more for the body of every request

    path = ""

    def encode(self, ask: Ask, number: int) -> bytes:
        body = {"model": self.model, **self.said(ask), "stream": self.stream}
        if ask.output_tokens is not None:
            body["max_tokens"] = ask.output_tokens
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        headers = {**self.headers, "X-Request-Id": str(number)}
        return encode_post(
            self.base + self.path, self.host, headers, msgspec.json.encode(body | self.extra | (ask.body or {}))
        )

    @abstractmethod
    def said(self, ask: Ask) -> dict[str, Any]:
        """The part of the body that holds the prompt."""

    def decode(self, reply: Reply) -> Outcome:
        found = Outcome(http_status=reply.http_status, first_any_ns=reply.first_ns)
        kind = reply.headers.get("content-type", "")
        if reply.http_status != 200:
            found.status = "shed" if reply.http_status in (429, 503) else "error"
            found.error = f"status {reply.http_status}: {_message(reply.body)}"
        elif not self.stream:
            _read_whole(reply, found)
        elif "event-stream" in kind or reply.body.startswith(b"data:"):
            _read_stream(reply, found)
        else:
            found.status = "error"
            found.error = f"a streaming request was answered with {kind or 'nothing that says what it is'}"
        return found


class Chat(_OpenAI):
    """OpenAI chat completions."""

    path = "/v1/chat/completions"

    def said(self, ask: Ask) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": text} for role, text in ask.messages]}


class Completions(_OpenAI):
    """OpenAI completions."""

    path = "/v1/completions"

    def said(self, ask: Ask) -> dict[str, Any]:
        return {"prompt": ask.text}


TARGETS: dict[str, type[_OpenAI]] = {"chat": Chat, "completions": Completions}


def _read_stream(reply: Reply, found: Outcome) -> None:
    """Events with words are tokens; a role, an empty delta, usage and comments are not."""
    before = -1
    for block, stamp, data in reply.events():
        if data == b"[DONE]":
            break
        try:
            said = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            _fail(found, f"an event is not JSON that makes sense: {_short(data)}")
            return
        if said.error is not None:
            _fail(found, f"an error in the stream: {_message(data)}")
            return
        if said.usage is not None:
            _count(said.usage, found)
        token = False
        for choice in said.choices or ():
            token = token or bool(choice.text or choice.delta)
            found.finish_reason = choice.finish_reason or found.finish_reason
        if token:
            found.event_ns.append(stamp)
            found.merged_events += block == before
            before = block
    if found.finish_reason is None:
        _fail(found, "the stream ended without a finish reason")
    elif found.output_tokens is not None and found.output_tokens < len(found.event_ns):
        found.output_tokens = len(found.event_ns)  # what was delivered was generated


def _read_whole(reply: Reply, found: Outcome) -> None:
    try:
        said = _DECODER.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        _fail(found, f"the answer is not JSON that makes sense: {_short(reply.body)}")
        return
    if said.error is not None:
        _fail(found, _message(reply.body))
        return
    if said.usage is not None:
        _count(said.usage, found)
    found.finish_reason = next((choice.finish_reason for choice in said.choices or ()), None)
    if any(choice.text or choice.message for choice in said.choices or ()):
        found.event_ns = [reply.last_ns]
        found.event_tokens = [found.output_tokens] if found.output_tokens else None


def _count(usage: _Usage, found: Outcome) -> None:
    found.prompt_tokens, found.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details:
        found.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.completion_tokens_details:
        found.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens


def _fail(found: Outcome, error: str) -> None:
    found.status, found.error = "error", error


def _message(body: bytes) -> str:
    """What a server says is wrong, from wherever it puts it."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _short(body)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return said[:300] if isinstance(said, str) else _short(msgspec.json.encode(said))


def _short(data: bytes) -> str:
    text = " ".join(data[:200].decode("utf-8", "replace").split())
    return text or "(nothing)"
