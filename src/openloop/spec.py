"""Strict reading of YAML and JSON into typed structures: an unknown key is an error that names it."""

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import yaml

from openloop.errors import SpecError

__all__ = ["Strict", "convert", "read_yaml", "suggest"]

T = TypeVar("T")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that is read from a file."""


def read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SpecError(f"{path}{where} is not YAML: {getattr(error, 'problem', None) or error}") from None


def convert(value: object, to: type[T], where: str) -> T:
    """`value` as a `to`, or one sentence that says which key of `where` is wrong and what was meant."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {_explain(str(error), to)}") from None


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'ttft'?` where something known is close, otherwise the list of what is known."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _explain(message: str, to: type) -> str:
    unknown = re.match(r"Object contains unknown field `(.+?)`(?: - at `\$\.?(.*)`)?$", message)
    if unknown is None:
        return message.replace(" - at `$.", " at `").replace(" - at `$`", "")
    key, path = unknown[1], unknown[2] or ""
    return f"unknown key {key!r}{f' in {path!r}' if path else ''}{suggest(key, _fields(to, path))}"


def _fields(to: type, path: str) -> list[str]:
    """Names of the fields at `path` inside `to`, through optionals, lists and dictionaries of structures."""
    for step in re.findall(r"\w+", path):
        kind = next(field.type for field in msgspec.structs.fields(to) if field.encode_name == step)
        to = next(_structures(kind))
    return [field.encode_name for field in msgspec.structs.fields(to)]


def _structures(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structures(inner)
