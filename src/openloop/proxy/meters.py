"""/metrics: first of all, what users accepted, by class and by replica, over the last minute."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from openloop.proxy.fleet import Fleet

WINDOW_S = 60
OTHER = "other"


@dataclass(frozen=True)
class Judged:
    """A request that is over."""

    workload_class: str | None
    replica: str | None
    status: str
    accepted: bool
    tokens: int


class Meters:
    def __init__(self, classes: Iterable[str]) -> None:
        self._classes = set(classes)
        self._seconds: deque[tuple[int, Counter[tuple[str, ...]]]] = deque()
        self.totals: Counter[tuple[str, ...]] = Counter()
        self.refused: Counter[str] = Counter()

    def count(self, now: float, judged: Iterable[Judged]) -> None:
        """Classes that no SLO names are one: labels must not grow with what clients write."""
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append((int(now), Counter()))
        recent = self._seconds[-1][1]
        while self._seconds[0][0] <= int(now) - WINDOW_S:
            self._seconds.popleft()
        for each in judged:
            name = each.workload_class if each.workload_class in self._classes else OTHER if each.workload_class else ""
            for who in (("class", name), ("replica", each.replica or "")):
                recent[*who, "ended"] += 1
                recent[*who, "accepted"] += each.accepted
                recent[*who, "tokens"] += each.tokens * each.accepted
            self.totals["requests", name, each.status] += 1
            self.totals["accepted", name] += each.accepted
            self.totals["replica_requests", each.replica or "", each.status] += 1

    def page(self, now: float, fleet: Fleet, in_flight: int, lost: int) -> str:
        since = max(int(now) - WINDOW_S + 1, 0)  # the last of these seconds is not over
        recent: Counter[tuple[str, ...]] = sum((counts for at, counts in self._seconds if at >= since), Counter())
        span = max(now - since, 1.0)
        replicas, lines = fleet.replicas, list[str]()

        def family(name: str, kind: str, about: str, values: Iterable[tuple[dict[str, str], float]]) -> None:
            lines.extend((f"# HELP openloop_{name} {about}", f"# TYPE openloop_{name} {kind}"))
            for labels, value in values:
                told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
                lines.append(f"openloop_{name}{{{told}}} {value:.10g}" if told else f"openloop_{name} {value:.10g}")

        for kind, names in (
            ("class", sorted({"", *self._classes, *(key[1] for key in recent if key[0] == "class")})),
            ("replica", [each.name for each in replicas]),
        ):
            first = "" if kind == "class" else "replica_"
            ended = [name for name in names if recent[kind, name, "ended"]]
            shares = [({kind: name}, recent[kind, name, "accepted"] / recent[kind, name, "ended"]) for name in ended]
            family(f"{first}attainment", "gauge", "Attainment of requests that ended in the last minute.", shares)
            for what, counted, about in (
                ("goodput_rps", "accepted", "Requests accepted"),
                ("goodput_tokens_per_second", "tokens", "Output tokens of accepted requests"),
            ):
                rates = [({kind: name}, recent[kind, name, counted] / span) for name in names]
                family(f"{first}{what}", "gauge", f"{about} per second over the last minute.", rates)
        gets = [({"replica": r.name}, float(is_open)) for r, is_open in zip(replicas, fleet.open, strict=True)]
        family("replica_open", "gauge", "Whether it gets requests.", gets)
        for name, fact, about in (
            ("well", "well", "Whether it answers health checks."),
            ("draining", "draining", "Whether it is being drained."),
            ("in_flight", "requests", "Requests in flight at it."),
            ("waiting", "waiting", "Of these, without a token yet."),
            ("cached_blocks", "blocks", "Blocks that its cache holds, by its own events; 0 where it sends none."),
        ):
            each = [({"replica": r.name}, float(getattr(r, fact))) for r in replicas]
            family(f"replica_{name}", "gauge", about, each)
        totals = sorted(self.totals.items())
        for kind, labels, about in (
            ("requests", ("class", "status"), "Requests that ended."),
            ("accepted", ("class",), "Requests that were accepted."),
            ("replica_requests", ("replica", "status"), "Requests that ended, by who answered last."),
        ):
            mine = [(dict(zip(labels, key[1:], strict=True)), float(v)) for key, v in totals if key[0] == kind]
            family(f"{kind}_total", "counter", about, mine)
        refused = [({"why": why}, float(n)) for why, n in sorted(self.refused.items())]
        family("refused_total", "counter", "Requests that were not understood or not allowed; no rows.", refused)
        family("in_flight", "gauge", "Requests of clients in flight.", [({}, in_flight)])
        family("records_lost_total", "counter", "Rows that could not be written.", [({}, lost)])
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
