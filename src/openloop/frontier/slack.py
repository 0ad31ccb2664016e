"""How much stricter an SLO could be before too few requests meet it: more than 1 means that there is room."""

import itertools
from dataclasses import replace

import numpy as np

from openloop.arrays import Bools, Floats
from openloop.score.scope import Scope
from openloop.slo import SLO, SLOGate

MOST = 4.0  # times stricter, and times laxer: as far as it is looked for
SCALES = np.geomspace(1 / MOST, MOST, 25)  # of all bounds on time
GROUPS = (1, 2, 4)  # blocks to leave out together

Slack = tuple[float, float]  # and its standard error


def slack(scope: Scope, target: float) -> Slack:
    """Of the requests of a run: 1 / u, where u times the bounds on time is what a share of `target` just meets.

    Unlike attainment it tells how far from its bounds a run is that meets all or none of them. The error is that of a
    jackknife over blocks of the run, taken alone, in pairs and in fours: the largest counts.
    """
    met = np.array([_met(scope, scale) for scale in SCALES])  # by scale and request
    ends = scope.bounds.tolist()
    accepted = np.array([met[:, a:b].sum(axis=1) for a, b in itertools.pairwise(ends)], float)
    return slack_of(accepted, np.diff(scope.bounds).astype(float), target)


def _met(scope: Scope, scale: float) -> Bools:
    found = scope.deliveries.ok.copy()
    for index, slo in enumerate(scope.run.slos):
        mine = scope.objective == index
        for gate in _scaled(slo, scale):
            found &= ~mine | gate.met(scope.answers)
    return found


def _scaled(slo: SLO, scale: float) -> list[SLOGate]:
    return [
        replace(gate, within_s=gate.within_s * scale) if hasattr(gate, "within_s") else gate  # type: ignore[type-var]
        for gate in slo.gates
    ]


def slack_of(accepted: Floats, due: Floats, target: float) -> Slack:
    """From counts by block: accepted at each of SCALES, and due."""
    whole = _at(accepted.sum(axis=0) / max(due.sum(), 1.0), target)
    errors = []
    for size in GROUPS:
        count = len(due) // size
        blocks, sizes = (each[: count * size].reshape(count, size, -1).sum(axis=1) for each in (accepted, due[:, None]))
        left = [
            _at((blocks.sum(axis=0) - blocks[i]) / max(float(sizes.sum() - sizes[i, 0]), 1.0), target)
            for i in range(count)
        ]
        errors.append(float(np.sqrt((count - 1) * np.var(left))))
    return whole, max(errors)


def _at(shares: Floats, target: float) -> float:
    """1 / u where the share that rises with the scale u reaches the target."""
    if shares[-1] < target:
        return 0.0
    place = int(np.argmax(shares >= target))
    if place == 0:
        return MOST
    low, high = shares[place - 1], shares[place]
    part = (target - low) / (high - low)
    return float(np.exp(-np.log(SCALES[place - 1]) * (1 - part) - np.log(SCALES[place]) * part))
