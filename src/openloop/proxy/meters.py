"""/metrics: first of all, what users accepted, by class and by replica, over the last minute."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from openloop.proxy.fleet import Fleet

WINDOW_S = 60
OTHER = "other"
Judged = tuple[dict[str, Any], bool]  # the row that answered, and whether it is accepted


class Meters:
    def __init__(self, classes: Iterable[str]) -> None:
        self._classes = set(classes)
        self._seconds: deque[tuple[int, Counter[tuple[str, ...]]]] = deque()
        self.totals: Counter[tuple[str, ...]] = Counter()
        self.refused: Counter[str] = Counter()

    def count(self, now: float, judged: Iterable[Judged]) -> None:
        """What is over. Classes that no SLO names are one: labels must not grow with what clients write."""
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append((int(now), Counter()))
        recent = self._seconds[-1][1]
        while self._seconds[0][0] <= int(now) - WINDOW_S:
            self._seconds.popleft()
        for row, accepted in judged:
            said, replica, status = row["workload_class"], row["replica"] or "", row["status"]
            name = said if said in self._classes else OTHER if said else ""
            tokens = row["output_tokens"] or sum(row["event_tokens"] or ()) or len(row["event_ns"])
            for who in (("class", name), ("replica", replica)):
                recent[*who, "ended"] += 1
                recent[*who, "accepted"] += accepted
                recent[*who, "tokens"] += tokens * accepted
            self.totals["requests", name, status] += 1
            self.totals["accepted", name] += accepted
            self.totals["replica_requests", replica, status] += 1

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
