"""The OpenAI Responses API: events that say what they are."""

from typing import Any

import msgspec

from openloop.load.targets.base import JsonTarget
from openloop.said import Count, Outcome, fail, message
from openloop.workload import Ask


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Reason(msgspec.Struct, gc=False):
    reason: str | None = None


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct, gc=False):
    content: list[_Part] | None = None


class _Response(msgspec.Struct, gc=False):
    """A whole answer."""

    status: str | None = None
    usage: _Usage | None = None
    incomplete_details: _Reason | None = None
    output: list[_Item] | None = None
    error: Any = None


class _Said(msgspec.Struct, gc=False):
    """An event of a stream."""

    type: str = ""
    delta: Any = None
    response: _Response | None = None
    error: Any = None


ENDS = ("response.completed", "response.incomplete")


class Responses(JsonTarget):
    """OpenAI responses; a finish reason is the status, or why it is incomplete."""

    path = "/v1/responses"
    fewest = 16  # OpenAI refuses less
    event = msgspec.json.Decoder(_Said)
    answer = msgspec.json.Decoder(_Response)

    def body(self, ask: Ask) -> dict[str, Any]:
        said = {"input": [{"role": role, "content": text} for role, text in ask.messages], "stream": self.stream}
        return said if ask.output_tokens is None else said | {"max_output_tokens": ask.output_tokens}

    def hear(self, said: list[_Said], data: list[bytes], found: Outcome) -> list[int]:
        """Any delta has words: of text, reasoning, a refusal or the arguments of a call."""
        spoken = []
        for run, each in enumerate(said):
            if each.type.endswith(".delta"):
                if each.delta:
                    spoken.append(run)
            elif each.type in ENDS and each.response is not None:
                _finish(each.response, found)
            elif each.type in ("error", "response.failed") or each.error is not None:
                fail(found, f"an error in the stream: {message(data[run])}")
                break
        if self.keep_text:
            texts = [said[run].delta for run in spoken if said[run].type == "response.output_text.delta"]
            found.text = "".join(map(str, texts))
        return spoken

    def hear_all(self, said: _Response, found: Outcome) -> None:
        _finish(said, found)
        if self.keep_text:
            parts = [part for item in said.output or () for part in item.content or ()]
            found.text = "".join([part.text or "" for part in parts if part.type == "output_text"])
        if said.status in ("failed", "cancelled"):
            fail(found, f"the status of the answer is {said.status}")
        elif said.output is None:
            fail(found, "the answer holds no output")


def _finish(said: _Response, found: Outcome) -> None:
    """Why it ended is its status, or what kept it from being complete."""
    found.finish_reason = (said.incomplete_details and said.incomplete_details.reason) or said.status
    if (usage := said.usage) is not None:
        found.prompt_tokens, found.output_tokens = usage.input_tokens, usage.output_tokens
        if usage.input_tokens_details:
            found.cached_tokens = usage.input_tokens_details.cached_tokens
        if usage.output_tokens_details:
            found.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
