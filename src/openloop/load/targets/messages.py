"""The Anthropic Messages API."""

from typing import Any, ClassVar

import msgspec

from openloop.load.targets.base import JsonTarget
from openloop.said import Count, Outcome, fail, message
from openloop.workload import Ask

MOST_OUTPUT = 1024  # the server wants to be told, also where nobody asked for a length


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Words(msgspec.Struct, gc=False):
    """What a delta or a block of content says; a signature is none of it."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    input: Any = None
    stop_reason: str | None = None


class _Error(msgspec.Struct, gc=False):
    type: str | None = None


class _Message(msgspec.Struct, gc=False):
    """A whole answer, or how it begins."""

    usage: _Usage | None = None
    content: list[_Words] | None = None
    stop_reason: str | None = None
    error: _Error | None = None


class _Said(msgspec.Struct, gc=False):
    """An event of a stream."""

    type: str = ""
    message: _Message | None = None
    content_block: _Words | None = None
    delta: _Words | None = None
    usage: _Usage | None = None
    error: _Error | None = None


class Messages(JsonTarget):
    """Anthropic messages; a system message goes to its own field, and `max_tokens` is 1024 where nobody asks."""

    path = "/v1/messages"
    usual_headers: ClassVar[dict[str, str]] = {**JsonTarget.usual_headers, "anthropic-version": "2023-06-01"}

    event = msgspec.json.Decoder(_Said)
    answer = msgspec.json.Decoder(_Message)

    key_env = "ANTHROPIC_API_KEY"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def body(self, ask: Ask) -> dict[str, Any]:
        system = "\n\n".join(text for role, text in ask.messages if role == "system")
        said: dict[str, Any] = {"system": system} if system else {}
        said["messages"] = [{"role": role, "content": text} for role, text in ask.messages if role != "system"]
        most = MOST_OUTPUT if ask.output_tokens is None else ask.output_tokens
        return {**said, "max_tokens": most, "stream": self.stream}

    def hear(self, said: list[_Said], data: list[bytes], found: Outcome) -> list[int]:
        spoken: list[int] = []
        texts = []
        counted: dict[str, int] = {}
        for run, each in enumerate(said):
            if each.error is not None:
                shed = each.error.type == "overloaded_error" and not spoken
                fail(found, f"an error in the stream: {message(data[run])}", "shed" if shed else "error")
                break
            if (words := each.delta or each.content_block) is not None:
                found.finish_reason = words.stop_reason or found.finish_reason
                if words.text or words.thinking or words.partial_json:
                    spoken.append(run)
                    texts.append(words.text or "")
            if each.message is not None and each.message.usage is not None:
                counted |= _told(each.message.usage)
                counted.pop("output_tokens", None)  # those so far
            if each.usage is not None:
                counted |= _told(each.usage)
        _count(counted, found)
        if self.keep_text:
            found.text = "".join(texts)
        return spoken

    def hear_all(self, said: _Message, found: Outcome) -> None:
        found.finish_reason = said.stop_reason
        if said.content is None:
            fail(found, "the answer holds no content")
        if said.usage is not None:
            _count(_told(said.usage), found)
        if self.keep_text:
            found.text = "".join([each.text or "" for each in said.content or []])


def _told(usage: _Usage) -> dict[str, int]:
    return {name: value for name in usage.__struct_fields__ if (value := getattr(usage, name)) is not None}


def _count(counted: dict[str, int], found: Outcome) -> None:
    """What was read from the cache or written to it is not among the input tokens here, as it is elsewhere."""
    found.output_tokens = counted.get("output_tokens")
    if "input_tokens" in counted:
        found.cached_tokens = counted.get("cache_read_input_tokens")
        written = counted.get("cache_creation_input_tokens", 0)
        found.prompt_tokens = counted["input_tokens"] + (found.cached_tokens or 0) + written
