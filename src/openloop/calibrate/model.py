"""A calibration as a fleet: the YAML file that `openloop sim`, `sweep --sim` and `serve --engine` read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from openloop.calibrate.fit import Calibration
from openloop.calibrate.match import MANY, PARAMETERS, enough_memory
from openloop.calibrate.trace import held
from openloop.errors import OpenloopError, SpecError
from openloop.records import Manifest
from openloop.sim.spec import Calibrated, FleetSpec, StepSpec
from openloop.units import parse_seconds
from openloop.workload import read_source

HEAD = """\
# Fitted to measured runs by openloop calibrate. Read by openloop sim, sweep --sim, serve --engine and whatif.
# Change what you like: this is a fleet as docs/simulator.md has it.
"""
WIDE = 0.5  # of a value: an interval that is wider tells little
APART = 0.25  # of a logarithm: a TPOT that is further off was not made by the same system
CLOSE = 1.02  # times the best loss: what is within cannot be told apart


def _time(seconds: float) -> str:
    return f"{1e9 * seconds:.6g}ns" if seconds < 1e-6 else f"{1e6 * seconds:.6g}us"


def _overhead(median: float, jitter: float) -> str:
    return f"lognormal(median={_time(median)},sigma={jitter:.3g})" if median > 0 and jitter > 0 else _time(median)


def fleet_of(found: Calibration, **more: Any) -> FleetSpec:
    """`more` are keys of its section `calibration`."""
    limits, traces = found.limits, found.traces
    return FleetSpec(
        replicas=max(trace.replicas * trace.beside for trace in traces),
        step=StepSpec(**{name: _time(found.value(name)) for name in PARAMETERS[1:]}),
        batching=limits.batching,
        max_tokens=limits.max_tokens,
        max_sequences=limits.max_sequences or MANY,
        memory_tokens=limits.memory_tokens or enough_memory(traces),
        padding=limits.padding,
        overhead=_overhead(found.value("overhead"), found.jitter),
        prefix_cache=any(bool(np.any(trace.cached > 0)) for trace in traces),
        calibration=Calibrated(
            runs=tuple(trace.name for trace in traces),
            intervals={name: (_time(low), _time(high)) for name in PARAMETERS for low, high in [found.interval(name)]},
            names=PARAMETERS,
            jitter=found.jitter,
            draws=tuple(tuple(float(f"{each:.6g}") for each in row) for row in found.draws),
            evidence=tuple(limits_evidence(found)),
            unknown=tuple(unknown(found)),
            rates=tuple(sorted({float(f"{trace.offered:.3g}") for trace in traces})),
            **more,
        ),
    )


def drawn(fleet: FleetSpec, number: int) -> FleetSpec:
    """The same with times that the data allow as well."""
    calibration = fleet.calibration
    if calibration is None or not calibration.draws or fleet.step is None:
        raise SpecError(
            "the fleet has no calibration with draws: make one with openloop calibrate RUN... -o model.yaml"
        )
    draws = np.array([row for row in calibration.draws if len(row) == len(PARAMETERS)])
    if calibration.names != PARAMETERS or len(draws) < len(calibration.draws) or not np.all(draws >= 0):
        raise SpecError(
            "the calibration's draws were changed by hand: a row has a time in seconds for each of its names; calibrate"
            " again, or leave the section calibration out"
        )
    found = dict(zip(PARAMETERS, draws[number % len(draws)], strict=True))
    for name in PARAMETERS[1:]:  # a time that is no longer as it was found was set by someone who knows it
        time = parse_seconds(getattr(fleet.step, name))
        found[name] = found[name] if _allowed(calibration, name, time) else time
    overhead = _overhead(found.pop("overhead"), calibration.jitter)
    try:
        median = parse_seconds((fleet.overhead or "0s").removeprefix("lognormal(median=").partition(",")[0])
    except SpecError:  # another distribution
        median = np.inf
    if not _allowed(calibration, "overhead", median):
        overhead = fleet.overhead or "0s"
    return msgspec.structs.replace(
        fleet, step=StepSpec(**{name: _time(value) for name, value in found.items()}), overhead=overhead
    )


def _allowed(calibration: Calibrated, name: str, seconds: float) -> bool:
    low, high = (parse_seconds(each) for each in calibration.intervals.get(name, ("0s", "0s")))
    return low * 0.999 <= seconds <= high * 1.001


def write_model(found: Calibration, path: Path, **more: Any) -> FleetSpec:
    fleet = fleet_of(found, **more)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(fleet.written(), sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)
    path.write_text(HEAD + text, encoding="utf-8")
    return fleet


def limits_evidence(found: Calibration) -> Iterator[str]:
    """Why these limits and this batching: the best of each kind, by what was not fitted to."""
    off = f"off by {_chosen(found):.3f} on average"
    yield f"{found.limits}: log(modelled / measured) of the second half of each run is {off}"
    seen = {found.limits.batching}
    for each in found.tried:
        if each.limits.batching not in seen:
            seen.add(each.limits.batching)
            yield f"{each.limits.batching} at its best ({each.limits}): {each.loss:.3f}"
    for name in found.saturated:
        without = [each.loss for each in found.tried if getattr(each.limits, name) is None]
        if without:
            yield f"without a limit of {name}: {min(without):.3f}"


def unknown(found: Calibration) -> Iterator[str]:
    """What the data do not tell."""
    peak = max(int(trace.crowd.max(initial=0) / trace.replicas) for trace in found.traces)
    full = max(float(held(trace, trace.sent_s).max(initial=0)) / trace.replicas for trace in found.traces)
    if found.limits.max_sequences is None:
        yield f"max_sequences: never reached; it is at least {peak}"
    if found.limits.memory_tokens is None:
        yield f"memory_tokens: never full; there is room for at least {full:,.0f} tokens"
    alike = [each for each in found.tried if replace(found.limits, max_tokens=each.limits.max_tokens) == each.limits]
    budgets = {each.limits.max_tokens for each in alike if each.loss < CLOSE * _chosen(found)}
    if len(budgets) > 1:
        yield f"max_tokens: {min(budgets):,} to {max(budgets):,} explain the data about as well"
    for name in PARAMETERS:
        value, (low, high) = found.value(name), found.interval(name)
        if value > 0 and high - low > WIDE * value:
            yield f"{name}: {_time(low)} to {_time(high)} explain the data about as well"
    if len({float(f"{trace.offered:.3g}") for trace in found.traces}) < 2:
        yield "other rates: all runs have the same one, so none was held out"
    worst = max(found.held, key=lambda each: abs(np.log1p(each.tpot[0])), default=None)
    if worst is not None and abs(np.log1p(worst.tpot[0])) > APART:
        times = f"{1 + worst.tpot[0]:,.2f} times the measured one"
        yield f"whether this is one system: TPOT at {worst.rate:g}/s, predicted from other rates, is {times}"
    if not any(bool(np.any(trace.cached > 0)) for trace in found.traces):
        yield "the prefix cache: no prompt was found in one"


def _chosen(found: Calibration) -> float:
    """What its limits leave of the second halves; others may leave less, but too little less to be needed."""
    return min(each.loss for each in found.tried if each.limits == found.limits)


def suggestions(found: Calibration) -> Iterator[str]:
    """Which measurement would tell each."""
    top = max(trace.offered for trace in found.traces)
    prompt = int(np.median(np.concatenate([trace.prompt for trace in found.traces])))
    overload = f"overload, so that requests wait: openloop run --rate {2 * top:.3g} --for 60s"
    lengths = f"prompts of several lengths: openloop run --prompt 'lognormal(median={4 * prompt},sigma=1)' --for 3m"
    memory = f"long answers to long prompts: openloop run --prompt {4 * prompt} --output 500 --for 3m"
    idle = f"an idle system: openloop run --rate {top / 20:.3g} --prompt 16 --for 3m"
    ways = {
        "max_sequences": overload,
        "memory_tokens": f"{overload} --prompt {4 * prompt} --output 500",
        "max_tokens": f"long prompts: openloop run --prompt {8 * prompt} --rate {top / 4:.3g} --for 2m",
        "token": lengths,
        "attention": lengths,
        "context": memory,
        "packed": memory,
        "overhead": idle,
        "fixed": idle,
        "floor": lengths,
        "sequence": f"rates from idle to overload: openloop sweep --rates {top / 8:.2g}:{top:.2g}:{top / 8:.2g}",
        "other rates": f"openloop run --rate {top / 3:.3g} and --rate {1.5 * top:.3g}",
        "whether this is one system": "the same rates again, with nothing else running; or calibrate to each run alone",
        "the prefix cache": f"prompts that share a beginning: --workload synthetic:prefixes=5,prefix={2 * prompt}",
    }
    for each in unknown(found):
        name = each.partition(":")[0]
        yield f"{name}: {ways[name]}"


def system_differences(manifests: Sequence[Manifest]) -> str:
    """In what the systems differ that were measured, as the runs name them; runs of two models are refused."""
    several: dict[str, list[str]] = {}
    for name in ("model", "engine", "engine_version", "engine_flags", "quantization", "hardware", "replicas", "target"):
        values = sorted({str(getattr(each, name)) for each in manifests if getattr(each, name) is not None})
        if len(values) > 1:
            several[name] = values
    if "model" in several:
        names = ", ".join(several["model"])
        raise SpecError(
            f"the runs are of several models ({names}), and one fit is of one: calibrate to each on its own"
        )
    return ", ".join(name.replace("_", " ") for name in several)


def measured_facts(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Workload and SLO, where all runs agree."""
    found: dict[str, Any] = {}
    for name in ("workload", "slo"):
        values = {str(getattr(each, name)): getattr(each, name) for each in manifests}
        if len(values) == 1 and None not in values.values():
            found[name] = values.popitem()[1]
    try:
        read_source(found.get("workload", ""))
    except OpenloopError:
        found.pop("workload", None)
    return found
