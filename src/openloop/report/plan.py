"""The report of a plan: what to deploy, how the number comes about, what it costs and what to improve first."""

from collections.abc import Callable, Iterator

import numpy as np

from openloop.plan.formulas import some_up
from openloop.plan.make import HOURS, PRICE, Cache, CapacityPlan, Gain
from openloop.plan.system import Estimate
from openloop.report.marks import Axis, Bars, Curve, Figure, Mark, Panel, Rule, Unit, names_figure
from openloop.report.page import Cell, Columns, Number, Report, Section, Table, capital, number, span
from openloop.report.tables import field_table
from openloop.terms import read_term
from openloop.units import format_money, format_rate, format_seconds, format_share

NINES = 6  # shown at most, of an availability
COSTS: dict[str, str] = {
    "cost_per_hour": "cost per hour",
    "cost_per_million": "cost per million accepted",
    "cost_per_million_tokens": "cost per million accepted tokens",
}


def plan_report(plan: CapacityPlan) -> Report:
    sound = plan.confirmed is None or plan.confirmed.enough
    return Report(
        title="Deployment plan",
        subtitle=f"for {format_rate(plan.needs.demand)} · {plan.system.source}",
        verdict="good" if sound else "invalid",
        headline=_headline(plan),
        sentences=list(_sentences(plan)),
        numbers=list(_numbers(plan)),
        sections=[section for make in PLAN_SECTIONS if (section := make(plan))],
        data=plan.to_dict(),
        badge="Plan" if sound else "Not enough",
    )


def _replicas(plan: CapacityPlan, count: float) -> str:
    return f"{count:,.0f} {plan.system.unit}{'' if count == 1 else 's'}"


def _headline(plan: CapacityPlan) -> str:
    cost = plan.cost_per_hour
    told = f" for {format_money(cost.value)} an hour" if cost else ""
    raw = plan.raw
    instead = f", not the {raw.value:,.0f} of raw capacity" if raw and raw.value < plan.replicas else ""
    if plan.system.beyond:
        instead = ", or fewer: the knee was not reached"
    return f"Deploy {_replicas(plan, plan.replicas)}{told}{instead}"


def _sentences(plan: CapacityPlan) -> Iterator[str]:
    needs, system = plan.needs, plan.system
    kept = "at which it was seen to keep" if system.beyond else "up to which it keeps"
    yield (
        f"{format_rate(plan.peak_rate)} at the peak are {format_rate(plan.rate_each)} for each {system.unit}, "
        f"{format_share(plan.utilisation.value)} of the {format_rate(plan.knee)} {kept} its promise"
        f"{f' (with warmer caches, {format_rate(system.knee)})' if plan.knee < system.knee * 0.999 else ''}."
    )
    if (each := system.requests_per_user) > 1:
        users = system.knee * system.measured_replicas / each
        yield (
            f"All rates here are requests per second: a user who was measured makes {each:.3g} of them, so a knee of "
            f"{users:.3g} users per second is {format_rate(users * each)}."
        )
    if plan.replicas_interval and plan.replicas_interval[0] < plan.replicas_interval[1]:
        end = "its lower end, so that a plan is not short by bad luck" if needs.by == "low" else "its middle"
        yield f"By the knee's interval, {span(plan.replicas_interval, 'count')} are needed; this plan goes by {end}."
    if plan.raw and plan.raw_rate_each and plan.raw.value < plan.replicas:
        each = plan.raw_rate_each
        past = f", where each would get {format_rate(each)} and miss its SLO" if each > plan.knee * 1.0001 else ""
        yield f"Raw capacity suggests {plan.raw.value:,.0f}{past}."
    if plan.fits is False:
        yield (
            f"A {system.unit} would have {plan.in_flight_each or 0:,.1f} requests in flight and holds "
            f"{system.in_flight or 0:,.0f}: more of them are needed than the rate alone says."
        )
    if needs.availability is not None:
        yield (
            f"With machines that are up {format_share(needs.machine_up)} of the time, enough are up "
            f"{_nines(plan.available)} of it."
        )
    if plan.day and plan.day.saved > 0:
        yield (
            f"Scaling ahead of the day's demand would save {format_share(plan.day.saved)} of the {system.unit}-hours; "
            f"scaling when it has come would leave {format_share(plan.day.short)} of requests with too few."
        )
    best = next((gain for gain in plan.gains if gain.name != PRICE), None)
    if best and best.worth > 0:
        besides = ", besides the price" if plan.gains[0].name == PRICE else ""
        saved = f"{format_share(best.worth)} of the {_saved(plan)}"
        yield f"Improve first{besides}: {best.name}. A tenth better saves {saved}."
    if plan.confirmed:
        found = plan.confirmed
        yield (
            f"Simulated at the peak, {_replicas(plan, found.replicas)} accept {format_share(found.attainment)} "
            f"of requests ({span(found.attainment_interval, 'share')})."
        )
    yield from (f"{capital(note)}." for note in plan.notes)


def _nines(share: float) -> str:
    """With as many digits as it has nines."""
    return "100%" if share >= 1 else f"{100 * share:.{int(min(max(-np.log10(1 - share) - 1, 1), NINES))}f}%"


def _estimate(
    plan: CapacityPlan, words: str, key: str, unit: Unit, otherwise: str = ""
) -> Iterator[tuple[str, Number, str]]:
    """A number of the plan with its interval, if it is known."""
    found = getattr(plan, key)
    if found:
        yield words, number(plan, f"{key}.value", unit), span(found.interval, unit, otherwise)


def _numbers(plan: CapacityPlan) -> Iterator[tuple[str, Number, str]]:
    found = plan.replicas_interval
    bound = "at most" if plan.system.beyond else ""
    told = f"{span(found, 'count')} by the knee's interval" if found else bound or "the knee is exact, as typed"
    yield f"{plan.system.unit}s", number(plan, "replicas", "count"), told
    for key, words in COSTS.items():
        yield from _estimate(plan, words, key, "money", bound)
    yield from _estimate(plan, "of the knee, at the peak", "utilisation", "share", bound)
    if plan.needs.availability is not None:
        told = f"up {_nines(plan.available)}, asked for {_nines(plan.needs.availability)}"
        yield "too few are up, a month", Number((1 - plan.available) * HOURS * 3600, "seconds"), told


def size(plan: CapacityPlan) -> Section | None:
    """From demand to a number of replicas, a step at a time."""
    needs = plan.needs
    steps = [("carry the peak", "carry.value", span(plan.carry.interval, "count"))]
    if needs.headroom:
        steps.append((f"with {format_share(needs.headroom)} headroom", "sized", "for bursts"))
    if needs.failures:
        steps.append((f"while {needs.failures} may be down", "for_failures", "with that headroom"))
    if plan.for_availability is not None and needs.availability is not None:
        told = f"machines up {format_share(needs.machine_up)}"
        steps.append((f"up {_nines(needs.availability)} of the time", "for_availability", told))
    steps.append(("deploy", "replicas", "the most of these"))
    rows = [(name, number(plan, key, "count"), told) for name, key, told in steps]
    ends = np.array([count.value for _, count, _ in rows], float)
    marks: list[Mark] = [Bars("needed", np.zeros(len(ends)), ends, "blue")]
    if plan.raw:
        marks.append(Rule(plan.raw.value, "raw capacity", "x", "red"))
    figure = names_figure(
        "size",
        "How many, and why",
        Axis(f"{plan.system.unit}s", "count", low=0.0),
        [name for name, *_ in steps],
        marks,
        "The most of these is deployed.",
    )
    rows += _estimate(plan, "by raw capacity", "raw", "count", "as typed")
    lead = f"A {plan.system.unit} keeps its promise up to {_knee(plan)}. Beyond that it is busy, but not useful."
    if plan.system.beyond:
        lead = f"A {plan.system.unit} keeps its promise up to {_knee(plan)}: no rate that was measured is beyond it."
    note = (
        "Replicas = peak (1 + headroom) / knee, rounded up; then as many more as may be down, or as it takes for that "
        "many to be up with the availability asked for (binomial: machines fail independently)."
    )
    return Section("size", "How many", lead, [figure, Table(("", f"{plan.system.unit}s", ""), rows)], note)


def _knee(plan: CapacityPlan) -> str:
    system = plan.system
    return f"{format_rate(system.knee)} or more" if system.beyond else _rate(system.knee, system.knee_interval)


def _rate(value: float, interval: tuple[float, float] | None) -> str:
    return format_rate(value) + ("" if interval is None else f" ({span(interval, 'rate')}, 95% interval)")


def _saved(plan: CapacityPlan) -> str:
    """What gains are shares of."""
    return "cost per million accepted" if plan.cost_per_million else f"number of {plan.system.unit}s"


def gains(plan: CapacityPlan) -> Section | None:
    """Which one number to improve first."""
    if not plan.gains:
        return None
    of = _saved(plan)
    worth, unrounded = (np.array([getattr(gain, key) for gain in plan.gains]) for key in ("worth", "unrounded"))
    figure = names_figure(
        "gains",
        "What a tenth better is worth",
        Axis(f"saved of the {of}", "share", low=0.0),
        [gain.name for gain in plan.gains],
        [
            Bars("saved", np.zeros(len(worth)), np.maximum(worth, 0.0), "green"),
            Curve("if they came in parts", unrounded, np.arange(len(worth), dtype=float), "grey", "dots"),
        ],
        "Replicas come whole: a gain may be worth more or less than its share.",
    )
    columns: Columns = {
        "now": ("now", "number"),
        "then": ("then", "number"),
        "replicas": (f"{plan.system.unit}s", "count"),
        "worth": ("saves", "share"),
        "unrounded": ("unrounded", "share"),
    }
    table = field_table(
        "a tenth better", [(gain.name, gain, f"gains.{place}") for place, gain in enumerate(plan.gains)], columns
    )
    if plan.cost_per_hour and plan.cost_per_hour.value:
        bill = [format_money(_off_the_bill(plan, gain)) for gain in plan.gains]
        rows = [[*row, off] for row, off in zip(table.rows, bill, strict=True)]
        table = Table((*table.header, "off the bill, a month"), rows)
    lead = f"One number at a time is made better by a tenth, and all of the plan is made again; it saves of the {of}."
    if plan.cost_per_hour:
        also = " and what is paid by use" if any(load.by_use for load in plan.system.loads) else ""
        lead += (
            f" A month of this plan costs {format_money(HOURS * plan.cost_per_hour.value)}: {plan.system.unit}s x price"
            f" x {HOURS:g} hours{also}, which changes only where one of these does."
        )
    return Section("gains", "What to improve first", lead, [figure, table])


def _off_the_bill(plan: CapacityPlan, gain: Gain) -> float:
    """A month of so many replicas at their price, now less then."""
    price = plan.needs.price or 0.0
    return HOURS * (plan.replicas * price - gain.replicas * (gain.then if gain.name == PRICE else price))


def money(plan: CapacityPlan) -> Section | None:
    """The knee against raw capacity."""
    cost = plan.cost_per_hour
    if cost is None:
        return None
    columns: list[tuple[str, float, float, Estimate]] = [("by the knee", plan.replicas, plan.rate_each, cost)]
    if plan.raw and plan.raw_cost_per_hour and plan.raw_rate_each:
        columns.append(("by raw capacity", plan.raw.value, plan.raw_rate_each, plan.raw_cost_per_hour))
    rows: list[list[Cell]] = [
        [
            name,
            Number(count, "count"),
            Number(each, "rate"),
            Number(found.value, "money"),
            span(found.interval, "money", "-"),
            Number(found.value * HOURS, "money"),
            "kept" if each <= plan.knee * 1.0001 else "missed",
        ]
        for name, count, each, found in columns
    ]
    header = (
        "",
        f"{plan.system.unit}s",
        "each, at the peak",
        "per hour",
        "95% interval",
        "per month",
        "SLO at the peak",
    )
    each_costs = [
        *_estimate(plan, COSTS["cost_per_million"], "cost_per_million", "money", "-"),
        *_estimate(plan, COSTS["cost_per_million_tokens"], "cost_per_million_tokens", "money", "-"),
        *_estimate(plan, "attainment", "attainment", "share", "-"),
        *_estimate(plan, "in use on average (u)", "busy", "share", "-"),
    ]
    told = [Table(header, rows), Table(("", "", "95% interval"), each_costs)]
    lead = "What the plan costs, and what it would cost if it were made by throughput."
    if len(columns) == 2 and (more := cost.value - columns[1][3].value) > 0:
        lead += f" The difference is {format_money(more)} an hour, the price of answers in time."
    note = (
        "Cost of a request = D / (3600 u X): price per hour, share of the time in use, and requests per second in full "
        "use; and what is paid by use. Of an accepted one, that over the attainment. A month has 730 hours."
    )
    return Section("money", "What it costs", lead, told, note)


def availability(plan: CapacityPlan) -> Section | None:
    """Enough of them up, by how many there are."""
    up = plan.needs.machine_up
    if up >= 1:
        return None
    counts = np.arange(plan.sized, max(plan.replicas + 3, plan.sized + 5))
    shares = np.array([some_up(plan.sized, int(count), up) for count in counts])
    marks: list[Curve | Rule] = [
        Curve("enough are up", counts.astype(float), shares, "blue"),
        Rule(float(plan.replicas), "this plan", "x", "green"),
    ]
    if plan.needs.availability is not None:
        marks.append(Rule(plan.needs.availability, "asked for", "y"))
    figure = Figure(
        "availability",
        f"Enough are up, if each machine is up {format_share(up)} of the time",
        Axis(f"{plan.system.unit}s deployed, of which {plan.sized:,} must be up", "count", low=plan.sized - 1.0),
        [Panel(Axis("of the time", "share", "tail", low=0.0), marks)],
    )
    lead = (
        f"All {plan.replicas:,} are up together {_nines(plan.all_up)} of the time; {plan.sized:,} or more of them "
        f"{_nines(plan.available)}."
    )
    note = (
        "Machines fail independently of each other. A failure that takes several (a rack, a bad deploy) is not in it."
    )
    return Section("availability", "When machines fail", lead, [figure], note)


def law(plan: CapacityPlan) -> Section | None:
    """Little's law at the peak."""
    if plan.in_flight is None or plan.in_flight_each is None:
        return None
    latency = plan.in_flight / plan.peak_rate
    limit = plan.system.in_flight
    rows: list[list[Cell]] = [
        ["in flight, all (L)", number(plan, "in_flight", "number")],
        [f"in flight, each {plan.system.unit}", number(plan, "in_flight_each", "number")],
        ["it holds", "-" if limit is None else f"{limit:,.4g}"],
    ]
    verdict = {True: "which fits.", False: "which does not fit.", None: "and what it holds is not known."}[plan.fits]
    lead = (
        f"{format_rate(plan.peak_rate)} that stay {format_seconds(latency)} each are {plan.in_flight:,.4g} at once, "
        f"{plan.in_flight_each:,.4g} in each {plan.system.unit}, {verdict}"
    )
    return Section("little", "Little's law", lead, [Table(("", ""), rows)], "L = lambda W, at the peak.")


def day(plan: CapacityPlan) -> Section | None:
    """Autoscaling against a fixed size."""
    found = plan.day
    if found is None:
        return None
    hours = np.array(found.hours)
    x = Axis("hour of the day", "number", low=0.0, high=24.0)
    counts = [
        Curve("fixed", hours, np.full(len(hours), float(found.fixed)), "grey", "dashed"),
        Curve("scaled ahead", hours, np.array(found.ahead, float), "green", "steps"),
        Curve("scaled late", hours, np.array(found.late, float), "red", "steps"),
    ]
    demand = Curve("demand", hours, np.array(found.rate), "blue")
    figure = Figure(
        "day",
        "A day",
        x,
        [
            Panel(Axis("requests per second", "rate", low=0.0), [demand], 150),
            Panel(Axis(f"{plan.system.unit}s", "count", low=0.0), counts, 200),
        ],
    )
    price = plan.needs.price
    rows: list[list[Cell]] = [
        [name, Number(hours_, "count"), Number(price and price * hours_, "money"), Number(short, "share")]
        for name, hours_, short in (
            ("fixed", found.fixed_hours, 0.0),
            ("scaled ahead", found.ahead_hours, 0.0),
            ("scaled when needed", found.late_hours, found.short),
        )
    ]
    table = Table(("", f"{plan.system.unit}-hours a day", "cost a day", "requests while too few serve"), rows)
    delay = format_seconds(plan.needs.scale_delay_s)
    lead = (
        f"A new {plan.system.unit} serves {delay} after it was ordered. Ordered that much ahead, it is there in time; "
        "ordered when demand has come, it is late."
    )
    note = "Slots of five minutes, in each as many as the plan's rule asks for. Cold caches of new ones are not in it."
    return Section("day", "Autoscaling or a fixed size", lead, [figure, table], note)


def cache(plan: CapacityPlan) -> Section | None:
    """What more replicas do to prefix caches."""
    if plan.hit_rate is None or plan.diluted_hit_rate is None:
        return None
    before = plan.system.measured_replicas
    found = Cache(plan.hit_rate, before)
    if plan.needs.cache:
        found = read_term(plan.needs.cache, {"cache": Cache}, "cache")
    counts = np.unique(np.geomspace(1, max(2 * plan.replicas, 8), 60).astype(int))
    hits = np.array([found.hit_at(int(count)) for count in counts])
    work = np.array([found.slower(int(count)) for count in counts])
    x = Axis(f"{plan.system.unit}s", "count")
    panels = [
        Panel(
            Axis("hit rate", "share", low=0.0, high=1.0),
            [Curve("hits", counts.astype(float), hits, "blue"), Rule(float(plan.replicas), "this plan", "x", "green")],
        )
    ]
    if found.saves:
        curve = Curve("work", counts.astype(float), work, "red")
        panels.append(Panel(Axis("work of a request", "number"), [curve], 130))
    lead = (
        f"The cache found {format_share(found.hit)} with {found.replicas:,}; with {plan.replicas:,} it finds "
        f"{format_share(plan.diluted_hit_rate)}{' as well: the router knows' if found.aware else ', spread evenly'}."
    )
    note = (
        "h(n) = 1 - (1 - h(m))^(m / n): uses of a prefix are spread over n caches; entries live as long as before. "
        "What a hit saves is as typed; 1 is the work of a request where the knee was measured."
    )
    return Section("cache", "Colder caches", lead, [Figure("cache", "More replicas, fewer hits", x, panels)], note)


def basis(plan: CapacityPlan) -> Section | None:
    """What it rests on."""
    system, needs = plan.system, plan.needs
    by_use = system.by_use_at(needs.demand / plan.replicas)
    used = f", and {format_money(by_use)} per request" if by_use else ""
    facts = {
        f"one {system.unit} does": _knee(plan),
        "by": system.source,
        "SLO": system.slo or "as typed: whatever the knee was found with",
        "raw capacity": "-"
        if system.capacity is None or system.beyond
        else _rate(system.capacity, system.capacity_interval),
        "demand": f"{format_rate(needs.demand)} on average, {needs.peak:.3g} times that at the peak",
        "price": "-" if needs.price is None else f"{format_money(needs.price)} per {system.unit} and hour{used}",
        "sized by": f"the {'lower end' if needs.by == 'low' else 'middle'} of the knee's interval",
    }
    rows = [[name, value] for name, value in facts.items()]
    table = Table(("", ""), rows)
    return Section("basis", "What it rests on", "Typed numbers have no interval; measured ones do.", [table])


PLAN_SECTIONS: tuple[Callable[[CapacityPlan], Section | None], ...] = (
    *(size, gains, money, availability, law, day, cache, basis),
)
