"""What would be: changes of a fleet side by side, by goodput and by what an accepted result takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import yaml

from openloop.arrivals import Arrivals, read_arrivals
from openloop.calibrate.model import drawn
from openloop.errors import SpecError
from openloop.score import score
from openloop.sim.fleet import FleetSpec, read_fleet, simulate_fleet
from openloop.slo import Objectives, read_slo
from openloop.spec import parse_yaml, saying_where
from openloop.workload import Scaled, Workload, read_source

SHARES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class FleetChange:
    name: str
    keys: Mapping[str, Any]  # of a fleet


@dataclass(frozen=True)
class ChangeOutcome:
    """Medians over draws, and 90% of them: of what the calibration leaves open, and of the load's own chance."""

    name: str
    replicas: int
    goodput_rps: float
    goodput_rps_interval: tuple[float, float]
    gain: float  # of goodput over the first, draw by draw
    gain_interval: tuple[float, float]
    cost_per_accepted: float  # in replica seconds, or in money where there is a price
    cost_interval: tuple[float, float]
    attainment: float
    ttft_p99_s: float
    tpot_p99_s: float


def changed(fleet: FleetSpec, keys: Mapping[str, Any]) -> FleetSpec:
    """With other values for some keys; what it was calibrated to stays."""
    idle = [name for name in ("model", "gpu", "tp") if name in keys]
    if fleet.step is not None and "step" not in keys and idle:
        raise SpecError(
            f"{idle[0]} changes nothing where the fleet has times of its steps; say how many times as fast it is, as"
            " 'speed: 1.5'"
        )
    if "replicas" in keys and keys.get("groups", fleet.groups):
        raise SpecError(
            f"replicas: {keys['replicas']} changes nothing where a fleet has groups, which say how many replicas they"
            " have; change these, as --change 'groups: [{replicas: 3, role: prefill}, {replicas: 1, role: decode}]'"
        )
    plain = msgspec.to_builtins(fleet)
    tried = read_fleet({**{key: value for key, value in plain.items() if value is not None}, **keys})
    if fleet.price_per_hour and "price_per_hour" not in keys and {"gpu", "tp", "groups"} & keys.keys():
        _check_hardware(fleet, tried)
    return tried


def _check_hardware(fleet: FleetSpec, tried: FleetSpec) -> None:
    """A price is of one replica as it is."""
    known = fleet.kinds()
    for group in tried.groups or ({},):
        for name in ("gpu", "tp"):
            value = group.get(name, getattr(tried, name))
            if all(value != getattr(each, name) for each in known) and group.get("price_per_hour") is None:
                raise SpecError(
                    f"{name}: {value} changes what a replica costs, and price_per_hour would stay"
                    f" {fleet.price_per_hour:g}: give it as well, as '{name}: {value}, price_per_hour: 12'"
                )


def common_changes(fleet: FleetSpec, acceptance: float) -> list[FleetChange]:
    """What people ask about."""
    count = fleet.replicas
    other = "prefill-first" if fleet.batching == "chunked" else "chunked"
    alike = [
        FleetChange(other, {"batching": other}),
        FleetChange("fp8: 1.6 times as fast", {"quantization": {"name": "fp8", "speed": 1.6}}),
        FleetChange(f"4 drafts, {acceptance:.0%} accepted", {"drafts": {"tokens": 4, "acceptance": acceptance}}),
    ]
    if fleet.scale is not None:  # how many there are is not for us to say
        return alike
    more = max(count + 1, 2)
    half = max(more // 2, 1)
    routed: dict[str, Any] = {"replicas": more, "routing": "prefix-aware"}
    if fleet.memory_tokens is not None or fleet.model is not None:  # a cache needs memory that ends
        routed["prefix_cache"] = True
    roles = ({"replicas": more - half, "role": "prefill"}, {"replicas": half, "role": "decode"})
    twice = [FleetChange("twice the replicas", {"replicas": 2 * count})] if count > 1 else []
    return [
        FleetChange("one replica more", {"replicas": count + 1}),
        *twice,
        *alike,
        FleetChange(f"{more - half} prefill, {half} decode", {"groups": roles}),
        FleetChange(f"{more} replicas, prefix-aware", routed),
    ]


def compare_changes(
    fleet: FleetSpec,
    changes: Sequence[FleetChange],
    workload: Workload,
    arrivals: Arrivals,
    seconds: float,
    objectives: Objectives,
    draws: int = 10,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> list[ChangeOutcome]:
    """The fleet as it is, and with each change; the same load and the same draw for all, one after another."""
    if fleet.groups:
        raise SpecError("whatif changes a fleet whose replicas are alike; this one has groups")
    several = [FleetChange("as it is", {}), *changes]
    for change in changes:
        with saying_where(f"the change {change.name!r}"):
            tried = changed(fleet, change.keys)
            if fleet.price_per_hour is None and any(each.price_per_hour is not None for each in tried.kinds()):
                raise SpecError(
                    "it has a price_per_hour and the fleet as it is has none; give that with --price as well"
                )
    figures = np.empty((len(several), draws, 6))
    sizes = [0] * len(several)
    for number in range(draws):
        mine = drawn(fleet, number) if fleet.calibration else fleet
        for place, change in enumerate(several):
            tell(f"{change.name}: simulation {number + 1} of {draws}")
            tried = changed(mine, change.keys)
            sizes[place] = tried.size
            if fleet.price_per_hour is None:  # cost is in replica seconds
                tried = msgspec.structs.replace(tried, price_per_hour=3600.0)
            run = simulate_fleet(tried, workload, arrivals, seconds, seed + number, objectives)
            found = score(run, objectives)
            tails = [np.nan if each is None else each.p99 for each in (found.ttft_s, found.tpot_s)]
            cost = np.inf if found.cost_per_accepted is None else found.cost_per_accepted
            figures[place, number] = found.goodput_rps, 0.0, cost, found.attainment, *tails
    goodput, base = figures[:, :, 0], figures[:1, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):  # more than nothing is endlessly more
        figures[:, :, 1] = np.where(goodput == base, 0.0, goodput / base - 1)
    finite = np.where(np.isinf(figures), 1e300, figures)  # infinite costs have an order, too
    outcomes = []
    quantiles = np.nanquantile(finite, SHARES, axis=1)
    quantiles[quantiles > 1e200] = np.inf
    for change, size, low, middle, high in zip(several, sizes, *quantiles.tolist(), strict=True):
        ends = list(zip(low, high, strict=True))
        each = middle[0], ends[0], middle[1], ends[1], middle[2], ends[2], *middle[3:]
        outcomes.append(ChangeOutcome(change.name, size, *each))
    return outcomes


def read_change(text: str) -> FleetChange:
    whole = text.strip()
    try:
        keys = parse_yaml(whole if whole.startswith("{") else "{" + whole + "}")
    except (yaml.YAMLError, ValueError, TypeError):
        keys = None
    if not isinstance(keys, dict) or not keys or None in keys.values():
        raise SpecError(f"{text!r} is no change; write keys of a fleet, as 'replicas: 6, batching: prefill-first'")
    return FleetChange(whole, keys)


def resized(
    workload: Workload, arrivals: Arrivals | None, prompt: tuple[bool, float] | None, output: tuple[bool, float] | None
) -> Workload:
    """With longer prompts and answers: so many times as long, or so long on average."""
    if prompt is None and output is None:
        return workload
    drawn = workload.demand(arrivals or read_arrivals("poisson:rate=1"), 1000.0, 0)
    factors = [
        1.0 if asked is None else asked[1] if asked[0] else asked[1] / max(float(tokens.mean()), 1e-9)
        for asked, tokens in ((prompt, drawn.prompt_tokens), (output, drawn.output_tokens))
    ]
    return Scaled(workload.classes, *factors)


def wanted(
    fleet: FleetSpec, rate: float | None, workload: str | None, slo: Any
) -> tuple[Workload, Arrivals, Objectives, str]:
    """The load, the objectives, and a sentence that says which."""
    told = fleet.calibration
    workload = workload or (told.workload if told else None)
    slo = slo or (told.slo if told else None)
    rate = rate if rate is not None or told is None else max(told.rates, default=None)
    examples = {
        "--workload 'synthetic:prompt=300,output=100'": workload,
        "--slo 'ttft<=1s, tpot<=40ms'": slo,
        "--rate 8": rate,
    }
    for what, value in examples.items():
        if value is None:
            raise SpecError(f"the model does not tell what was measured: give {what}")
    load = Workload.of(read_source(str(workload)))
    sentence = f"{rate:g}/s of {load}; {slo}"
    return load, read_arrivals(f"poisson:rate={rate!r}"), read_slo(slo), sentence
