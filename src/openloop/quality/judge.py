"""A language model that judges answers, over any OpenAI-compatible endpoint."""

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from openloop.errors import SpecError
from openloop.quality.case import Case, Grade, QualityGate, TimeUp
from openloop.said import without_secrets
from openloop.spec import one_line, read_text
from openloop.terms import COUNT, NUMBER, SECONDS, SHARE, TEXT, param

QUESTION = """\
You judge whether an answer is acceptable. Reply with one word: PASS or FAIL.

Question:
{prompt}

Answer:
{answer}
"""
PLACES = ("prompt", "answer", "reference", "context")
VERDICT = re.compile(r"\b(PASS|FAIL)\b")
MOST_TOKENS = 256


@dataclass(frozen=True)
class Judge(QualityGate):
    """A model at an OpenAI-compatible `url` replies PASS or FAIL, `repeats` times; where less than `agree` of those
    replies that make sense say the same, it is left open. `prompt` is a file with `{prompt}`, `{answer}`,
    `{reference}` and `{context}` in it. `input` and `output` are prices of a million tokens, and what it costs is
    counted. The key is in the variable `key`."""

    name = "judge"
    url: str = param(TEXT)
    model: str | None = param(TEXT, None)
    prompt: str | None = param(TEXT, None)
    repeats: int = param(COUNT, 1, most=99)
    agree: float = param(SHARE, 0.6)
    timeout: float = param(SECONDS, 30.0, above=0.0)
    input: float = param(NUMBER, 0.0)
    output: float = param(NUMBER, 0.0)
    key: str = param(TEXT, "OPENAI_API_KEY")

    @property
    def limit_s(self) -> float:
        return (self.timeout + 1.0) * (self.repeats + 1)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.prompt,) if self.prompt else ()

    def prepare(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise SpecError(f"{self.url!r} is no URL; write http://host:port")
        if "@" in self.url:
            raise SpecError("a URL with a name or a password is written down with the run; put a key into a variable")
        _question(self.prompt)

    def check(self, case: Case) -> Grade:
        told = {"prompt": case.prompt, "answer": case.text, "reference": case.reference, "context": case.context}
        question = re.sub(r"\{(\w+)\}", lambda place: str(told[place[1]] or "(none)"), _question(self.prompt))
        votes: list[bool] = []
        cost, why = 0.0, "the judge answers neither PASS nor FAIL"
        for _ in range(self.repeats):
            try:
                said, spent = self._ask(question)
            except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
                why = f"the judge cannot be asked: {_reason(error, self.key)}"
                continue
            except TimeUp as up:
                up.cost = cost
                raise
            cost += spent
            found = set(VERDICT.findall(said.upper()))
            if len(found) == 1:
                votes.append("PASS" in found)
        if not votes:
            return Grade(None, cost=cost, why=why)
        share = sum(votes) / len(votes)
        most = max(sum(votes), len(votes) - sum(votes))
        if most < self.agree * len(votes) - 1e-9 or 2 * most == len(votes):
            return Grade(None, cost=cost, why="the judge does not agree with itself", votes=(most, len(votes)))
        return Grade(share > 0.5, share, cost, None if share > 0.5 else "the judge refuses it", (most, len(votes)))

    def _ask(self, question: str) -> tuple[str, float]:
        """What it says, and what that cost."""
        model = self.model or _only_model(self.url, self.key, self.timeout)
        body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": MOST_TOKENS}
        answer = _call(f"{_base(self.url)}/chat/completions", self.key, self.timeout, body)
        usage = answer.get("usage") or {}
        spent = usage.get("prompt_tokens", 0) * self.input + usage.get("completion_tokens", 0) * self.output
        return str(answer["choices"][0]["message"]["content"] or ""), spent / 1e6


def _reason(error: Exception, key: str) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}"
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return "it timed out"
    return without_secrets(one_line(error), {key: os.environ.get(key, "")}) or type(error).__name__


def _base(url: str) -> str:
    trimmed = url.rstrip("/")
    return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"


def _call(url: str, key: str, timeout_s: float, body: Any = None) -> dict[str, Any]:
    secret = os.environ.get(key, "").strip()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {secret}"} if secret else {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        found = json.loads(reply.read())
    if not isinstance(found, dict):
        raise ValueError("its reply is no JSON object")
    return found


@lru_cache
def _only_model(url: str, key: str, timeout_s: float) -> str:
    listed = _call(f"{_base(url)}/models", key, timeout_s)["data"]
    return str(listed[0]["id"])


@lru_cache
def _question(path: str | None) -> str:
    if path is None:
        return QUESTION
    text = read_text(path)
    for place in re.findall(r"\{(\w+)\}", text):
        if place not in PLACES:
            raise SpecError(f"{path} has a place {{{place}}} that nothing fills; it may have {', '.join(PLACES)}")
    if "{answer}" not in text:
        raise SpecError(f"{path} does not show the judge the answer; put {{answer}} where it belongs")
    return text
