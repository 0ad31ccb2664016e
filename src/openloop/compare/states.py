"""What lies between two states of the same system: its caches warm, and disrupted."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openloop.compare.decide import Comparison, compare
from openloop.frontier import Frontier, open_frontier
from openloop.spec import plain
from openloop.units import format_money, format_rate


@dataclass(frozen=True)
class FigureGap:
    """Two values of a figure, and the second over the first less one; None where one is not shown."""

    a: float | None
    b: float | None
    change: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "change", None if not self.a or self.b is None else self.b / self.a - 1)


@dataclass(frozen=True)
class StateGap:
    """From the state `a` to the state `b`: knee, highest goodput, and cost per accepted result at its lowest."""

    a: str
    b: str
    knee: FigureGap
    goodput: FigureGap
    cost_per_accepted: FigureGap
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        return {**plain(self), "comparison": self.comparison.to_dict()}


def gaps(states: Mapping[str, Path], slo: Any = None) -> list[StateGap]:
    """Each state compared with the first."""
    if not states:
        return []
    (first, base), *others = states.items()
    found = []
    for name, path in others:
        decided = compare(base, path, slo)
        # That their warmth differs is what was asked about.
        warnings = tuple(each for each in decided.warnings if "cache warmth" not in each)
        sentence = re.sub(r"\bB\b", name, re.sub(r"\bA\b", first, decided.sentence))
        a, b = (_figures(open_frontier(each, slo)) for each in (base, path))
        figures = {figure: FigureGap(a[figure], b[figure]) for figure in a}
        comparison = replace(decided, warnings=warnings, sentence=sentence)
        found.append(StateGap(first, name, **figures, comparison=comparison))
    return found


def _figures(found: Frontier) -> dict[str, float | None]:
    return {
        "knee": found.knee.rate,
        "goodput": found.peak.goodput_rps if found.peak else None,
        "cost_per_accepted": found.cheapest.cost_per_accepted if found.cheapest else None,
    }


def gap_lines(gap: StateGap) -> list[str]:
    """For people."""
    told: dict[str, tuple[FigureGap, Callable[[float], str]]] = {
        "knee": (gap.knee, format_rate),
        "highest goodput": (gap.goodput, format_rate),
        "cost per accepted": (gap.cost_per_accepted, format_money),
    }
    lines = [f"{gap.b} compared with {gap.a}: {gap.comparison.sentence}"]
    for name, (pair, form) in told.items():
        if pair.a is not None or pair.b is not None:
            a, b = ("not shown" if each is None else form(each) for each in (pair.a, pair.b))
            lines.append(f"  {name}: {a} and {b}" + ("" if pair.change is None else f" ({pair.change:+.1%})"))
    return lines
