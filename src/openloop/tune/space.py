"""What may be changed of a fleet, as a user writes it: keys of a fleet, each with the values to try."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from openloop.errors import OpenloopError, SpecError
from openloop.sim.fleet import FleetSpec, read_fleet
from openloop.spec import read_yaml, suggest

MOST_VALUES = 1000
TOGETHER = ("groups", "role", "scale", "memory_tokens")  # keys that may be right only with others
RANGE = ("from", "to", "step", "times")

Place = tuple[int, ...]  # which value of each key


@dataclass(frozen=True)
class Space:
    """A grid: a fleet to begin with, and values for some of its keys; a dot leads inside."""

    base: dict[str, Any]
    values: dict[str, tuple[Any, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(each) for each in self.values.values())

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Keys whose values are numbers that rise: near ones do alike."""
        return tuple(
            all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
            and list(values) == sorted(values)
            for values in self.values.values()
        )

    def chosen(self, place: Place) -> dict[str, Any]:
        return {name: values[i] for (name, values), i in zip(self.values.items(), place, strict=True)}

    def fleet(self, place: Place) -> dict[str, Any]:
        """As it would stand in a file."""
        raw = copy.deepcopy(self.base)
        for name, value in self.chosen(place).items():
            _put(raw, name.split("."), value, name)
        return raw


def read_space(fleet: str | Path | dict[str, Any], space: str | Path | dict[str, Any]) -> Space:
    base = fleet if isinstance(fleet, dict) else read_yaml(Path(fleet))
    read_fleet(base)
    where = "the space" if isinstance(space, dict) else str(space)
    raw = space if isinstance(space, dict) else read_yaml(Path(space))
    if not isinstance(raw, dict) or not raw:
        raise SpecError(
            f"{where} names no keys; write keys of a fleet and values to try, such as max_tokens: [512, 2048]"
        )
    known = [name for name in FleetSpec.__struct_fields__ if name not in ("price_per_hour", "events")]
    values = {}
    for name, given in raw.items():
        if str(name).split(".")[0] not in known:
            raise SpecError(f"{where}: a fleet has no key {name!r} to search{suggest(str(name), known)}")
        values[str(name)] = _values(where, str(name), given)
    for name, each in values.items():
        for value in each:
            _try(base, name, value, f"{where}: {name}: {value!r}")
    return Space(base, values)


def _values(where: str, name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, dict) and set(given) <= set(RANGE) and {"from", "to"} <= set(given):
        given = _range(where, name, given)
    if not isinstance(given, list) or not given:
        raise SpecError(f"{where}: {name} is {given!r}; give a list of values, or a range such as {{from: 2, to: 8}}")
    for i, each in enumerate(given):
        if each in given[:i]:
            raise SpecError(f"{where}: {name} has {each!r} twice; keep one")
    return tuple(given)


def _range(where: str, name: str, given: dict[str, Any]) -> list[Any]:
    """From, to, and by a step or by a factor."""
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in given.values()):
        raise SpecError(f"{where}: {name} is {given!r}; a range is of numbers")
    value, times, step = given["from"], given.get("times"), given.get("step", 1)
    if (times is not None and not (times > 1 and value > 0)) or (times is None and not step > 0):
        raise SpecError(f"{where}: {name} is {given!r}; a range goes up, by a step above 0 or by times above 1")
    found: list[Any] = []
    while value <= given["to"] * (1 + 1e-12) and len(found) <= MOST_VALUES:
        found.append(value)
        value = value * times if times is not None else value + step
    if not found or len(found) > MOST_VALUES:
        raise SpecError(f"{where}: {name} is {given!r}, which has no value, or more than {MOST_VALUES:,}")
    return found


def _try(base: dict[str, Any], name: str, value: Any, where: str) -> None:
    """One value, on its own: an error that it causes names it."""
    raw = copy.deepcopy(base)
    _put(raw, name.split("."), value, name)
    try:
        msgspec.convert(raw, FleetSpec)  # others may be needed with it: only its own form is checked
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {str(error).split(' - at')[0]}") from None
    try:
        read_fleet(raw)
    except OpenloopError as error:
        if name.split(".")[0] not in TOGETHER:
            raise SpecError(f"{where}: {error}") from None


def _put(raw: Any, steps: Sequence[str], value: Any, name: str) -> None:
    first, rest = steps[0], steps[1:]
    if isinstance(raw, list):
        if not first.isdigit() or int(first) >= len(raw):
            raise SpecError(f"the fleet has no {name!r}: {first!r} is no place in a list of {len(raw)}")
        if rest:
            _put(raw[int(first)], rest, value, name)
        else:
            raw[int(first)] = copy.deepcopy(value)
        return
    if not isinstance(raw, dict):
        raise SpecError(f"the fleet has no {name!r}: there is nothing inside {raw!r}")
    if not rest:
        raw[first] = copy.deepcopy(value)
        return
    if raw.get(first) is None:
        raise SpecError(f"the fleet has no {first!r} to change {name!r} in: write it in the fleet, or search it whole")
    _put(raw[first], rest, value, name)
