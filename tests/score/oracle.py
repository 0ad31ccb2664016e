"""The scorer once more, slowly and from the definitions: one request at a time, no arrays."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass
class Request:
    rows: list[Row]

    @property
    def answer(self) -> Row:
        """The last good repair; else the first good answer; else the first answer; else the last attempt."""
        answered = [r for r in self.rows if r.get("status", "ok") == "ok"]
        good = [r for r in answered if r.get("quality") is not False]
        repairs = [r for r in good if r.get("kind") == "repair"]
        if repairs:
            return max(repairs, key=lambda r: r["ended_ns"])
        if good:
            return min(good, key=lambda r: r["ended_ns"])
        bad_repairs = [r for r in answered if r.get("kind") == "repair"]
        if bad_repairs:
            return max(bad_repairs, key=lambda r: r["ended_ns"])
        if answered:
            return min(answered, key=lambda r: r["ended_ns"])
        return max(self.rows, key=lambda r: r.get("attempt", 0))

    @property
    def ok(self) -> bool:
        return bool(self.answer.get("status", "ok") == "ok")

    @property
    def due(self) -> int:
        return int(min(r["scheduled_ns"] for r in self.rows))

    @property
    def sent(self) -> int | None:
        return min((r["sent_ns"] for r in self.rows if r["sent_ns"] is not None), default=None)

    def start(self, from_sent: bool) -> int | None:
        return self.sent if from_sent else self.due

    @property
    def times(self) -> list[int]:
        """When each token came."""
        counts = self.answer.get("event_tokens") or [1] * len(self.answer["event_ns"])
        return [t for t, n in zip(self.answer["event_ns"], counts, strict=True) for _ in range(n)]

    @property
    def tokens(self) -> int:
        return tokens_of(self.answer)

    @property
    def single(self) -> bool:
        """Known to have no more than one token."""
        return self.tokens <= 1 and (self.answer.get("output_tokens") is not None or bool(self.times))

    @property
    def retries(self) -> int:
        return sum(r.get("kind") in ("retry", "repair") for r in self.rows)

    @property
    def done(self) -> int | None:
        return self.times[-1] if self.times else self.answer["ended_ns"]

    def left(self, stopped: int) -> int:
        """When it was over for the user: with the answer, or when the last attempt was given up."""
        if self.ok:
            return max(int(self.done or 0), self.due)
        sent = [r for r in self.rows if r["sent_ns"] is not None]
        if any(r["ended_ns"] is None for r in sent):
            return max(stopped, self.due)
        return int(max([self.due, *(r["ended_ns"] for r in self.rows if r["ended_ns"] is not None)]))

    def ttft(self, from_sent: bool = False) -> float | None:
        start = self.start(from_sent)
        return (self.times[0] - start) / 1e9 if self.times and start is not None else None

    def e2e(self, from_sent: bool = False) -> float | None:
        start, done = self.start(from_sent), self.done
        return (done - start) / 1e9 if done is not None and start is not None else None

    @property
    def gaps(self) -> list[float]:
        return [(b - a) / 1e9 for a, b in zip(self.times[:-1], self.times[1:], strict=True)]

    @property
    def tpot(self) -> float | None:
        return (self.times[-1] - self.times[0]) / 1e9 / (self.tokens - 1) if self.times and self.tokens > 1 else None

    def idle(self, speed: float, stopped: int) -> float:
        """Longest wait of a reader who starts on arrival; for the failed, including the token that never came."""
        late = [(t - self.due) / 1e9 - i / speed for i, t in enumerate(self.times, start=1)]
        if self.sent is None:
            late = []
        elif not self.ok or not self.times or len(self.times) < min(self.tokens, 2):
            late.append((self.left(stopped) - self.due) / 1e9 - (len(self.times) + 1) / speed)
        return max([0.0, *late])


def tokens_of(row: Row) -> int:
    if row.get("output_tokens") is not None:
        return int(row["output_tokens"])
    return sum(row.get("event_tokens") or [1] * len(row["event_ns"]))


def group(rows: list[Row]) -> list[Request]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["request_id"]].append(row)
    return [Request(attempts) for attempts in found.values()]


def meets(request: Request, bounds: dict[str, float], from_sent: bool = False) -> dict[str, bool]:
    """Which gates a completed request meets."""
    ttft, e2e, tpot, gaps = request.ttft(from_sent), request.e2e(from_sent), request.tpot, request.gaps
    start = request.start(from_sent)
    verdicts: dict[str, Callable[[float], bool]] = {
        "ttft": lambda bound: ttft is not None and ttft <= bound,
        "e2e": lambda bound: e2e is not None and e2e <= bound,
        "tpot": lambda bound: request.single or (tpot is not None and tpot <= bound),
        "tbt": lambda bound: request.single or (len(gaps) > 0 and max(gaps) <= bound),
        "jitter": lambda bound: request.single or (len(gaps) > 0 and max(gaps) - min(gaps) <= bound),
        "read": lambda bound: (
            start is not None
            and len(request.times) > 0
            and len(request.times) >= min(request.tokens, 2)
            and all((t - start) / 1e9 <= i / bound + 1e-12 for i, t in enumerate(request.times, start=1))
        ),
        "quality": lambda _: request.answer.get("quality") is True,
        "retries": lambda bound: request.retries <= bound,
    }
    return {name: bool(verdicts[name](bound)) for name, bound in bounds.items()}
