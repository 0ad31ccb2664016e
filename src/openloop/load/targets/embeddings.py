"""OpenAI embeddings: one vector, all at once."""

from typing import Any

import msgspec

from openloop.load.targets.base import JsonTarget
from openloop.said import Count, Outcome, fail
from openloop.workload import Ask


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None


class _Answer(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Any = None


class Embeddings(JsonTarget):
    """OpenAI embeddings: a vector at the end, and no tokens."""

    path = "/v1/embeddings"
    streams = False
    event = answer = msgspec.json.Decoder(_Answer)

    def body(self, ask: Ask) -> dict[str, Any]:
        return {"input": ask.text}

    def hear_all(self, said: _Answer, found: Outcome) -> None:
        if said.usage is not None:
            found.prompt_tokens = said.usage.prompt_tokens
        if not said.data:
            fail(found, "the answer holds no embedding")
