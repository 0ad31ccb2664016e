"""OpenAI chat completions, completions and embeddings, as vLLM, SGLang, llama-server and most others speak them."""

from abc import abstractmethod
from itertools import accumulate
from typing import Any

import msgspec

from openloop.load.reply import Events
from openloop.load.skim import RUN
from openloop.load.targets.base import JsonTarget
from openloop.said import Count, Outcome, Said, fail, hear, hear_all, listed, text_of, tokens_between
from openloop.workload import Ask

SIZE = RUN.index("size")


class _OpenAI(JsonTarget):
    """What the two dialects have in common."""

    event = answer = msgspec.json.Decoder(Said)

    @abstractmethod
    def said(self, ask: Ask) -> dict[str, Any]:
        """The part of the body that holds the prompt."""

    def body(self, ask: Ask) -> dict[str, Any]:
        body = {**self.said(ask), "stream": self.stream}
        if ask.output_tokens is not None:
            body["max_tokens"] = ask.output_tokens
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return body

    def hear(self, said: list[Said], data: list[bytes], found: Outcome) -> list[int]:
        """A role, an empty delta, usage and comments are no words."""
        spoken: list[int] = []
        for run, each in enumerate(said):
            if hear(each, data[run], found):
                spoken.append(run)
            elif each.error is not None:
                break
        if self.keep_text:
            found.text = "".join([text_of(choice) for run in spoken for choice in said[run].choices or ()])
        return spoken

    def tokens(self, said: list[Said], events: Events, spoken: list[int]) -> list[int] | None:
        if not (spoken and (said[spoken[0]].usage or listed(said[spoken[0]]))):
            return None
        every = [(each, run) for run, each in enumerate(said) for _ in range(events.runs[run][SIZE])]
        lists = [listed(each) for each, _ in every]
        words = set(spoken)
        heard = [
            (each.usage.completion_tokens if each.usage else None, total if some else None)
            for (each, run), some, total in zip(every, lists, accumulate(lists), strict=True)
            if run in words
        ]
        return tokens_between(heard)

    def hear_all(self, said: Said, found: Outcome) -> None:
        if self.keep_text:
            found.text = "".join(map(text_of, said.choices or []))
        hear_all(said, found)
        if not said.choices:
            fail(found, "the answer holds no choices")


class Chat(_OpenAI):
    """OpenAI chat completions, which most servers speak."""

    path = "/v1/chat/completions"

    def said(self, ask: Ask) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": text} for role, text in ask.messages]}


class Completions(_OpenAI):
    """OpenAI completions: the messages as one text."""

    path = "/v1/completions"

    def said(self, ask: Ask) -> dict[str, Any]:
        return {"prompt": ask.text}


class _Counted(msgspec.Struct):
    prompt_tokens: Count | None = None


class _Vectors(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    usage: _Counted | None = None
    error: Any = None


class Embeddings(JsonTarget):
    """OpenAI embeddings: a vector at the end, and no tokens."""

    path = "/v1/embeddings"
    streams = False
    event = answer = msgspec.json.Decoder(_Vectors)

    def body(self, ask: Ask) -> dict[str, Any]:
        return {"input": ask.text}

    def hear_all(self, said: _Vectors, found: Outcome) -> None:
        if said.usage is not None:
            found.prompt_tokens = said.usage.prompt_tokens
        if not said.data:
            fail(found, "the answer holds no embedding")
