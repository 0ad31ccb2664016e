"""Three decisions that goodput changes, end to end: how many replicas, from A to B, model X or Y.

decision: migration            # capacity, migration or model
demand: 40/s
one_time: 20000                # what the change itself costs
options:
  today: {from: frontier-a/, price: 3/h, quality: 91% of 500}
  new: {from: frontier-b/, price: 4/h, quality: 88% of 500}
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from openloop.audit import FACTS, audit
from openloop.compare.decide import other_work
from openloop.errors import SpecError
from openloop.frontier import Point, open_frontier
from openloop.frontier.folder import FRONTIER_FILE, lasting, trials_in
from openloop.importers import open_any
from openloop.plan import CapacityPlan, LoadPoint, Needs, System, frontier_system, make_plan, typed_system
from openloop.plan.make import HOURS
from openloop.plan.system import Estimate, cost_caveat, mean_replicas
from openloop.records import Prices
from openloop.score import Score
from openloop.score import score as score_run
from openloop.score.quantiles import Z, wilson
from openloop.spec import Strict, convert, plain, read_yaml
from openloop.units import parse_price, parse_rate, parse_share, parse_times, parse_token_rate

SURE = 0.95
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
KEYS = {  # what may be said of an option, by what is known of it
    "from": ("price", "prices", "quality"),
    "knee": ("price", "quality", "throughput"),
    "attainment": ("price", "quality", "throughput", "cost_per_request"),
    "accepted": ("price", "quality", "throughput", "cost_per_request"),  # as attainment was called before
}
NEEDS: dict[str, Callable[[Any], Any]] = {  # how what is asked of a demand is read
    "peak": parse_times,
    "headroom": parse_share,
    "failures": int,
    "availability": parse_share,
    "machine_up": parse_share,
}


class _Option(Strict, frozen=True, rename={"source": "from"}):
    """Something to choose: measured (`from`), or typed."""

    source: str | None = None  # a run, a frontier, or another tool's file
    price: str | None = None  # of a replica, as 3/h
    prices: Prices | None = None  # by use, for a run that has none
    quality: str | None = None  # where rows have no labels: 72%, or 72% of 500
    knee: str | None = None  # typed: rate of a replica, in time
    throughput: str | None = None  # typed: rate of a replica, accepted or not; or 1200tok/s
    attainment: str | None = None  # typed: as 58% of 100
    accepted: str | None = None  # what attainment was called before
    cost_per_request: Amount | None = None


class _Question(Strict, frozen=True):
    decision: Literal["capacity", "migration", "model"]
    options: dict[str, _Option]
    demand: str | None = None
    peak: str | None = None  # these are of the demand; by default as Needs has them
    headroom: str | None = None
    failures: int | None = None
    availability: str | None = None
    machine_up: str | None = None
    slo: Any = None
    one_time: Amount = 0.0


@dataclass(frozen=True)
class Unmeasured:
    """What was not measured of an option."""

    option: str
    fact: str
    why: str


@dataclass(frozen=True)
class KnownOption:
    """An option, as far as it is known. Money is in the currency of the prices."""

    name: str = ""
    source: str = "typed"
    goodput_each: Estimate | None = None  # accepted per second and replica
    throughput_each: float | None = None  # answers, accepted or not
    tokens_per_s: float | None = None  # throughput of a replica, in tokens
    attainment: Estimate | None = None
    cost_per_accepted: Estimate | None = None
    replicas: Estimate | None = None  # for the demand
    monthly: Estimate | None = None
    valid: bool = True
    reasons: tuple[str, ...] = ()
    cost_caveat: str | None = None  # what it costs is not known in full
    plan: CapacityPlan | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    decision: str
    question: str
    choose: str | None  # an option; None: no difference is shown, or nothing can be compared
    headline: str
    sentences: tuple[str, ...]
    sure: float | None = None  # that it is the better one, given what was measured
    saves: Estimate | None  # a month
    payback_months: float | None = None
    by_throughput: str | None  # what a comparison of throughput would choose
    cases: tuple[KnownOption, ...]
    gaps: tuple[Unmeasured, ...]
    kind: Literal["decision"] = "decision"

    @property
    def valid(self) -> bool:
        return all(case.valid for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found


def _read_question(what: str | Path | dict[str, Any]) -> tuple[_Question, Path]:
    """And the folder that paths in it are relative to."""
    if isinstance(what, dict):
        return convert(what, _Question, "the question"), Path()
    raw, folder = read_yaml(Path(what)), Path(what).parent
    if not isinstance(raw, dict):
        raise SpecError(f"{what} asks nothing; write decision: capacity, migration or model, and options")
    if isinstance(slo := raw.get("slo"), str) and slo.endswith((".yaml", ".yml")):
        raw["slo"] = str(folder / slo)
    return convert(raw, _Question, str(what)), folder


def decide(what: str | Path | dict[str, Any]) -> Decision:
    asked, folder = _read_question(what)
    wanted = 1 if asked.decision == "capacity" else 2
    if len(asked.options) != wanted:
        told = "one option, the system to size" if wanted == 1 else "two options, of which the first is today's"
        raise SpecError(f"{asked.decision} takes {told}; there are {len(asked.options)}")
    if asked.decision == "capacity" and asked.demand is None:
        raise SpecError("how many replicas depends on the demand: give one, such as demand: 10000/d")
    said = {name: read(value) for name, read in NEEDS.items() if (value := getattr(asked, name)) is not None}
    if said and asked.demand is None:
        raise SpecError(f"{next(iter(said))} is of a demand, and there is none: leave it out, or give demand: 40/s")
    needs = None if asked.demand is None else Needs(parse_rate(asked.demand), **said)
    cases = [_case(name, option, asked, needs, folder) for name, option in asked.options.items()]
    for case in cases:
        if said and case.plan is None:
            raise SpecError(
                f"{case.name}: {next(iter(said))} is of replicas, and how many it takes needs a knee: give from a "
                "frontier, or knee; or leave it out"
            )
    gaps = tuple(gap for name, option in asked.options.items() for gap in _gaps(name, option, asked, folder))
    if asked.decision == "capacity":
        found = _capacity(asked, cases[0], gaps)
    else:
        found = _choice(asked, cases[0], cases[1], gaps)
    caveats = [f"{case.name}: {case.cost_caveat}." for case in cases if case.cost_per_accepted and case.cost_caveat]
    return replace(found, sentences=(*found.sentences, *_other_work(asked, folder), *caveats))


def _counted(text: str, what: str) -> Estimate:
    """`72%`, or `72% of 500`, which has an interval."""
    match = re.fullmatch(r"\s*(\S+?)(?:\s+of\s+(\d+))?\s*", text)
    if match is None:
        raise SpecError(f"{what} is {text!r}; write it as 72% or, with how many were judged, as 72% of 500")
    share = parse_share(match[1])
    if share <= 0:
        raise SpecError(f"{what} is {text!r}: where nothing is accepted, no price makes it worth it")
    return Estimate(share, wilson(share, float(match[2])) if match[2] and float(match[2]) > 0 else None)


def _check(name: str, option: _Option) -> None:
    """An option says one thing: what is not used is refused and not dropped."""
    said = [key for key, value in msgspec.to_builtins(option).items() if value is not None]
    basis = next((key for key in KEYS if key in said), None)
    for key in said:
        if basis is not None and key != basis and key not in KEYS[basis]:
            raise SpecError(f"{name}: {key} is not used beside {basis}: leave out one of them")
    if option.price is not None and option.cost_per_request is not None:
        raise SpecError(f"{name}: price and cost_per_request are two costs of the same requests: leave out one of them")


def _case(name: str, option: _Option, asked: _Question, needs: Needs | None, folder: Path) -> KnownOption:
    _check(name, option)
    price = None if option.price is None else parse_price(option.price)
    quality = Estimate(1.0) if option.quality is None else _counted(option.quality, f"{name}: quality")
    if option.source is None:
        return replace(_typed(name, option, price, quality, needs), name=name)
    path = folder / option.source
    if not (path / FRONTIER_FILE).exists():
        known = _scored(path, option.prices, price, quality, asked.slo, needs)
        return replace(known, name=name, source=option.source)
    found = open_frontier(path, asked.slo, option.prices)
    system = frontier_system(found)
    return replace(
        _planned(system, price, quality, needs),
        name=name,
        source=option.source,
        tokens_per_s=max(map(_tokens_in_time, lasting(found.points))) / system.measured_replicas,
        cost_caveat=cost_caveat(score for point in found.points for score in point.scores),
    )


def _typed(name: str, option: _Option, price: float | None, quality: Estimate, needs: Needs | None) -> KnownOption:
    told = option.throughput or ""
    tokens = parse_token_rate(told) if "tok" in told else None
    raw = parse_rate(told) if told and tokens is None else None
    if option.knee is not None:
        known = _planned(typed_system([parse_rate(option.knee)], capacity=raw), price, quality, needs)
        return replace(known, tokens_per_s=tokens)
    share = option.attainment or option.accepted
    if share is None:
        raise SpecError(
            f"{name}: say what is known of it: from (a run or a frontier), knee, or attainment, such as 58% of 100"
        )
    attainment = _times(_counted(share, f"{name}: attainment"), quality)
    goodput = None if raw is None else attainment.times(raw)
    cost = _over(option.cost_per_request, attainment)
    if cost is None and price is not None and goodput is not None:
        cost = _over(price / 3600, goodput)
    return KnownOption(name, "typed", goodput, raw, tokens, attainment, cost, monthly=_monthly(cost, needs))


def _planned(system: System, price: float | None, quality: Estimate, needs: Needs | None) -> KnownOption:
    """By the knee. What is not accepted is asked for again, so the demand grows by it."""
    price = system.price if price is None else price
    each = _times(system.knees.times(system.goodput / system.knee), quality)
    known = KnownOption(goodput_each=each, throughput_each=system.capacity)
    if needs is None:
        attainment = _times(Estimate(system.goodput / system.knee), quality)
        hours, used = _over(price and price / 3600, each), system.by_use_at(system.knee) / max(attainment.value, 1e-9)
        cost = hours and Estimate(
            hours.value + used, hours.interval and (hours.interval[0] + used, hours.interval[1] + used)
        )
        return replace(known, attainment=attainment, cost_per_accepted=cost)
    priced = replace(needs, price=price)
    plan = _accepting(system, priced, quality.value)
    if plan.raw is not None:  # whoever goes by throughput takes every answer for good
        naive = make_plan(system, priced)
        count = naive.raw.value if naive.raw else 1.0
        rate = plan.peak_rate / count
        plan = replace(plan, raw=naive.raw, raw_rate_each=rate, raw_cost_per_hour=naive.raw_cost_per_hour)
    ends = [_accepting(_at_end(system, end), replace(priced, by="middle"), quality.ends[end]) for end in (2, 0)]
    plans = [ends[0], plan, ends[1]]
    measured = quality.interval is not None or (system.knee_interval is not None and not system.beyond)
    costs = [_cost_each(found, needs.demand) for found in plans if found.needs.price is not None]
    cost = Estimate.spanning(costs, measured) if costs else None
    return replace(
        known,
        attainment=_times(system.attainment_at(plan.needs.demand / plan.replicas), quality),
        cost_per_accepted=cost,
        replicas=Estimate.spanning([float(found.replicas) for found in plans], measured),
        monthly=_monthly(cost, needs),
        plan=plan,
    )


def _accepting(system: System, needs: Needs, good: float) -> CapacityPlan:
    """For so many accepted results: as many more requests as are late or bad under the load of the plan."""
    demand = needs.demand / good
    while True:
        plan = make_plan(system, replace(needs, demand=demand, quality=good))
        share = plan.attainment.value
        if demand * share >= 0.9999 * needs.demand:
            return plan
        if share <= 0:
            raise SpecError("no answer would be accepted under the plan's load: no number of replicas is enough")
        more = needs.demand / (demand * share)
        demand *= min(more, 1.01) if more < 1.1 else more**0.5  # at last in steps that skip no replica


def _at_end(system: System, end: int) -> System:
    """As good or as bad as what was measured allows; at its knee the target is met."""
    knee, target = system.knees.ends[end], system.target
    loads = [replace(load, attainment=system.attainment_at(load.rate).ends[end]) for load in system.loads]
    loads += [] if target is None else [LoadPoint(knee, target, (target, target), None)]
    loads.sort(key=lambda load: load.rate)
    return replace(system, knee=knee, knee_interval=None, loads=tuple(loads))


def _cost_each(plan: CapacityPlan, accepted: float) -> float:
    used = plan.system.by_use_at(plan.needs.demand / plan.replicas) / plan.attainment.value
    return (plan.needs.price or 0.0) * plan.replicas / 3600 / accepted + used


def _scored(
    path: Path, prices: Prices | None, price: float | None, quality: Estimate, slo: Any, needs: Needs | None
) -> KnownOption:
    """By one operating point: as many per replica as it was asked for."""
    run = open_any(path)
    if slo is None and run.manifest.slo is None:
        raise SpecError(f"{path} says nothing of what is accepted: give an SLO for all, such as slo: ttft<=500ms")
    count = mean_replicas(run.manifest)
    if price is not None:
        by_use = prices or run.manifest.prices or Prices()
        prices = msgspec.structs.replace(by_use, per_hour=price * count, per_gpu_hour=0.0, gpus=None)
    found: Score = score_run(run, slo, prices=prices)
    attainment = _times(Estimate(found.attainment, found.attainment_interval), quality)
    low, high = found.goodput_rps_interval
    cost = _over(found.cost.per_request, attainment) if found.cost and found.accepted else None
    return KnownOption(
        goodput_each=_times(Estimate(found.goodput_rps, (max(low, 0.0), high)).times(1 / count), quality),
        throughput_each=found.completed_in_window_rps / count,
        tokens_per_s=_tokens_in_time(found) / count,
        attainment=attainment,
        cost_per_accepted=cost,
        monthly=_monthly(cost, needs),
        valid=found.valid,
        reasons=found.reasons,
        cost_caveat=cost_caveat([found]),
    )


def _monthly(cost: Estimate | None, needs: Needs | None) -> Estimate | None:
    return None if cost is None or needs is None else cost.times(needs.demand * 3600 * HOURS)


def _times(a: Estimate, b: Estimate) -> Estimate:
    """Of independent ones: errors add in squares, on a logarithmic scale."""
    value = a.value * b.value
    if a.interval is None and b.interval is None:
        return Estimate(value)
    below, above = (
        math.hypot(*(_log(each.interval[end], each.value) if each.interval else 0.0 for each in (a, b)))
        for end in (0, 1)
    )
    return Estimate(value, (value * math.exp(-below), value * math.exp(above)))


def _log(end: float, value: float) -> float:
    return abs(math.log(max(end, 1e-9) / value)) if value > 0 else 0.0


def _over(amount: float | None, by: Estimate) -> Estimate | None:
    if amount is None or by.value <= 0:
        return None
    return Estimate(amount / by.value, by.interval and (amount / by.interval[1], amount / max(by.interval[0], 1e-9)))


def _gaps(name: str, option: _Option, asked: _Question, folder: Path) -> Iterator[Unmeasured]:
    if option.source is None:
        yield Unmeasured(name, "everything", "its numbers were typed: nothing of it was measured here")
        return
    found = audit(folder / option.source, asked.slo)
    told = {"cost": option.price or option.prices, "quality_gate": option.quality}
    for fact in found.missing:
        if not told.get(fact):
            yield Unmeasured(name, fact.replace("_", " "), FACTS[fact])
    if not (folder / option.source / FRONTIER_FILE).exists():
        yield Unmeasured(name, "other rates", "one operating point: how it does with more load is not known")


def _other_work(asked: _Question, folder: Path) -> Iterator[str]:
    """What the two were asked differently, as a comparison says it; a frontier has no rate of its own."""
    paths = [folder / option.source for option in asked.options.values() if option.source is not None]
    sweeps = [path for path in paths if (path / FRONTIER_FILE).exists()]
    leave = [*(("arrivals", "offered_rps") if sweeps else ()), *(() if asked.slo is None else ("slo",))]
    if len(paths) == 2:
        first, second = (open_any(next(trials_in(path))[1] if path in sweeps else path).manifest for path in paths)
        yield from (f"N{told[1:]}." for told in other_work(first, second, leave))


def _capacity(asked: _Question, case: KnownOption, gaps: tuple[Unmeasured, ...]) -> Decision:
    plan = case.plan
    if plan is None:
        raise SpecError(f"{case.name}: how many replicas needs a knee: give from a frontier, or knee")
    by_raw = None if plan.raw is None else int(plan.raw.value)
    fewer = by_raw if by_raw is not None and by_raw < plan.replicas else None
    most = "at most " if plan.system.beyond else ""
    sentences = [
        f"The demand of {asked.demand} needs {most}{plan.replicas} {plan.system.unit}s, each at "
        f"{100 * plan.utilisation.value:.0f}% of what it serves in time."
    ]
    if case.attainment and case.attainment.value < 0.9995:
        sentences.append(
            f"{100 * (1 - case.attainment.value):.1f}% of answers are not accepted and are asked for again."
        )
    if fewer is not None:
        share = plan.system.attainment_at(plan.peak_rate / fewer).value
        missed = f", {100 * share:.0f}% of requests would be in time" if plan.system.loads else " it is past the knee"
        sentences.append(f"Throughput suggests {fewer}; at the peak{missed}.")
    sentences.append(_how_sure(case.replicas, plan))
    more = None
    if plan.cost_per_hour and plan.raw_cost_per_hour:
        more = Estimate(HOURS * (plan.raw_cost_per_hour.value - plan.cost_per_hour.value))
        if fewer is not None:
            what = "more" if more.value < 0 else "less"
            sentences.append(f"It costs {abs(more.value):,.0f} a month {what} than {fewer}.")
    elif plan.cost_per_hour is None:
        sentences.append("What it costs is not known: give price: 3/h, of one replica.")
    instead = "" if fewer is None else f", not {fewer}"
    return Decision(
        decision="capacity",
        question=f"How many {plan.system.unit}s of {case.name} for {asked.demand}?",
        choose=case.name,
        headline=f"Deploy {plan.replicas} {plan.system.unit}s{instead}",
        sentences=tuple(sentences),
        saves=more,
        by_throughput=None if by_raw is None else f"{by_raw} {plan.system.unit}s",
        cases=(case,),
        gaps=gaps,
    )


def _how_sure(count: Estimate | None, plan: CapacityPlan) -> str:
    if plan.system.beyond:
        return "Fewer may do: the knee lies beyond what was measured."
    if count is None or count.interval is None:
        return "How sure that is cannot be said: the knee was typed."
    low, high = count.interval
    if low == high:
        return "Any knee in its 95% interval asks for as many."
    told = f"{low:.0f} to {high:.0f} are needed; {plan.replicas} are enough for most of it"
    return f"By the 95% intervals of what was measured, {told}."


def _choice(asked: _Question, a: KnownOption, b: KnownOption, gaps: tuple[Unmeasured, ...]) -> Decision:
    """The second instead of the first, where it is surely cheaper per accepted result, or does surely more."""
    money = a.cost_per_accepted is not None and b.cost_per_accepted is not None
    first, second = (case.cost_per_accepted if money else case.goodput_each for case in (a, b))
    if first is None or second is None:
        raise SpecError(
            f"{a.name} and {b.name} cannot be compared: give both a price (3/h of a replica, or cost_per_request), or "
            "say what a replica of both does"
        )
    sure = _chance(first, second, less=money)
    better, other = (b, a) if sure >= 0.5 else (a, b)
    chance = max(sure, 1 - sure)
    measured = first.interval is not None or second.interval is not None
    shown = chance >= SURE
    saves = _saved(other, better) if money else None
    payback = asked.one_time / saves.value if asked.one_time and saves and saves.value > 0 and better is b else None
    winner = _by_throughput(a, b)
    verb = {"migration": ("Move to", "Stay with"), "model": ("Use", "Use")}[asked.decision][0 if better is b else 1]
    what = "cost" if money else "goodput"
    headline = f"{verb} {better.name}" if shown else f"No difference in {what} is shown between {a.name} and {b.name}"
    sentences = list(_why(better, other, money))
    if winner is not None and winner != better.name and shown:
        sentences.append(f"Throughput alone would have chosen {winner}.")
    sentences.append(_sureness(chance, measured, shown, better))
    if saves and shown:
        span = f" (95% interval {saves.interval[0]:,.0f} to {saves.interval[1]:,.0f})" if saves.interval else ""
        sentences.append(f"It saves {saves.value:,.0f} a month{span}.")
    if payback is not None and shown:
        sentences.append(f"The change costs {asked.one_time:,.0f}, which is back after {payback:.1f} months.")
    if not money:
        sentences.append("What it saves is not known: give both a price.")
    sentences += [
        f"The knee of {case.name} lies beyond what was measured: it may do more."
        for case in (a, b)
        if case.plan and case.plan.system.beyond
    ]
    return Decision(
        decision=asked.decision,
        question=f"{a.name} or {b.name}?",
        choose=better.name if shown else None,
        headline=headline,
        sentences=tuple(sentences),
        sure=chance if measured else None,
        saves=saves if shown else None,
        payback_months=payback if shown else None,
        by_throughput=winner,
        cases=(a, b),
        gaps=gaps,
    )


def _chance(a: Estimate, b: Estimate, *, less: bool) -> float:
    """That b is better than a, if errors are normal on a logarithmic scale; exact numbers are simply compared.

    Errors are those on the sides that face each other: the others do not bring the two any closer.
    """
    gap = (1 if less else -1) * math.log(max(a.value, 1e-300) / max(b.value, 1e-300))
    higher, lower = (a, b) if a.value > b.value else (b, a)
    error = math.hypot(_log(higher.ends[0], higher.value), _log(lower.ends[2], lower.value)) / Z
    return 0.5 * (1 + math.erf(gap / error / math.sqrt(2))) if error > 0 else float(np.heaviside(gap, 0.5))


def _saved(worse: KnownOption, better: KnownOption) -> Estimate | None:
    """A month: least where the worse one is cheap and the better one dear, most the other way round."""
    if worse.monthly is None or better.monthly is None:
        return None
    pay, paid = worse.monthly, better.monthly
    value = pay.value - paid.value
    if pay.interval is None and paid.interval is None:
        return Estimate(value)
    below, above = (math.hypot(pay.ends[end] - pay.value, paid.ends[2 - end] - paid.value) for end in (0, 2))
    return Estimate(value, (value - below, value + above))


def _tokens_in_time(of: Point | Score) -> float:
    """Per second, without those of answers that came only after the window, as most do in overload."""
    if not of.throughput_rps:
        return 0.0
    return of.output_tokens_per_s * min(of.completed_in_window_rps / of.throughput_rps, 1.0)


def _by_throughput(a: KnownOption, b: KnownOption) -> str | None:
    for pair in ((a.tokens_per_s, b.tokens_per_s), (a.throughput_each, b.throughput_each)):
        if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
            return a.name if pair[0] > pair[1] else b.name
    return None


def _why(better: KnownOption, other: KnownOption, money: bool) -> Iterator[str]:
    if money and better.cost_per_accepted and other.cost_per_accepted:
        ours, theirs = better.cost_per_accepted.value, other.cost_per_accepted.value
        less = f", {100 * (1 - ours / theirs):.0f}% less" if theirs else ""
        yield f"An accepted result costs {ours:.3g} with {better.name} and {theirs:.3g} with {other.name}{less}."
    if better.attainment and other.attainment:
        yield (
            f"{100 * better.attainment.value:.0f}% of requests are accepted with {better.name}, "
            f"{100 * other.attainment.value:.0f}% with {other.name}."
        )
    if better.goodput_each and other.goodput_each:
        yield (
            f"A replica does {better.goodput_each.value:.3g} accepted results per second with {better.name}, "
            f"{other.goodput_each.value:.3g} with {other.name}."
        )


def _sureness(chance: float, measured: bool, shown: bool, better: KnownOption) -> str:
    if not measured:
        return "How sure that is cannot be said: the numbers were typed, without how many requests they rest on."
    told = f"{100 * min(chance, 0.999):.3g}%"
    if shown:
        return f"By what was measured, it is {told} sure."
    return f"{better.name} is ahead, but only {told} surely: measure for longer before anybody moves."
