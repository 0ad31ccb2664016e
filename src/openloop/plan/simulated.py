"""A plan of a modelled fleet: its knee by a simulated sweep, and the planned size simulated at the peak."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from openloop.arrivals import Poisson
from openloop.frontier import sweep
from openloop.frontier.measure import INTERRUPTED, View
from openloop.load.scenario import Scenario
from openloop.plan.make import CapacityPlan, Confirmed, Needs, make_plan
from openloop.plan.system import System, check_size, frontier_system
from openloop.score import score as score_run
from openloop.sim.fleet import FleetSpec, read_fleet, simulate_fleet
from openloop.sim.spec import StepSpec
from openloop.units import format_share

MOST_REQUESTS, LEAST_S = 400_000, 20.0  # of the simulation that confirms
TYPICAL, BATCH = 512, 16  # tokens of a prompt and of an answer's context, and answers in a step
WIDER = 1.96 / 1.645  # from a 90% to a 95% interval
STEP, TRIES = 0.96, 8  # by how much the knee is lowered where it does not hold at the planned size, and how often


def plan_fleet(
    fleet: Path, scenario: Scenario, needs: Needs, out: Path, target: float = 0.99, view: View | None = None
) -> CapacityPlan:
    """A replica of a large fleet may do less than one alone: its cache is colder. Where the planned fleet misses its
    target at the peak, the knee is lowered until it does not."""
    asked = read_fleet(fleet)
    chosen = msgspec.structs.replace(asked, scale=None)
    check_size(chosen, str(fleet))
    found = sweep(out, scenario, chosen, target=target, precision=0.03, view=view)
    if found.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    system = frontier_system(found, str(fleet))
    if chosen.calibration is not None and chosen.step is not None:
        system = widened(system, model_error(chosen, chosen.calibration.intervals))
    if asked.scale is not None:
        note = "the fleet scales itself; planned is a fixed number of its replicas, as many as the peak needs"
        system = replace(system, notes=(*system.notes, note))
    plan = make_plan(system, needs)
    if chosen.groups:
        return plan
    for _ in range(TRIES):
        confirmed = _confirm(plan, chosen, scenario, target)
        if confirmed is None:
            return _noted(plan, "the planned fleet is too large to be simulated at its peak: nothing confirms it")
        if confirmed.enough:
            return replace(plan, confirmed=confirmed)
        low, knee, high = (end * STEP for end in system.knees.ends)
        system = replace(system, knee=knee, knee_interval=(low, high))
        note = f"{confirmed.replicas} replicas do not hold at the peak, though each is below the knee that was measured"
        plan = _noted(make_plan(system, needs), note)
    return replace(plan, confirmed=confirmed)


def model_error(fleet: FleetSpec, intervals: Mapping[str, tuple[str, str]]) -> float:
    """How far off a rate may be, as a share of it, because times of a step are known as 90% intervals only.

    Each time is moved to the ends of its interval on its own, and what that does to reading a prompt and to a step of
    a batch is added in squares.
    """
    spec = fleet.step
    if spec is None:
        return 0.0
    middle, squares = _work(fleet), 0.0
    for name, ends in intervals.items():
        if name in StepSpec.__struct_fields__:
            moved = [msgspec.structs.replace(fleet, step=msgspec.structs.replace(spec, **{name: end})) for end in ends]
            squares += max(abs(_work(each) / middle - 1) for each in moved) ** 2
    return WIDER * math.sqrt(squares)


def _work(fleet: FleetSpec) -> float:
    step = fleet.step_time()
    return step.prefill(TYPICAL) + TYPICAL / BATCH * step.decode(BATCH, TYPICAL)


def widened(system: System, error: float) -> System:
    """A knee whose model is not known exactly."""
    low, knee, high = system.knees.ends
    below, above = (math.hypot(end - knee, error * knee) for end in (low, high))
    note = f"the model's own times are known within {format_share(error)}, which is in the knee's interval"
    interval = (max(knee - below, 0.01 * knee), knee + above)
    return replace(system, knee_interval=interval, notes=(*system.notes, note))


def _noted(plan: CapacityPlan, note: str) -> CapacityPlan:
    return replace(plan, notes=(*plan.notes, note))


def _confirm(plan: CapacityPlan, fleet: FleetSpec, scenario: Scenario, target: float) -> Confirmed | None:
    """As many replicas as must be up, at the peak, with fresh arrivals."""
    seconds = min(scenario.horizon_s, MOST_REQUESTS / plan.peak_rate)
    if seconds < min(LEAST_S, scenario.horizon_s) or any(event.at >= seconds for event in fleet.plan()):
        return None
    run = simulate_fleet(
        msgspec.structs.replace(fleet, replicas=plan.sized),
        scenario.read_workload(),
        Poisson(plan.peak_rate / plan.system.requests_per_user),
        seconds,
        scenario.seed + 1,
        scenario.objectives(),
    )
    found = score_run(run, scenario.whole_slo())
    hits = found.cache_hit_rate
    return Confirmed(
        replicas=plan.sized,
        rate=plan.peak_rate,
        seconds=seconds,
        attainment=found.attainment,
        attainment_interval=found.attainment_interval,
        hit_rate=hits if hits >= 0 else None,
        enough=found.attainment >= target,
    )
