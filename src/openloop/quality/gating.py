"""Quality gates as a user writes them: a list, or a YAML file with a list for each class of requests."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openloop.errors import SpecError
from openloop.quality.case import QualityGate
from openloop.quality.gates import read_quality_gate
from openloop.quality.judge import Judge
from openloop.spec import Strict, convert, read_yaml, saying_where


@dataclass(frozen=True)
class Gating:
    """The gates that all must pass, by class of requests; `slices` name kinds of prompts by a gate that they pass."""

    default: tuple[QualityGate, ...]
    classes: Mapping[str, tuple[QualityGate, ...]] = field(default_factory=dict)
    slices: Mapping[str, QualityGate] = field(default_factory=dict)

    def of(self, workload_class: str | None) -> tuple[QualityGate, ...]:
        return self.classes.get(workload_class, self.default) if workload_class is not None else self.default

    @property
    def all(self) -> Iterator[QualityGate]:
        yield from self.default
        for gates in self.classes.values():
            yield from gates
        yield from self.slices.values()

    @property
    def fingerprint(self) -> str:
        """The same for the same gates and slices, and files that they read."""
        digest = hashlib.sha256(
            "; ".join([str(self), *(f"{name}= {gate}" for name, gate in self.slices.items())]).encode()
        )
        for path in sorted({path for gate in self.all for path in gate.files}):
            digest.update(Path(path).read_bytes())
        return digest.hexdigest()[:16]

    def __str__(self) -> str:
        named = [f"{name}: {_listed(gates)}" for name, gates in self.classes.items()]
        every = [_listed(self.default)] if self.default else []
        return "; ".join([*(f"default: {each}" if named else each for each in every), *named])


def _listed(gates: Sequence[QualityGate]) -> str:
    return " and ".join(map(str, gates))


class _File(Strict, frozen=True):
    default: list[str] | None = None
    classes: dict[str, list[str]] | None = None
    slices: dict[str, str] | None = None


def read_gating(what: "str | Path | Sequence[str] | Mapping[str, Any] | Gating") -> Gating:
    """Gates from wherever they come: text, several texts, a YAML file, or its contents."""
    if isinstance(what, Gating):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith((".yaml", ".yml"))):
        return _from(read_yaml(Path(what)), str(what))
    if isinstance(what, str):
        return Gating((read_quality_gate(what),))
    given = list(what) if not isinstance(what, Mapping) else []
    if len(given) == 1 and given[0].endswith((".yaml", ".yml")):
        return read_gating(given[0])
    return _from(what if isinstance(what, Mapping) else given, "the quality gates")


def _from(raw: object, where: str) -> Gating:
    file = convert({"default": raw} if isinstance(raw, list | tuple) else raw, _File, where)
    if not file.default and not file.classes:
        raise SpecError(f"{where}: it names no gate; give a list, such as [json, 'length:most=200']")
    with saying_where(where):
        return Gating(
            _gates(file.default or ()),
            {name: _gates(gates) for name, gates in (file.classes or {}).items()},
            {_slice(name): read_quality_gate(gate) for name, gate in (file.slices or {}).items()},
        )


def _gates(texts: Sequence[str]) -> tuple[QualityGate, ...]:
    """In the order in which they are asked: a judge, which costs money, after all others."""
    return tuple(sorted(map(read_quality_gate, texts), key=lambda gate: isinstance(gate, Judge)))


def _slice(name: str) -> str:
    if not name or any(letter in "+," or letter.isspace() for letter in name):
        raise SpecError(f"{name!r} is no name of a slice; use letters, digits and hyphens")
    return name
