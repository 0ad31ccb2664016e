"""Quantities as people write them: `500ms`, `20tok/s`, `99%`; and back."""

import ipaddress
import math
import re
import reprlib
from functools import lru_cache

from openloop.errors import SpecError

NS_PER_S = 1_000_000_000
LONGEST_S = 1e9  # thirty years
SLOWEST_READER = 1 / 3600  # tokens per second; slower, and the deadlines of a long answer are beyond all numbers
MOST_RATES = 1000  # in one list

# Numerator and denominator: a division rounds correctly where a product with 1e-3 does not, and a request at exactly
# the bound must pass.
_UNITS = {
    "ns": (1, 10**9),
    "us": (1, 10**6),
    "µs": (1, 10**6),
    "μs": (1, 10**6),  # the Greek letter, which looks the same
    "ms": (1, 10**3),
    "s": (1, 1),
    "m": (60, 1),
    "min": (60, 1),
    "h": (3600, 1),
    "d": (86400, 1),
}

_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*")


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise SpecError(f"{text.strip()!r} is not a number")
    number = float(match[1])
    if not math.isfinite(number):
        raise SpecError(f"{text.strip()!r} is too large")
    return number, match[2]


def parse_seconds(text: str) -> float:
    """`500ms` -> 0.5. The unit is required: a bare number has meant both in this field."""
    number, unit = _split(text)
    if unit not in _UNITS:
        what = f"has the unknown unit {unit!r}" if unit else "needs a unit"
        raise SpecError(f"{text.strip()!r} {what}; write it as {number:g}ms, {number:g}s, {number:g}m or {number:g}h")
    if number < 0:
        raise SpecError(f"{text.strip()!r} is negative; a duration is zero or more")
    times, by = _UNITS[unit]
    if (seconds := number * times / by) > LONGEST_S:
        raise SpecError(f"{text.strip()!r} is longer than {LONGEST_S:g} s; nobody waits that long")
    return seconds


def parse_amount(text: str) -> tuple[bool, float]:
    """`2x` -> (True, 2.0), times as many; `800` -> (False, 800.0), so many."""
    relative = text.strip().endswith("x")
    number = parse_number(text.strip().removesuffix("x"))
    if not 0 < number <= 1e9:
        raise SpecError(f"{text.strip()!r} is not above zero; write 2x for twice as many, or 800 for so many")
    return relative, number


def parse_token_rate(text: str) -> float:
    """`20tok/s` -> 20.0 tokens per second; `/m` and `/min` are per minute."""
    number, unit = _split(text)
    per, slash, time = unit.partition("/")
    if per not in ("tok", "token", "tokens") or not slash or time not in _UNITS:
        what = f"has the unknown unit {unit!r}" if unit else "needs a unit"
        raise SpecError(f"{text.strip()!r} {what}; write it as {number:g}tok/s")
    times, by = _UNITS[time]
    if not SLOWEST_READER <= number * by / times <= 1e9:
        raise SpecError(f"{text.strip()!r} is no reading speed; people read about 5 to 20 tokens per second")
    return number * by / times


def parse_rate(text: str) -> float:
    """`12` and `12/s` -> 12.0 per second; `720/min` is as much, and `/h` is per hour."""
    number, unit = _split(text)
    if unit and (unit[0] != "/" or unit[1:] not in _UNITS):
        raise SpecError(f"{text.strip()!r} has the unknown unit {unit!r}; write it as {number:g}/s or {number:g}/min")
    if number < 0:
        raise SpecError(f"{text.strip()!r} is negative; a rate is zero or more")
    times, by = _UNITS[unit[1:]] if unit else (1, 1)
    return number * by / times


def parse_rates(text: str) -> list[float]:
    """`5:50:5` -> 5, 10, ..., 50 per second; `5,10,20` -> these; any mixture with commas, in order, each once."""
    found: list[float] = []
    for part in text.split(","):
        ends = [parse_rate(each) for each in part.split(":")]
        if len(ends) == 1:
            found += ends
        elif len(ends) == 3 and ends[0] <= ends[1] and ends[2] > 0 and (ends[1] - ends[0]) / ends[2] < MOST_RATES:
            steps = round((ends[1] - ends[0]) / ends[2], 6)
            found += [float(f"{ends[0] + step * ends[2]:.12g}") for step in range(int(steps) + 1)]
        else:
            raise SpecError(f"{part.strip()!r} is no range of rates; write it as 5:50:5 (from, to, step) or 5,10,20")
    if not all(found):
        raise SpecError(f"{text.strip()!r} has a rate of 0, at which nothing is asked; leave it out")
    if len(found) > MOST_RATES:
        raise SpecError(f"{text.strip()!r} are {len(found):,} rates; up to {MOST_RATES:,} can be tried")
    return sorted(set(found))


def parse_share(text: str) -> float:
    """`99%` -> 0.99; `0.99` -> 0.99."""
    number, unit = _split(text)
    if unit not in ("", "%"):
        raise SpecError(f"{text.strip()!r} is not a share; write it as 99% or 0.99")
    share = number / 100 if unit == "%" else number
    if not 0 <= share <= 1:
        raise SpecError(f"{text.strip()!r} is not a share between 0% and 100%; write it as 99% or 0.99")
    return share


def parse_count(text: str) -> int:
    """`1` -> 1: a whole number, zero or more."""
    number, unit = _split(text)
    if unit or number < 0 or number != int(number):
        raise SpecError(f"{text.strip()!r} is not a whole number of zero or more")
    if number > 1e15:
        raise SpecError(f"{text.strip()!r} is too large")
    return int(number)


def parse_number(text: str) -> float:
    """`0.02` -> 0.02: a plain number, zero or more."""
    number, unit = _split(text)
    if unit or number < 0:
        raise SpecError(f"{text.strip()!r} is not a plain number of zero or more")
    return number


def parse_price(text: str) -> float:
    """`3/h` -> 3.0 per hour; `/d` is per day. The time is required: prices are also by token."""
    number, unit = _split(text.strip().lstrip("$€"))
    if unit[:1] != "/" or unit[1:] not in _UNITS or number < 0:
        raise SpecError(f"{text.strip()!r} is no price of time; write it as {abs(number):g}/h")
    times, by = _UNITS[unit[1:]]
    return number * 3600 * by / times


def parse_times(text: str) -> float:
    """`1.5x` -> 1.5."""
    number, unit = _split(text)
    if unit not in ("x", "") or number < 0:
        raise SpecError(f"{text.strip()!r} is no factor; write it as 1.5x")
    return number


def parse_listen(text: str) -> tuple[str, int]:
    """`127.0.0.1:8000` -> a host and a port; without a host it is loopback's."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise SpecError(f"{text!r} is nowhere to listen; write a host and a port, such as 127.0.0.1:8000")
    return host.strip("[]") or "127.0.0.1", int(port)


@lru_cache
def is_loopback(host: str) -> bool:
    """Of an address to listen on, or of a Host header, which may name a port as well."""
    alone = host.count(":") > 1 and not host.startswith("[")
    name = host if alone else host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_number(what: str, value: float, least: float, most: float) -> None:
    """Refuse what is no number in its range; `what` names it."""
    if isinstance(value, bool | str) or not least <= value <= most:
        raise SpecError(f"{what} is {value!r}; it is a number from {least:g} to {most:g}")


def to_ns(seconds: float) -> int:
    if isinstance(seconds, str | list):  # as files have them; times a billion, either would be a gigabyte
        raise SpecError(f"{reprlib.repr(seconds)} stands where a number of seconds belongs")
    return round(seconds * NS_PER_S)


def write_seconds(seconds: float) -> str:
    """The shortest text that `parse_seconds` reads back as exactly these seconds."""
    for unit in ("h", "s", "ms", "us", "ns"):
        times, by = _UNITS[unit]
        number = round(seconds * by / times)
        if number and number * times / by == seconds:
            return f"{number}{unit}"
    return f"{seconds!r}s"


def format_seconds(seconds: float) -> str:
    """Three figures and the unit that suits them: `12.3 ms`, `1.85 s`, `3.2 min`."""
    if math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "never" if seconds > 0 else "-"
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for limit, scale, unit in (
        (1e-3, 1e6, "µs"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if size * (1 + 5e-4) < limit:
            return f"{_three_figures(seconds * scale)} {unit}"
    return f"{_three_figures(seconds / 3600)} h"


def format_rate(per_second: float) -> str:
    return "-" if math.isnan(per_second) else f"{_three_figures(per_second)}/s"


def format_share(share: float) -> str:
    """Two decimals near the ends, or as many as tell it from an end: `58.0%`, `99.97%`, `99.996%`."""
    if math.isnan(share):
        return "-"
    percent = share * 100
    if not (0 < percent < 1 or 99 < percent < 100):
        return f"{percent:.1f}%"
    texts = [f"{percent:.{decimals}f}" for decimals in range(2, 8)]
    return next((text for text in texts if 0 < float(text) < 100), texts[0]) + "%"


def format_money(amount: float) -> str:
    """Three figures and no exponent: `0.0000444`, `1.85`, `12,300`."""
    if not math.isfinite(amount):
        return "-" if math.isnan(amount) else "infinite"
    decimals = 2 - math.floor(math.log10(abs(amount))) if amount else 2
    return f"{amount:,.{max(decimals, 0)}f}"


def format_count(count: float) -> str:
    return f"{count:,.0f}"


def _three_figures(value: float) -> str:
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    if 0 < size < 0.0995:
        decimals = min(1 - math.floor(math.log10(size)), 9)
    return f"{value:,.{decimals}f}"
