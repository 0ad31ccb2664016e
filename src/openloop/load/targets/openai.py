"""OpenAI chat completions and completions, as vLLM, SGLang, llama-server and most others speak them."""

from abc import abstractmethod
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from openloop.load.targets.base import JsonTarget
from openloop.said import Choice, Outcome, Said, hear, hear_all, listed
from openloop.workload import Ask


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
        before, words = None, False
        for place, each in enumerate(said):
            if each is not before:
                before, words = each, hear(each, data[place], found)
            if words:
                spoken.append(place)
            elif each.error is not None:
                break
        found.event_tokens = _tokens(said, spoken)
        if self.keep_text:
            found.text = "".join([_text(choice) for place in spoken for choice in said[place].choices or ()])
        return spoken

    def hear_all(self, said: Said, found: Outcome) -> bool:
        if self.keep_text:
            found.text = "".join(map(_text, said.choices or []))
        return hear_all(said, found)


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


def _text(choice: Choice) -> str:
    """Visible words; of several answers, those of the first."""
    said = choice.delta or choice.message
    return (choice.text or (said and said.content) or "") if not choice.index else ""


def _tokens(said: list[Said], spoken: list[int]) -> list[int] | None:
    """How many tokens each event with words brought, if the server tells.

    It tells by usage so far in each, or by a list of tokens in each. Tokens of an event without words, as where a
    letter is not whole yet, come with the next.
    """
    first = said[spoken[0]] if spoken else Said()
    if not (first.usage or listed(first)):
        return None
    usages = [usage for place in spoken if (usage := said[place].usage) is not None]
    totals = [usage.completion_tokens for usage in usages if usage.completion_tokens is not None]
    if len(totals) < len(spoken):
        so_far = list(accumulate(map(listed, said)))
        totals = [so_far[place] for place in spoken if listed(said[place])]
    if len(totals) < len(spoken):
        return None
    return [after - before for before, after in pairwise([0, *totals])]
