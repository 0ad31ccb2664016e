"""A tournament of routing policies for people."""

from collections.abc import Sequence

from openloop.compare.tournament import Estimate, Standing
from openloop.report.terminal import Page
from openloop.units import format_money, format_rate, format_seconds, format_share

__all__ = ["show_standings"]

HEADER = (
    "goodput",
    "95% interval",
    "behind the first",
    "accepted",
    "per accepted",
    "cached",
    "ttft mean",
    "p99",
    "shed",
)


def show_standings(found: Sequence[Standing], seeds: int, slo: str) -> None:
    page = Page(valid=True)
    page.line(f"{len(found)} routing policies on the same requests, {seeds} seeds each")
    page.line(f"SLO: {slo}")
    page.table("by goodput", HEADER, (_row(each) for each in found))
    tied = [each.policy for each in found[1:] if each.tied]
    told = f"; {', '.join(tied)} may be as good: the difference may be chance" if tied else ", beyond chance"
    page.line("")
    page.line(f"{found[0].policy} gets the most accepted{told}")
    by_cost = sorted((each for each in found if each.rank_by_cost), key=lambda each: each.rank_by_cost or 0)
    if by_cost:
        page.line(f"by cost per accepted: {', '.join(each.policy for each in by_cost)}")


def _row(each: Standing) -> tuple[str, ...]:
    cost, behind = each.cost_per_accepted, each.behind_rps
    return (
        f"{each.rank}. {each.policy}",
        format_rate(each.goodput_rps.mean),
        f"{format_rate(max(each.goodput_rps.low, 0.0))} to {format_rate(each.goodput_rps.high)}",
        "" if each.rank == 1 else f"{format_rate(-behind.mean)}{' (tied)' if each.tied else ''}",
        format_share(each.attainment.mean),
        "-" if cost is None else format_money(cost.mean),
        "-" if each.hit_rate is None else format_share(each.hit_rate.mean),
        _seconds(each.ttft_mean_s),
        _seconds(each.ttft_p99_s),
        format_share(each.shed.mean) if each.shed.mean else "-",
    )


def _seconds(found: Estimate | None) -> str:
    return "-" if found is None else format_seconds(found.mean)
