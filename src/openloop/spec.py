"""Strict reading of YAML and JSON into typed structures: an unknown key is an error that names it."""

import contextlib
import dataclasses
import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import yaml

from openloop.errors import SpecError

T = TypeVar("T")


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that is read from a file."""


class _Loader(yaml.SafeLoader):
    """As safe as its base; a key that stands twice is an error, and the key `on` is a word and not the truth."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            key.tag = key.tag.replace(":bool", ":str")
        pairs = [(self.construct_object(key, deep=True), key) for key, _ in node.value]
        for place, (key, where) in enumerate(pairs):
            if key in [earlier for earlier, _ in pairs[:place]]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", where.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 50e9 for a word.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@contextlib.contextmanager
def saying_where(where: str) -> Iterator[None]:
    """What is wrong inside is wrong at this place."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def one_line(error: object) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())


def read_text(path: str | Path, hint: str = "") -> str:
    """A file of text; `hint` says what it should be."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}{hint and f'; {hint}'}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text in UTF-8{hint and f'; {hint}'}") from None


def parse_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> Any:
    try:
        return parse_yaml(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SpecError(f"{path}{where} is not YAML: {one_line(getattr(error, 'problem', None) or error)}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise SpecError(f"{path} cannot be understood: {one_line(error)}") from None


def read_json(path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise SpecError(f"{path}: the key {next(n for n in names if names.count(n) > 1)!r} stands twice")
        return found

    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=unique)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not JSON: {one_line(error)}") from None


def plain(value: Any) -> Any:
    """Dataclasses, dictionaries and lists as JSON has them; numbers that JSON has not (NaN, infinity) become null."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def convert(value: object, to: type[T], where: str) -> T:
    """`value` as a `to`, or one sentence that says which key of `where` is wrong and what was meant."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {_explain(str(error), value, to)}") from None


def suggest(word: str, known: Iterable[str], *, both: bool = False) -> str:
    """`; did you mean 'ttft'?` where something known is close, otherwise (or as well) the list of what is known."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    meant, listed = f"; did you mean {close[0]!r}?" if close else "", f"known are {', '.join(names)}"
    return f"{meant} {listed}" if close and both else meant or f"; {listed}"


def _explain(message: str, value: Any, to: type) -> str:
    """msgspec's sentence, with the value it is about or the key that was probably meant."""
    what, _, path = message.partition(" - at `$")
    path = path.removeprefix(".").removesuffix("`")
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", what)
    if unknown:
        key = unknown[1]
        return f"unknown key {key!r}{f' in {path!r}' if path else ''}{suggest(key, _fields(to, path))}"
    for step in re.findall(r"\w+|\.\.\.", path):
        if step == "...":  # somewhere in a table: msgspec does not say where
            value = None
            break
        value = value[int(step) if isinstance(value, list | tuple) else step]
    found = f", found {value!r}" if path and isinstance(value, str | int | float) else ""
    if what.startswith("Expected `str`, got `") and found:
        found += "; write it as text, in quotes, with its unit if it has one"
    return f"{what}{f' at `{path}`' if path else ''}{found}"


def _fields(to: type, path: str) -> list[str]:
    """Names of the fields at `path` inside `to`, through optionals, lists and dictionaries of structures."""
    for step in re.findall(r"[A-Za-z_]\w*", path):  # places in lists are no names
        kind = next(field.type for field in msgspec.structs.fields(to) if field.encode_name == step)
        to = next(_structures(kind))
    return [field.encode_name for field in msgspec.structs.fields(to)]


def _structures(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structures(inner)
