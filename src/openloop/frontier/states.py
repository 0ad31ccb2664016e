"""One sweep for each state that caches are brought into, in folders beside each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from openloop.errors import RunError, SpecError
from openloop.frontier.folder import FRONTIER_FILE, Frontier
from openloop.frontier.measure import INTERRUPTED, sweep
from openloop.load.scenario import Limits, Scenario
from openloop.records.tables import write_json
from openloop.spec import Strict, convert, read_json

STATES_FILE: Final = "states.json"


class _States(Strict, frozen=True):
    """states.json: which sweeps belong together, by their folders."""

    warmth: dict[str, str]


@dataclass(frozen=True)
class State:
    warmth: str
    path: Path
    frontier: Frontier


def sweep_states(
    out: str | Path, scenario: Scenario, fleet: Any, states: Sequence[str], *, budget_s: float | None = None, **how: Any
) -> list[State]:
    """As `sweep`, state after state; a budget is shared evenly. One that is interrupted is the last."""
    folder, names = Path(out), {re.sub(r"[^\w.]+", "-", state): state for state in states}
    if len(names) < len(states) or len(states) < 2:
        raise SpecError(f"the states are {', '.join(states)}: give two or more, each once")
    if (folder / FRONTIER_FILE).exists():
        raise RunError(f"{folder} holds the sweep of one state: choose another folder")
    asked = {"warmth": names}
    if (folder / STATES_FILE).exists() and read_json(folder / STATES_FILE) != asked:
        raise RunError(f"{folder} holds sweeps of other states: choose another folder, or repeat the same command")
    write_json(folder / STATES_FILE, asked)
    share = scenario.limits.spend and scenario.limits.spend / len(states)
    limits: Limits = msgspec.structs.replace(scenario.limits, spend=share)
    found: list[State] = []
    for name, state in names.items():
        one = msgspec.structs.replace(scenario, warmth=state, limits=limits)
        time_s = None if budget_s is None else budget_s / len(states)
        found.append(State(state, folder / name, sweep(folder / name, one, fleet, budget_s=time_s, **how)))
        if found[-1].frontier.stopped == INTERRUPTED:
            break
    return found


def states_in(folder: Path) -> dict[str, Path]:
    """The folders of sweeps that belong together, by state."""
    told = convert(read_json(folder / STATES_FILE), _States, str(folder / STATES_FILE))
    names = {state: name for name, state in told.warmth.items() if re.fullmatch(r"\w[\w.-]*", name)}
    return {state: folder / name for state, name in names.items() if (folder / name / FRONTIER_FILE).exists()}
