"""What accepted results cost, with everything that failed in the numerator."""

from dataclasses import dataclass

import numpy as np

from openloop.arrays import Ints
from openloop.errors import SpecError
from openloop.score.quantiles import ratio
from openloop.score.scope import Scope
from openloop.units import check_number, format_share

DAY_S = 86400.0


@dataclass(frozen=True)
class CostScore:
    """Money. `serving` is by request and token, `hourly` what was reserved, `judging` what graders cost, and
    `human_review` people who look at answers."""

    total: float
    serving: float
    hourly: float
    judging: float
    human_review: float
    per_request: float
    per_accepted: float
    per_million_output_tokens: float
    per_million_accepted_output_tokens: float
    known_for: float  # share of requests whose serving cost is known in full


def cost_score(scope: Scope, hourly_share: float | None = 1.0) -> CostScore | None:
    """cost per accepted = sum(all costs) / count(accepted).

    Of what is paid by the hour a part of the requests bears a share; None: nobody can say how much.
    """
    run, spending = scope.run, scope.deliveries.spending
    if not scope.n or not run.priced or (run.per_hour and hourly_share is None):
        return None
    hourly = run.per_hour * scope.seconds / 3600 * (hourly_share or 0.0)
    total = float(scope.spent.sum()) + hourly
    accepted = scope.judgement.accepted
    return CostScore(
        total,
        serving=float(spending.spent.sum()),
        hourly=hourly,
        judging=float(run.judging[scope.of_attempts].sum()),
        human_review=float(run.human_review[scope.where].sum()),
        per_request=ratio(total, scope.n),
        per_accepted=ratio(total, int(accepted.sum())),
        per_million_output_tokens=ratio(total, spending.tokens.sum() / 1e6),
        per_million_accepted_output_tokens=ratio(total, scope.deliveries.tokens[accepted].sum() / 1e6),
        known_for=float(np.mean(spending.known)),
    )


def lower_bound(known_for: float) -> str | None:
    """Said where what some requests cost is not known in full."""
    if known_for == 1:
        return None
    told = (
        f"cost is known in full for {format_share(known_for)} of requests (rows of others lack input tokens or a cost)"
    )
    return f"{told}: cost per accepted is a lower bound"


def extra_work(scope: Scope) -> dict[str, Ints | None]:
    """Tokens that were computed besides the output, by attempt at these requests; None: no row tells."""
    drafted, kept = told(scope, "drafted_tokens"), told(scope, "accepted_draft_tokens")
    return {
        "kv_recompute": told(scope, "recomputed_tokens"),
        "rejected_drafts": None if drafted is None or kept is None else np.maximum(drafted - kept, 0),
    }


def told(scope: Scope, column: str) -> Ints | None:
    """A column of counts over the attempts at these requests, if any row tells; what is not told counts as none."""
    if column not in scope.run.attempts.present:
        return None
    counts: Ints = np.maximum(getattr(scope.run.attempts, column)[scope.of_attempts], 0).astype(np.int64)
    return counts


@dataclass(frozen=True)
class Blend:
    """Cost per accepted result where something disturbs the system every so often.

    `extra` is what disruptions add, as a share of the steady cost.
    """

    every_s: float
    disrupted_share: float  # of the time
    cost_per_accepted: float
    extra: float


def blended(
    steady: float, disrupted: float, disruption_s: float, every_s: float, *, goodput_ratio: float = 1.0
) -> Blend:
    """All the money over all accepted results, of a stretch that is disrupted for `disruption_s` and else steady.

        cost = (steady * (every - d) + disrupted * g * d) / ((every - d) + g * d)

    g is goodput while disrupted over steady goodput: fewer results are dearer, and there are fewer of them.
    """
    for what, value in (("steady", steady), ("disrupted", disrupted)):
        check_number(f"the {what} cost", value, 0, 1e12)
    check_number("goodput while disrupted over steady goodput", goodput_ratio, 0, 1e6)
    if not 0 < disruption_s <= every_s:
        raise SpecError(
            f"a disruption of {disruption_s:g} s every {every_s:g} s is none; it is shorter than the time between"
        )
    calm, rough = every_s - disruption_s, goodput_ratio * disruption_s
    cost = ratio(steady * calm + disrupted * rough, calm + rough)
    return Blend(every_s, disruption_s / every_s, cost, ratio(cost, steady) - 1)


def capacity_needed(
    planned: float, *, retries: float = 0.0, quality_failures: float = 0.0, cold: float = 0.0, cold_factor: float = 1.0
) -> float:
    """Servers for accepted results, where `planned` were enough for a benchmark with warm caches and nothing failing.

        needed = planned * (1 + retries) / (1 - quality failures) * (1 + cold * (cold factor - 1))

    Each retry is work that is done again; what fails its gate is work for nothing; a share of requests finds a cold
    cache, and takes `cold_factor` times the work.
    """
    for name, value in (("retries", retries), ("cold", cold)):
        check_number(name, value, 0, 1e6)
    check_number("quality_failures", quality_failures, 0, 0.999999)
    check_number("cold_factor", cold_factor, 1, 1e6)
    return planned * (1 + retries) / (1 - quality_failures) * (1 + cold * (cold_factor - 1))
