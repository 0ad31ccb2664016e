"""The loop: what is new, what it means now, and what to tell."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from openloop.errors import SpecError
from openloop.importers import open_any, otel
from openloop.load.address import find_place
from openloop.records import MANIFEST_FILE, Prices, locate
from openloop.records.tail import Tail
from openloop.score.scorer import objectives_of
from openloop.slo import Objectives, read_slo
from openloop.watch.burn import RULES, Alarm, Alert, BurnRule
from openloop.watch.feeds import Feed, FinishedFeed, RunFeed, SpanFeed
from openloop.watch.frame import GOODPUT, Frame, SecondCounts, disruptions, share
from openloop.watch.pages import PageFeed

WINDOW_S = 60.0
SILENT_S = 30.0


@dataclass(frozen=True)
class Settings:
    attain: float = 0.99
    rules: tuple[BurnRule, ...] = RULES
    window_s: float = WINDOW_S
    every_s: float = 1.0
    disruption_s: float = WINDOW_S
    speed: float | None = None  # of a replay: how many times as fast; infinite: at once. None: follow what goes on

    def __post_init__(self) -> None:
        for what, value in (("every", self.every_s), ("window", self.window_s)):
            if not 1 <= value <= 86400:
                raise SpecError(f"--{what} is {value:g} s; give a second or more, up to a day")

    @property
    def keep_s(self) -> int:
        return int(max([self.window_s, *(rule.long_s for rule in self.rules)])) + 600


def open_feed(what: str | Path, slo: str | None, prices: Prices | None, settings: Settings) -> Feed:
    """Of a run's folder, a file of spans or of another tool, or the address of a /metrics page."""
    held_s, keep_s = 2 * settings.window_s, settings.keep_s
    if str(what).startswith(("http://", "https://")) and str(what).rstrip("/").endswith("/metrics"):
        once = settings.speed is not None
        if once and settings.speed != math.inf:
            raise SpecError("a /metrics page goes at its own speed: leave --speed out, or look --once")
        return PageFeed(find_place(str(what)), _given(slo), settings.window_s, keep_s, since_start=once)
    place = locate(what)
    if settings.speed is None and (place / MANIFEST_FILE).exists() and not (tail := Tail(place)).manifest.finished:
        return RunFeed(place, objectives_of(tail.run, slo), prices, keep_s, held_s)
    if place.is_file() and (_spans(place) or (settings.speed is None and not place.stat().st_size)):
        return SpanFeed(place, _given(slo), prices, keep_s, held_s, over=settings.speed is not None)
    run = open_any(what)
    return FinishedFeed(place.name, run, objectives_of(run, slo), prices)


def _spans(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline(1 << 20)
    return head.strip() != "{" and otel.looks_like(head)


def _given(slo: str | None) -> Objectives:
    if slo is None:
        raise SpecError("there is no goodput without an SLO: give one, for example --slo 'ttft<=500ms, tpot<=40ms'")
    return read_slo(slo)


def watch(
    feed: Feed, settings: Settings, wait: Callable[[float], None] = time.sleep
) -> Iterator[tuple[Frame, list[Alert]]]:
    """What is known, moment by moment, with the alerts that began or ended in each; the last frame is of the end."""
    alarm = Alarm(settings.rules, settings.attain)
    feed.read()
    replaying = settings.speed is not None or feed.over
    speed = settings.speed or 1.0
    looked = _Looked(feed, alarm, settings)
    end = feed.clock()
    whole = isinstance(feed, PageFeed)  # what a page has counted has no moments to go through
    at = feed.ledger.first + settings.every_s if replaying and not whole else end
    while True:
        if replaying:
            at = min(at, end)
        whole_s = float(int(at))  # counts are of whole seconds, so all the rest is, too
        changed = looked.look(whole_s)
        last = at >= end if replaying else feed.over
        if last or changed or speed != math.inf:
            yield looked.frame(whole_s), changed
        if last:
            return
        if replaying:
            wait(settings.every_s / speed)
            at += settings.every_s
        else:
            wait(settings.every_s)
            feed.read()
            if feed.anew:
                looked, at = _Looked(feed, alarm, settings), 0.0
            at = max(feed.clock(), at)


class _Looked:
    """One look after another, and the stretches in which alerts were on."""

    def __init__(self, feed: Feed, alarm: Alarm, settings: Settings) -> None:
        self.feed, self.alarm, self.settings = feed, alarm, settings
        self._stretches: list[tuple[float, float, set[str]]] = []

    def look(self, at_s: float) -> list[Alert]:
        ledger = self.feed.ledger
        watched = [signal for signal in self.feed.signals if signal != "success"]
        changed = list(self.alarm.look(at_s, {name: _counted(ledger, name, at_s) for name in watched}))
        on = {alert.signal for alert in self.alarm.on.values()}
        if on and self._stretches and self._stretches[-1][1] == math.inf:
            self._stretches[-1][2].update(on)
        elif on:  # what made it begin was in the short window
            back = max(burn.rule.short_s for burn in self.alarm.burns if burn.firing)
            self._stretches.append((max(at_s - back, 0.0), math.inf, on))
        elif self._stretches and self._stretches[-1][1] == math.inf:
            start, _, signals = self._stretches.pop()
            self._stretches.append((start, at_s, signals))
        return changed

    def frame(self, at_s: float) -> Frame:
        feed, ledger, settings = self.feed, self.feed.ledger, self.settings
        whole = isinstance(feed, PageFeed) and feed.over  # all that a page has counted
        start = 0.0 if whole else float(max(int(at_s - settings.window_s), ledger.first))
        span = math.nan if feed.undated else max(at_s - start, 1e-9)
        joint = share(ledger, GOODPUT, start, at_s)
        tails, replicas = feed.tails(start, at_s)
        offered, in_flight = feed.traffic(start, at_s)
        low, high = (ledger.total(f"{GOODPUT}.{part}", start, at_s) / span for part in ("low", "high"))
        marks = [mark for mark in feed.marks if mark.at_s <= at_s]
        stretches: Sequence[tuple[str, str | None, float, float]] = [
            *((mark.kind, mark.detail, mark.at_s, mark.at_s + settings.disruption_s) for mark in marks),
            *(("alert", ", ".join(sorted(signals)), a, b) for a, b, signals in self._stretches),
        ]
        when = None if feed.started_s is None else datetime.fromtimestamp(feed.started_s + at_s, UTC)
        return Frame(
            at_s=at_s,
            at=when.isoformat(timespec="seconds") if when else None,
            window_s=span,
            slo=feed.slo,
            ended=int(ledger.total("ended", start, at_s)),
            offered_rps=offered,
            throughput_rps=ledger.total("ok", start, at_s) / span,
            tokens_per_s=ledger.total("tokens", start, at_s) / span,
            goodput_rps=low,
            goodput_rps_at_most=high,
            attainment=joint.attainment,
            attainment_at_most=joint.at_most,
            in_flight=in_flight,
            gates={name: share(ledger, name, start, at_s) for name in feed.signals if name != GOODPUT},
            tails=tails,
            replicas=replicas,
            burns=list(self.alarm.burns),
            alerts=list(self.alarm.on.values()),
            events=marks,
            disruptions=sorted(
                disruptions(ledger, at_s, stretches, feed.per_hour, feed.priced), key=lambda each: each.start_s
            ),
            limits=feed.limits,
            notes=(*feed.notes, *self.alarm.notes, *_silence(ledger, at_s, following=not feed.over)),
        )


def _counted(ledger: SecondCounts, signal: str, at_s: float) -> Callable[[float], tuple[float, float]]:
    """What may have passed counts as passed: an alert is about what surely failed."""
    return lambda back: (
        ledger.total(f"{signal}.of", at_s - back, at_s),
        ledger.total(f"{signal}.high", at_s - back, at_s),
    )


def _silence(ledger: SecondCounts, at_s: float, *, following: bool) -> Iterator[str]:
    if following and at_s > SILENT_S and not ledger.total("ended", at_s - SILENT_S, at_s):
        yield f"nothing has ended for {SILENT_S:g} s or more"
