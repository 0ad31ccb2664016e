"""Burn rates: how fast failures use up what is allowed, over a long and a short window at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from openloop.errors import SpecError
from openloop.units import format_seconds, parse_number, parse_seconds, write_seconds

FEWEST = 10  # requests in the short window, below which nothing is said

Counted = Callable[[float], tuple[float, float]]  # seconds back from now: how many were judged, how many passed


@dataclass(frozen=True)
class BurnRule:
    """An alert while failures come at least `factor` times as fast as is allowed, over both windows.

    The long window says that it matters, the short one that it still goes on.
    """

    factor: float
    long_s: float
    short_s: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise SpecError(f"a burn rate of {self.factor:g} is always reached; give one above 0, such as 14.4")
        if not 1 <= self.short_s <= self.long_s:
            raise SpecError(
                f"{self}: the short window is at least a second and no longer than the long one, as in 14.4:1h/5m"
            )

    def __str__(self) -> str:
        return f"{self.factor:g}:{_span(self.long_s)}/{_span(self.short_s)}"


def _span(seconds: float) -> str:
    for unit, letter in ((3600, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds / unit:.0f}{letter}"
    return write_seconds(seconds)


# Of a month's budget: 2% in an hour, 5% in six hours, 10% in three days.
RULES = (BurnRule(14.4, 3600, 300), BurnRule(6, 6 * 3600, 1800), BurnRule(1, 3 * 86400, 6 * 3600))


def parse_rules(text: str) -> tuple[BurnRule, ...]:
    """`14.4:1h/5m, 6:6h/30m`."""
    found = []
    for term in text.split(","):
        factor, colon, windows = term.strip().partition(":")
        long, slash, short = windows.partition("/")
        if not (colon and slash):
            raise SpecError(f"{term.strip()!r} is no burn rule; write factor:long/short, such as 14.4:1h/5m")
        found.append(BurnRule(parse_number(factor), parse_seconds(long), parse_seconds(short)))
    return tuple(found)


def burn_rate(judged: float, passed: float, attain: float) -> float | None:
    """(failed / judged) / (1 - attain): 1 uses up exactly what is allowed. None: nothing was judged."""
    return (judged - passed) / judged / (1 - attain) if judged else None


@dataclass(frozen=True)
class Burn:
    """A rule held against one signal at one moment."""

    signal: str
    rule: BurnRule
    long: float | None
    short: float | None
    firing: bool


@dataclass(frozen=True)
class Alert:
    """A rule that began to hold, and when it ended."""

    signal: str
    rule: str
    since_s: float
    burn: float  # over the long window when it began
    attain: float
    until_s: float | None = None

    def __str__(self) -> str:
        what = "resolved" if self.until_s is not None else "firing"
        at = self.since_s if self.until_s is None else self.until_s
        return (
            f"{what}: {self.signal} burns its budget ({1 - self.attain:.3g} of requests) {self.burn:.3g} times "
            f"too fast by rule {self.rule}, at {format_seconds(at)}"
        )


class Alarm:
    """The rules over all signals; remembers which alerts are on."""

    def __init__(self, rules: Sequence[BurnRule], attain: float) -> None:
        if not 0 < attain < 1:
            raise SpecError(f"to attain {attain:.6g} leaves no budget to burn; give --attain below 100%, as 99%")
        self.rules = tuple(rule for rule in rules if rule.factor * (1 - attain) <= 1 + 1e-9)
        self.notes = tuple(
            f"with {100 * attain:g}% to attain nothing burns faster than {1 / (1 - attain):.3g} times, "
            f"so rule {rule} never fires; give a lower factor, or more to attain"
            for rule in rules
            if rule not in self.rules
        )
        if not self.rules:
            raise SpecError(self.notes[0] if self.notes else "there is no burn rule; give one, such as 14.4:1h/5m")
        self.attain = attain
        self.burns: list[Burn] = []
        self.on: dict[tuple[str, str], Alert] = {}

    def look(self, at_s: float, signals: dict[str, Counted]) -> Iterator[Alert]:
        """Alerts that begin or end now."""
        self.burns = []
        for signal, counted in signals.items():
            for rule in self.rules:
                judged, passed = counted(rule.short_s)
                long = burn_rate(*counted(rule.long_s), self.attain)
                short = burn_rate(judged, passed, self.attain)
                enough = judged >= FEWEST and long is not None and short is not None
                firing = enough and min(long or 0.0, short or 0.0) >= rule.factor * (1 - 1e-9)
                self.burns.append(Burn(signal, rule, long, short, firing))
                key = signal, str(rule)
                if firing and key not in self.on:
                    self.on[key] = Alert(signal, str(rule), at_s, long or 0.0, self.attain)
                    yield self.on[key]
                elif not firing and key in self.on:
                    yield replace(self.on.pop(key), until_s=at_s)
