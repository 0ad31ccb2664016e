"""Prompts that are given: JSON lines, a JSON list (such as ShareGPT), or plain text with a prompt to a line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.arrays import Floats
from openloop.distributions import LENGTHS, Distribution
from openloop.errors import SpecError
from openloop.spec import read_text
from openloop.terms import TEXT, Term, param
from openloop.workload.demand import ASSISTANT, SYSTEM, USER, Demand, Pieces, token_counts

TOKENS_PER_WORD = 4 / 3  # of English, roughly: only for what a picture shows, and for answers whose text is known
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
CODES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}

Dialogue = tuple[tuple[str, str], ...]
KnownAnswer = tuple[str | None, str | None]  # the right answer, and what it is to be grounded in


@dataclass(frozen=True)
class Corpus(Term):
    """Prompts in the order of the file, again from the start when they run out. A record holds `messages`, a `prompt`,
    a `text` or ShareGPT's `conversations` (whose first question is asked, for as many tokens as its answer has there),
    and may say `output_tokens`; `output` says it for all others. Quality gates use its `reference`, the right answer,
    and its `context`."""

    name = "corpus"
    path: str = param(TEXT)
    output: Distribution | None = param(LENGTHS, None)
    timed = False

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        assert starts_s is not None
        records = list(_records(Path(self.path)))
        if not records:
            raise SpecError(f"{self.path} holds no prompts")
        count = len(starts_s)
        place = np.arange(count) % len(records)
        told = np.array([tokens for _, tokens, _ in records])[place]
        outputs = np.where(told > 0, told, token_counts(self.output, count, rng)) if self.output else told
        again = count - len(records)
        note = f"{self.path} has {len(records):,} prompts, so {again:,} requests repeat one: a prefix cache knows them"
        return Demand(
            starts_s,
            _pieces([messages for messages, *_ in records]).take(place),
            outputs,
            texts=place,
            corpus=[messages for messages, *_ in records],
            known=[known for *_, known in records],
            notes=(note,) if again > 0 else (),
        )


def _pieces(corpus: list[Dialogue]) -> Pieces:
    """What can be said of given texts without a tokenizer; the same text has the same identity."""
    known: dict[tuple[str, str], int] = {}
    flat = [message for messages in corpus for message in messages]
    return Pieces(
        np.cumsum([0, *map(len, corpus)]),
        np.array([known.setdefault(message, len(known)) for message in flat]),
        np.array([_tokens(text) for _, text in flat]),
        np.array([CODES.get(role, USER) for role, _ in flat], np.int8),
    )


def _tokens(text: str) -> int:
    return max(round(len(text.split()) * TOKENS_PER_WORD), 1)


def _records(path: Path) -> Iterator[tuple[Dialogue, int, KnownAnswer]]:
    """Messages, how many tokens to ask for (0 where the file does not say), and what is known of the answer."""
    text = read_text(path)
    if path.suffix == ".json":
        found = _json(text, str(path))
        if not isinstance(found, list):
            raise SpecError(f"{path} is not a JSON list of prompts")
        for number, each in enumerate(found, start=1):
            yield _record(each, f"{path}, record {number}")
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            where = f"{path}, line {number}"
            if line.strip():
                yield _record(_json(line, where) if path.suffix == ".jsonl" else line, where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is not JSON: {error}") from None


def _record(found: Any, where: str) -> tuple[Dialogue, int, KnownAnswer]:
    output, known = 0, _known(found, where)
    if isinstance(found, dict):
        output = found.get("output_tokens", found.get("max_tokens", 0)) or 0
        given = next((found[key] for key in ("messages", "conversations", "prompt", "text") if key in found), None)
        if "conversations" in found and isinstance(given, list):
            given, output = _first_question(given, where, output)
        found = given
    if isinstance(found, str):
        found = [{"role": "user", "content": found}]
    if not isinstance(found, list) or not found:
        raise SpecError(f"{where} has no prompt: it needs messages, a prompt, a text or conversations")
    messages = tuple(_message(each, where) for each in found)
    if not isinstance(output, int) or isinstance(output, bool) or not 0 <= output < 1 << 31:
        raise SpecError(f"{where}: output_tokens is {output!r}; it is a whole number")
    if not any(text.strip() for _, text in messages):
        raise SpecError(f"{where} has an empty prompt; remove it")
    return messages, output, known


def _known(found: Any, where: str) -> KnownAnswer:
    told = [found.get(name) if isinstance(found, dict) else None for name in ("reference", "context")]
    for name, value in zip(("reference", "context"), told, strict=True):
        if value is not None and not isinstance(value, str):
            raise SpecError(f"{where}: {name} is {str(value)[:80]}; it is text")
    return told[0], told[1]


def _message(found: Any, where: str) -> tuple[str, str]:
    said = found if isinstance(found, dict) else {}
    role, text = said.get("role", said.get("from")), said.get("content", said.get("value"))
    if not isinstance(role, str) or not isinstance(text, str):
        raise SpecError(f"{where}: a message has a role and a content, both of them text; found {str(found)[:80]}")
    return ROLES.get(role, role), text


def _first_question(turns: list[Any], where: str, output: Any) -> tuple[list[Any], Any]:
    """Up to the first question of a conversation, and the length of its answer."""
    messages = [_message(turn, where) for turn in turns]
    asked = next((place for place, (role, _) in enumerate(messages) if role == "user"), None)
    if asked is None:
        raise SpecError(f"{where} has a conversation in which nobody asks")
    answer = messages[asked + 1][1] if asked + 1 < len(messages) else ""
    return turns[: asked + 1], output or (_tokens(answer) if answer.strip() else 0)
