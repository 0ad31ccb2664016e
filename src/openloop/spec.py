"""Strict reading of YAML and JSON into typed structures: an unknown key is an error that names it."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

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
    """Names of the fields at `path` inside `to`, following nested structures and lists."""
    here: Any = to
    for step in [part for part in re.sub(r"\[.*?\]", "", path).split(".") if part]:
        info = msgspec.inspect.type_info(here)
        field = next(f for f in getattr(info, "fields", ()) if f.encode_name == step)
        here = _struct_in(field.type)
    return [f.encode_name for f in getattr(msgspec.inspect.type_info(here), "fields", ())]


def _struct_in(kind: Any) -> Any:
    """The structure inside an optional, a list or a dictionary of structures."""
    for inner in getattr(kind, "types", None) or [
        getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    ]:
        if inner is not None:
            found = _struct_in(inner)
            if found is not None:
                return found
    return getattr(kind, "cls", None)
