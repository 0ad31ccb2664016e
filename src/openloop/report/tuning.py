"""The report of a search over fleets: the one to use, what the others trade, and how the search went."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openloop.report.marks import Axis, Curve, Figure, Panel, Unit
from openloop.report.page import Cell, Columns, Number, Report, Section, Table, capital, number, show, span
from openloop.report.tables import field_table
from openloop.tune import MAXIMIZED, Trial, Tuning
from openloop.units import format_seconds, format_share

TAILS = {"ttft_s": "p99 TTFT", "e2e_s": "p99 E2E", "tpot_s": "p99 TPOT"}
UNITS: dict[str, tuple[str, Unit]] = {
    "goodput_per_dollar": ("accepted results per unit of money", "count"),
    "token_goodput_per_dollar": ("accepted tokens per unit of money", "count"),
    "goodput": ("accepted results per second", "rate"),
}
INTERVALS = {"goodput_rps": "goodput_interval", "tail_s": "tail_interval"}
CHOSEN = "chosen, on fresh seeds"
MOST_ROWS = 30


def tuning_report(found: Tuning) -> Report:
    known = [trial for trial in found.trials if trial.refused is None]
    best = found.best or max(known, key=MAXIMIZED[found.maximize], default=None)
    return Report(
        title="Tuning",
        subtitle=f"{len(found.trials)} of {found.size:,} fleets tried · {found.slo} · {found.rate}",
        verdict="good" if found.best else "invalid",
        headline=_headline(found, best),
        sentences=_sentences(found, best),
        numbers=_numbers(found),
        sections=[_front(found), _search(found)],
        data=found.to_dict(),
        badge="Confirmed" if found.best else "Not confirmed",
    )


def _told(chosen: dict[str, object]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in chosen.items()) or "as it is"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + _told(value) + "}"
    if isinstance(value, list):
        return " + ".join(map(_value, value)) or "none"
    return "none" if value is None else str(value)


def _headline(found: Tuning, best: Trial | None) -> str:
    if best is None:
        return "None of the fleets that were tried can be simulated"
    if found.best is None and found.stopped == "done":
        return "No fleet that was tried accepts as many as required"
    return f"{'Use' if found.best else 'Best so far:'} {_told(best.chosen)}"


def _sentences(found: Tuning, best: Trial | None) -> list[str]:
    lines = []
    words, unit = UNITS[found.maximize]
    if found.best and found.best_value is not None and found.best_interval is not None:
        lines.append(
            f"It makes {show(found.best_value, unit)} {words} ({span(found.best_interval, unit)}) on seeds that the "
            f"search had not seen; {format_share(found.best.attainment)} of requests are accepted."
        )
    elif best is not None:
        lines.append(
            f"It was not confirmed on fresh seeds, and {format_share(best.attainment)} of its requests are accepted."
        )
    if len(found.confirmed) > 1:
        lines.append(f"It was chosen from the {len(found.confirmed)} best of the search by these fresh seeds.")
    lines.append(
        f"{found.simulations} simulations of {format_seconds(found.seconds)} each, all under the same requests; "
        f"trying everything would take {found.size:,}."
    )
    refused = [trial for trial in found.trials if trial.refused]
    if refused:
        lines.append(f"{len(refused)} fleets could not be simulated: {refused[0].refused}.")
    if found.stopped != "done":
        lines.append(f"{capital(found.stopped)}.")
    return lines


def _numbers(found: Tuning) -> list[tuple[str, Number, str]]:
    best = found.best
    if best is None or found.best_interval is None:
        return []
    words, unit = UNITS[found.maximize]
    lines = [(words, number(found, "best_value", unit), span(found.best_interval, unit))]
    if found.maximize != "goodput":
        about = span(best.goodput_interval, "rate")
        lines.append(("goodput", number(found, "best.goodput_rps", "rate"), about))
    lines.append(("attainment", number(found, "best.attainment", "share"), "of requests"))
    if best.cost_per_hour is not None:
        lines.append(("cost per hour", number(found, "best.cost_per_hour", "money"), ""))
    if best.tail_s is not None:
        about = span(best.tail_interval, "seconds")
        lines.append((TAILS[found.tail], number(found, "best.tail_s", "seconds"), about))
    return lines


def _front(found: Tuning) -> Section:
    known = [trial for trial in found.trials if trial.refused is None]
    on_front = {trial.place for trial in found.front}
    others = [trial for trial in known if trial.place not in on_front]
    best = [found.best] if found.best else []
    priced = any(trial.cost_per_hour for trial in known)
    x = "cost_per_hour" if priced else "tail_s"
    marks = [
        replace(_dots("tried", others, "grey", x, "goodput_rps"), low=None, high=None),
        _dots("front", found.front, "blue", x, "goodput_rps"),
    ]
    if best:
        marks.append(_dots(CHOSEN, best, "red", x, "goodput_rps"))
    panels = [Panel(Axis("accepted per second", "rate", low=0.0), marks, 240)]
    tails = [
        _dots(name, [trial for trial in trials if trial.tail_s is not None], color, x, "tail_s")
        for name, trials, color in (("front", found.front, "blue"), (CHOSEN, best, "red"))
    ]
    tails = [each for each in tails if len(each.x)]
    if priced and tails:  # over the same cost
        panels.append(Panel(Axis(f"{TAILS[found.tail]}, logarithmic", "seconds", "log"), tails, 150))
    figure = Figure(
        "front",
        "Goodput against cost" if priced else "Goodput against the tail",
        Axis("cost per hour", "money", low=0.0) if priced else Axis(TAILS[found.tail], "seconds", low=0.0),
        panels,
        "Whiskers are 95% intervals. Fleets of the front are beaten by no other in goodput, cost and tail at once.",
    )
    tail = TAILS[found.tail]
    columns: Columns = {
        "goodput_rps": ("goodput", "rate"),
        "goodput_interval": ("95% interval", "rate"),
        "cost_per_hour": ("per hour", "money"),
        "tail_s": (tail, "seconds"),
        "tail_interval": (f"{tail}, 95% interval", "seconds"),
        "attainment": ("attainment", "share"),
    }
    fleets = [(_told(trial.chosen), trial, f"front.{place}") for place, trial in enumerate(found.front[:MOST_ROWS])]
    lead = (
        "More goodput, a lower price, a shorter tail: none of these fleets can be bettered in one without the others."
    )
    more = f"{len(found.front) - MOST_ROWS} more are in the JSON." if len(found.front) > MOST_ROWS else ""
    return Section(
        "front", "What can be traded", lead, [figure, replace(field_table("fleet", fleets, columns), note=more)]
    )


def _dots(name: str, trials: Sequence[Trial], color: str, x: str, y: str) -> Curve:
    """One figure over another, with the interval of y; where nothing bounds it from above, up to itself."""
    xs, ys = (np.array([getattr(trial, key) for trial in trials], float) for key in (x, y))  # None becomes NaN
    intervals = [getattr(trial, INTERVALS[y]) or (None, None) for trial in trials]
    low, high = (
        np.array([each if end is None else end for each, end in zip(ys, ends, strict=True)], float)
        for ends in (zip(*intervals, strict=True) if trials else ((), ()))
    )
    return Curve(name, xs, ys, color, "dots", low, high)


def _search(found: Tuning) -> Section:
    value = MAXIMIZED[found.maximize]
    words, unit = UNITS[found.maximize]
    rows: list[list[Cell]] = [
        [_told(trial.chosen), Number(value(trial), unit), format_share(trial.attainment)] for trial in found.confirmed
    ]
    table = Table(("confirmed on fresh seeds", words, "attainment"), rows)
    lead = "First spread over the space, then where a model of what was found expects the most."
    note = "A Gaussian process over ranks, expected improvement, rounds of four; every fleet gets the same requests."
    return Section("search", "How it was found", lead, [table] if rows else [], note)
