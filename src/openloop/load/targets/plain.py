"""Targets whose answers are not looked into: any HTTP server, asked by a template, and a Python function."""

import re
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import msgspec

from openloop.errors import SpecError
from openloop.load.reply import Reply
from openloop.load.skim import Skimmed
from openloop.load.targets.base import HttpTarget, Target
from openloop.load.wire import Marks
from openloop.said import NO_SENSE, Outcome
from openloop.workload import Ask

PLACES = ("prompt", "output_tokens", "number", "model")


@dataclass(frozen=True)
class Plain(HttpTarget):
    """A request and its answer: any status from 200 to 299 is a success, delivered with its last byte.

    `${prompt}`, `${output_tokens}`, `${number}` and `${model}` stand for what they say. Where the template looks like
    JSON they are written as JSON has it; a text is then to stand between the template's own quotes.
    """

    has_models: ClassVar[bool] = False

    method: str = "POST"  # not HEAD, whose answer tells a length and has none
    template: str = ""

    def encode(self, ask: Ask, number: int) -> bytes:
        return self.wrap(self.fill(ask.text, ask.output_tokens, number), number)

    def fill(self, prompt: str, output_tokens: int | None, number: int) -> bytes:
        """The body."""
        pieces, as_json = self._pieces
        told = {"prompt": prompt, "output_tokens": output_tokens, "number": number, "model": self.model}
        written = [_written(told[each], as_json) if place % 2 else each for place, each in enumerate(pieces)]
        return "".join(written).encode()

    @cached_property
    def _pieces(self) -> tuple[list[str], bool]:
        """Text and names of places in turn, and whether it looks like JSON."""
        return re.split(rf"\$\{{({'|'.join(PLACES)})\}}", self.template), self.template.lstrip()[:1] in ("{", "[")

    def read_reply(self, reply: Reply, found: Outcome) -> None:
        if self.keep_text:
            found.text = reply.body.decode("utf-8", "replace")


def _written(value: str | int | None, as_json: bool) -> str:
    if as_json:
        text = msgspec.json.encode(value).decode()
        return text[1:-1] if isinstance(value, str) else text
    return "" if value is None else str(value)


def check_template(text: str) -> str:
    """A template is taken as it is, unless it names a place that nobody fills, or looks like JSON and would be none."""
    for name in re.findall(r"\$\{(\w*)\}", text):
        if name not in PLACES:
            known = ", ".join(f"${{{each}}}" for each in PLACES)
            raise SpecError(f"the template has a place ${{{name}}} that nothing fills; it may have {known}")
    try:
        if text.lstrip().startswith("{"):
            msgspec.json.Decoder().decode_lines(Plain("", "model", template=text).fill("a prompt", 1, 1))
    except NO_SENSE as error:
        why = f"the template starts with {{, and is no JSON once it is filled in ({error})"
        raise SpecError(f'{why}; a text stands between quotes: "${{prompt}}"') from None
    return text


class Function(Target):
    """A Python function, `module:function` or `path/file.py:function`; each piece that it gives is a delivery."""

    has_models = False
    worker = "openloop.load.callable_worker"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:  # noqa: ARG004
        return {}

    def encode(self, ask: Ask, number: int) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(ask)

    def read(self, raw: bytes, marks: Marks | Skimmed) -> Outcome:
        assert isinstance(marks, bytes)  # nobody skims it
        stamps = array("q", marks)[1::2]
        found = Outcome(event_ns=stamps, first_any_ns=stamps[0] if stamps else None)
        if self.keep_text:
            found.text = raw.decode("utf-8", "replace")
        return found
