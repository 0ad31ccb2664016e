"""A server's own histograms, read off its /metrics: bounds on attainment, as fine as its buckets are."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from openloop.errors import SpecError
from openloop.load.address import Place
from openloop.load.prometheus import PageValues, read_figures, read_page
from openloop.load.scraper import MetricsPage
from openloop.slo import Objectives
from openloop.watch.feeds import Feed
from openloop.watch.frame import GOODPUT, ReplicaTails, RollingTail, TimedMark

Buckets = dict[float, float]  # by upper edge: how many were no longer

# Of requests, and of the gaps between their tokens: the first that a page has counts.
HISTOGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": tuple(f"{server}time_to_first_token_seconds" for server in ("vllm:", "sglang:", "trtllm_")),
    "tpot": ("vllm:request_time_per_output_token_seconds", "tgi_request_mean_time_per_token_duration"),
    "e2e": (
        *(f"{server}e2e_request_latency_seconds" for server in ("vllm:", "sglang:", "trtllm_")),
        "tgi_request_duration",
    ),
    "gaps": (
        *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        *("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    ),
}
UNHAPPY = {"abort", "error"}  # reasons to finish that are no success
LIMITS = (
    "a server counts from when a request reached it: what waited before, and when it was due, is not seen",
    "histograms are of one metric each: how many requests met all gates at once is only bounded",
    "attainment is known where a gate's bound is an edge of a bucket, and else bounded; percentiles are upper edges",
    "first tokens are counted when they come and requests when they end: shares of a minute are of different ones",
    "there are no rows: nothing is told by replica, class, session or price",
)
SINCE = "the page does not tell when its server was started: nothing per second is known"


def within(buckets: Buckets, bound_s: float) -> tuple[float, float]:
    """How many were surely no longer than `bound_s`, and how many may have been."""
    low = max((count for edge, count in buckets.items() if edge <= bound_s * (1 + 1e-9)), default=0.0)
    high = min((count for edge, count in buckets.items() if edge >= bound_s * (1 - 1e-9)), default=low)
    return low, high


class PageFeed(Feed):
    """What a page counts between one reading and the next; `since_start`: what it has counted so far, once."""

    def __init__(
        self, place: Place, objectives: Objectives, window_s: float, keep_s: int, *, since_start: bool = False
    ) -> None:
        self._page = MetricsPage("server", place, timeout_s=5.0)
        super().__init__(f"{self._page.where}/metrics", objectives, keep_s)
        slo = objectives.default
        if slo is None or objectives.classes:
            raise SpecError("a /metrics page does not tell classes apart: give one SLO for all of it")
        self._bounds = {gate.name: gate.within_s for gate in slo.gates if hasattr(gate, "within_s")}
        self.limits, self.over = LIMITS, since_start
        self._window_s, self._since_start = window_s, since_start
        self._seen: deque[tuple[float, dict[str, Buckets]]] = deque()
        self._figures: dict[str, float] = {}
        self._born: Sequence[tuple[dict[str, str], float]] = []  # when its processes began
        self._at_s = 0.0
        self._clock_s = time.time() - time.monotonic()  # a clock that is set later does not move this one

    def read(self) -> None:
        try:
            text = self._page.fetch()
            self._page.close()  # servers hang up on those who ask seldom
            page = {
                name: [(labels, value) for labels, value in values if math.isfinite(value)]
                for name, values in read_page(text, _WANTED).items()
            }
            found = {key: buckets for key in HISTOGRAMS if (buckets := _buckets(page, key))}
            figures = read_figures(text)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self.notes = (f"{self.source} cannot be read ({why.lower()}): nothing is known of now",)
            if self._since_start:
                raise SpecError(self.notes[0]) from None
            return
        now = self._clock_s + time.monotonic()
        self.notes, self._figures = (), figures
        if not found:
            why = f"{self.source} has no latency histogram that openloop knows; see docs/watch.md"
            if self.started_s is None:
                raise SpecError(why)
            self.notes = (why,)  # it may be starting
            return
        found["ended"], found["ok"] = _finished(page, found)
        found["tokens"] = {math.inf: self._figures.get("output_tokens", 0.0)}
        if self.started_s is None:
            self._born = page.get("process_start_time_seconds", [])
            self.started_s = self._born[0][1] if self._born and self._since_start else now
            self.undated = self._since_start and not self._born
            before = {} if self._since_start else found
        else:
            before = self._seen[-1][1]
        self._at_s = max(now - self.started_s, 0.0)
        if self._since_start:
            self.ledger.first = int(self._at_s)  # all of it is counted now
        born, self._born = self._born, page.get("process_start_time_seconds", self._born)
        anew = born and born != self._born
        if anew or any(_total(buckets) < _total(before.get(key, {})) for key, buckets in found.items()):
            self.marks.append(TimedMark(self._at_s, "restart", "the server's counters began anew"))
            before = {}
            self._seen = deque([(self._at_s, {})])
        self._count({key: _less(buckets, before.get(key, {})) for key, buckets in found.items()})
        if not self._seen and self._since_start:
            self._seen.append((-math.inf, {}))
        self._seen.append((self._at_s, found))
        while len(self._seen) > 2 and self._seen[1][0] <= self._at_s - self._window_s:
            self._seen.popleft()

    def _count(self, new: dict[str, Buckets]) -> None:
        ended, ok = _total(new["ended"]), _total(new["ok"])
        shares = [(ok / ended, ok / ended)] if ended else []
        counts = {"ended": ended, "ok": ok, "tokens": _total(new["tokens"])}
        counts |= {"success.of": ended, "success.low": ok, "success.high": ok}
        left_out = [SINCE] if self.undated else []
        for name in self.signals[2:]:
            key = name if name in new else "gaps" if _of_gaps(name) and "gaps" in new else ""
            if not key or name not in self._bounds:
                left_out.append(f"the page cannot tell {name}: it is not judged")
                continue
            of, (low, high) = _total(new[key]), within(new[key], self._bounds[name])
            counts |= {f"{name}.of": of, f"{name}.low": low, f"{name}.high": high}
            if key == "gaps":
                left_out.append(f"{name} is the share of all token gaps within its bound, not of requests")
            elif of:
                shares.append((low / of, high / of))
        if ended and shares:
            low_share = max(1 - sum(1 - low for low, _ in shares), 0.0)
            high_share = min(high for _, high in shares)
            counts |= {
                f"{GOODPUT}.of": ended,
                f"{GOODPUT}.low": ended * low_share,
                f"{GOODPUT}.high": ended * high_share,
            }
        self.notes = (*self.notes, *left_out)
        self.ledger.add(int(self._at_s), counts)

    def clock(self) -> float:
        if self.over or self.started_s is None:
            return self._at_s + 1
        return self._clock_s + time.monotonic() - self.started_s + 1  # also while nothing can be read

    def tails(self, *_: float) -> tuple[dict[str, RollingTail], list[ReplicaTails]]:
        if len(self._seen) < 2:
            return {}, []
        first, last = self._seen[0][1], self._seen[-1][1]
        found = {}
        for key in HISTOGRAMS:
            if key in last:
                new = _less(last[key], first.get(key, {}))
                if _total(new) > 0:
                    found[key] = RollingTail(int(_total(new)), *(_edge(new, q) for q in (0.5, 0.95, 0.99)))
        return found, []

    def traffic(self, *_: float) -> tuple[float | None, int | None]:
        inside = [self._figures[name] for name in ("queue", "running") if name in self._figures]
        return None, int(sum(inside)) if inside else None


def _of_gaps(name: str) -> bool:
    return name in ("tpot", "tbt") or name.startswith("itl")


def _buckets(page: PageValues, key: str) -> Buckets:
    """Of the first family that the page has, all its label sets together."""
    for family in HISTOGRAMS[key]:
        found: Buckets = {}
        for labels, count in page.get(f"{family.replace(':', '_')}_bucket", ()):
            edge = float(labels.get("le", "nan").replace("+Inf", "inf"))
            found[edge] = found.get(edge, 0.0) + count
        if found:
            return dict(sorted(found.items()))
    return {}


def _finished(page: PageValues, found: dict[str, Buckets]) -> tuple[Buckets, Buckets]:
    """Requests that ended, and of these those that went well."""
    counted = page.get("vllm_request_success_total")
    if not counted:  # every request that has an end-to-end latency
        ended = _total(found.get("e2e") or found.get("ttft") or {})
        return {math.inf: ended}, {math.inf: ended}
    ok = sum(count for labels, count in counted if labels.get("finished_reason") not in UNHAPPY)
    return {math.inf: sum(count for _, count in counted)}, {math.inf: ok}


def _total(buckets: Buckets) -> float:
    return max(buckets.values(), default=0.0)


def _less(buckets: Buckets, before: Buckets) -> Buckets:
    return {edge: max(count - before.get(edge, 0.0), 0.0) for edge, count in buckets.items()}


def _edge(buckets: Buckets, share: float) -> float:
    """The upper edge of the bucket that holds the quantile."""
    return next((edge for edge, count in buckets.items() if count >= share * _total(buckets)), math.inf)


_WANTED = {
    *(f"{family.replace(':', '_')}_bucket" for families in HISTOGRAMS.values() for family in families),
    "vllm_request_success_total",
    "process_start_time_seconds",
}
