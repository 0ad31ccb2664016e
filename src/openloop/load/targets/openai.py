"""OpenAI chat completions and completions, as vLLM, SGLang, llama-server and most others speak them."""

from abc import abstractmethod
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from openloop.load.targets.base import Count, JsonTarget, Outcome, fail, message
from openloop.workload import Ask

__all__ = ["Chat", "Completions"]


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    index: int | None = 0
    logprobs: Any = None
    token_ids: Any = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Said(msgspec.Struct, gc=False):
    """An event of a stream, or a whole answer."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _OpenAI(JsonTarget):
    """What the two dialects have in common."""

    event = answer = msgspec.json.Decoder(_Said)

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

    def hear(self, said: list[_Said], data: list[bytes], found: Outcome) -> list[int]:
        """A role, an empty delta, usage and comments are no words."""
        spoken = []
        for place, each in enumerate(said):
            if each.error is not None:
                fail(found, f"an error in the stream: {message(data[place])}")
                break
            if each.usage is not None:
                _count(each.usage, found)
            words = False
            for choice in each.choices or ():
                if choice.finish_reason is not None:
                    found.finish_reason = choice.finish_reason
                delta = choice.delta
                if choice.text or (delta is not None and (delta.content or _speaks(delta))):
                    words = True
            if words:
                spoken.append(place)
        found.event_tokens = _tokens(said, spoken)
        if self.keep_text:
            found.text = "".join([_text(choice) for place in spoken for choice in said[place].choices or ()])
        return spoken

    def hear_all(self, said: _Said, found: Outcome) -> bool:
        if said.usage is not None:
            _count(said.usage, found)
        choices = said.choices or []
        found.finish_reason = next((choice.finish_reason for choice in choices), None)
        if self.keep_text:
            found.text = "".join(map(_text, choices))
        return any(choice.text or (choice.message and _speaks(choice.message)) for choice in choices)


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


def _speaks(said: _Delta) -> bool:
    return bool(said.content or said.reasoning_content or said.reasoning or said.tool_calls or said.refusal)


def _count(usage: _Usage, found: Outcome) -> None:
    found.prompt_tokens, found.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details:
        found.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.completion_tokens_details:
        found.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens


def _text(choice: _Choice) -> str:
    """Visible words; of several answers, those of the first."""
    said = choice.delta or choice.message
    return (choice.text or (said and said.content) or "") if not choice.index else ""


def _tokens(said: list[_Said], spoken: list[int]) -> list[int] | None:
    """How many tokens each event with words brought, if the server tells.

    It tells by usage so far in each, or by a list of tokens in each. Tokens of an event without words, as where a
    letter is not whole yet, come with the next.
    """
    first = said[spoken[0]] if spoken else _Said()
    if not (first.usage or _listed(first)):
        return None
    usages = [usage for place in spoken if (usage := said[place].usage) is not None]
    totals = [usage.completion_tokens for usage in usages if usage.completion_tokens is not None]
    if len(totals) < len(spoken):
        so_far = list(accumulate(map(_listed, said)))
        totals = [so_far[place] for place in spoken if _listed(said[place])]
    if len(totals) < len(spoken):
        return None
    return [after - before for before, after in pairwise([0, *totals])]


def _listed(said: _Said) -> int:
    """Tokens of an event by the lists of them that it has; 0 where it has none."""
    found = 0
    for choice in said.choices or ():
        if choice.token_ids is None and choice.logprobs is None:
            continue
        logprobs = choice.logprobs if isinstance(choice.logprobs, dict) else {}
        lists = (choice.token_ids, *(logprobs.get(name) for name in ("content", "tokens", "refusal")))
        found += max(len(each) if isinstance(each, list) else 0 for each in lists)
    return found
