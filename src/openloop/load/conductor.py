"""Plans a run, feeds the workers ahead of time, reads what they bring back, and writes it down.

Nothing here is in a hurry: workers send and stamp, and this process parses, counts and stores behind them.
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from openloop.arrays import Ints
from openloop.clock import stolen_s
from openloop.errors import OpenloopError
from openloop.load.crew import Crew, Worker
from openloop.load.outputs import Texts
from openloop.load.plan import Load, demand_of, due_ns_of, manifest_of, pages_of
from openloop.load.rows import Row, batch_of, read_finished
from openloop.load.salts import Salter, prime
from openloop.load.schedule import Schedule
from openloop.load.scraper import Scraper
from openloop.load.targets import Outcome
from openloop.load.worker import CHECK_NS, NEVER, Asked, Finished
from openloop.persistence import MOST_TRIES
from openloop.quality import Grade
from openloop.records import SERVER, Now, Prices, Run, RunWriter, Warmth, forget_now, open_run, write_now
from openloop.seeds import stream
from openloop.units import format_seconds, to_ns
from openloop.workload import Ask, Demand, Prompts, Words, steady
from openloop.workload.warmth import Hot

AHEAD_NS = 2_000_000_000  # requests are with their worker this long before they are due
LATE_NS = 500_000_000  # where it is less, somebody else has the processor
LEAD_NS = 500_000_000  # between the workers' being ready and the first arrival
AT_ONCE = 4  # requests, then a worker may want the processor
FEED_AT_ONCE = 150  # a worker reads what it is fed between two sends
FLUSH_NS = 1_000_000_000
FLUSH_ROWS = 5_000
READ_NS = 5_000_000
TICK_NS = 100_000_000
HELD_NS = 2 * CHECK_NS  # a worker has answers by itself no longer than this
GRADED_NS = 2_000_000  # between looks for a grade that a repair waits for
LEAST_READINGS = 8  # of the server's counters, to call them steady
TELL_NS = 500_000_000
POLITE_WORK = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); sum(range(300_000))"  # a few ms
SOON_S = 0.15
STOLEN_SHARE = 0.01
TICKETS = 2 * MOST_TRIES + 4  # of attempts at one request, copies included
REMEMBERED = 1000
ENOUGH = 100  # answers to know a percentile by
RARELY = 100_000  # objects more than before, until cycles are looked for
ROUNDING = 1e-9  # of a sum of money
HALT_S = 5.0  # what is in flight has this long after an interrupt


@dataclass(frozen=True)
class Share:
    """What one of several machines drives of a run."""

    demand: Demand
    numbers: Ints  # that its requests have in the whole run
    salter: Salter | None = None


@dataclass
class Snapshot:
    """Where a run is, for people who watch."""

    seconds: float = 0.0
    due: int = 0
    in_flight: int = 0
    statuses: "Counter[str]" = field(default_factory=Counter)
    finished: list[Row] = field(default_factory=list)  # since the snapshot before
    read_s: float = 0.0  # what had come by then is read


Watch = Callable[[Snapshot], str | None]


def drive(load: Load, out: str | Path, watch: Watch | None = None) -> Run:
    """Drive a live endpoint on a schedule and record what its users would have got, into the folder `out`.

    An interrupt stops the schedule and leaves a complete run; a second one stops everything at once, and leaves a
    readable one. `watch` is called from another thread, about twice a second; if it gives a reason, the schedule ends
    there as one that the system cannot keep up with.
    """
    Conductor(load, Path(out), watch).run()
    return open_run(out)


class _Request(msgspec.Struct, gc=False):
    """One that was given to a worker, and is not settled."""

    ask: Ask
    waves: tuple[str, ...] = ("first",)  # why it was asked, each time
    graded: bool = False  # an answer is there, and waits for its grade

    @property
    def tries(self) -> int:
        return len(self.waves)

    @property
    def known(self) -> bool:
        """Whether a row tells already what became of it."""
        return self.tries > 1 or self.graded


class Conductor:
    """Drives a run, or a machine's share of one that starts when `begin` returns, at the moment that it gives."""

    def __init__(
        self,
        load: Load,
        out: Path,
        watch: Watch | None,
        share: Share | None = None,
        begin: Callable[[], int] | None = None,
    ) -> None:
        self.begin = begin or (lambda: time.monotonic_ns() + LEAD_NS)
        self.settling_s = load.warming.most if isinstance(load.warming, Hot) else 0.0
        self.opened_ns = None if self.settling_s else 0  # when the measured window begins
        end_ns = to_ns(load.seconds + self.settling_s)
        self.hits: list[tuple[float, float]] = []  # prompt tokens found in a cache, and looked up
        self.demand = share.demand if share else demand_of(load, load.seconds + self.settling_s)
        self.numbers: Sequence[int] = share.numbers.tolist() if share else range(len(self.demand))
        self.salter = Salter(load.warming, load.seconds, as_field=load.cache_salt) if load.warming else None
        self.primes = self.salter  # who asks before the clock starts what caches are to know
        if share:
            self.salter = share.salter
        if self.demand.with_answers or load.keep_texts or load.gating:
            load = replace(load, sites=[(place, replace(target, keep_text=True)) for place, target in load.sites])
        self.load = load
        self.prompts = Prompts(self.demand, load.words or Words(load.seed))
        self.schedule = Schedule(due_ns_of(load, self.demand, end_ns), end_ns)
        self.followers = _followers(self.demand)
        self.asked: dict[int, _Request] = {}  # with a worker, or to be tried again
        self.awaited: dict[tuple[int, int], tuple[int, Row]] = {}  # whose grade decides what comes next
        self.rng = stream(load.seed, "retries")
        self.begun: deque[int] = deque(maxlen=REMEMBERED)  # how long until answers began
        enough = len(self.demand) - 1 if load.users else None  # of a closed loop there are so many
        self.most = min(filter(None, (load.most_requests, enough)), default=None)  # requests
        self.given = 0  # requests that a worker has or had
        self.latest = 0  # when the last of these is due
        self.full_ns: int | None = None  # when the first is due that was left out, for there were enough
        self.patient = not (self.followers or load.retry or load.repair)  # no answer decides what is sent next
        self.retries = 0
        self.spent = 0.0
        self.costs = _most_costs(load, self.demand)
        self.dearest = max(self.costs, default=0.0)
        self.ended = False  # the workers know that nothing more will come
        self.rows: list[Row] = []
        self.statuses: Counter[str] = Counter()
        self.unseen: list[Row] = []
        self.kernel_stamps = self.stamps = self.settled = 0
        self.notes: list[str] = [*load.facts.get("notes", ()), *self.demand.notes]
        self.watch = watched_by(watch, self.notes)
        self.interrupts = 0
        self.primed = self.settled_hits = True
        self.failure: BaseException | None = None
        self.halted_ns: int | None = None
        self.until_ns = 0  # from when on nothing is waited for, once it is halted
        self.cut_short: str | None = None
        self.start_ns = 0
        self.stolen_s = 0.0
        self.writer = RunWriter(out, manifest_of(load, self.demand, end_ns))
        self.scraper = (
            Scraper.of(SERVER.writer(out), pages_of(load), load.metrics) if load.metrics is not None else None
        )
        self.texts = Texts(out, load.gating) if load.keep_texts or load.gating else None
        self.crew = Crew(self._lost)

    def run(self) -> None:
        with interrupts_heard(self.interrupt), rarely_collecting():
            self._run()

    def _run(self) -> None:
        try:
            self.crew.start(self.load, len(self.schedule.due_ns), eager=not self.patient)
            thread = threading.Thread(target=self._conduct_politely)
            thread.start()
            thread.join()
            if self.failure is not None:
                raise self.failure
            self._conduct(polite=False)  # what is left, if politeness did not pay
            self._read(None)  # nobody is to be let through any more
            self._tell(time.monotonic_ns())
            self._close()
        except BaseException:
            with contextlib.suppress(OpenloopError):
                self._flush()
                self._stop_scraping()
            self.writer.close()
            raise
        finally:
            if self.texts:
                self.texts.close()
            self.crew.close()
            forget_now(self.writer.folder)

    def interrupt(self) -> None:
        """The first stops the schedule, the second everything."""
        self.interrupts += 1

    def _conduct_politely(self) -> None:
        """In a thread of its own, whose priority is lowered for good: where processors are few, workers come first.

        Not where answers decide what is sent next: then reading them is as urgent as sending. And not, or not any
        longer, where others use the processors so much that the workers would run out of requests.
        """
        try:
            polite = self._begin()
            if polite:
                be_polite()
            self._conduct(polite)
        except BaseException as error:
            self.failure = error

    def _begin(self) -> bool:
        """Whether there is time for politeness."""
        while not (self.crew.ready or self.interrupts):
            self.crew.listen(time.monotonic_ns() + TICK_NS)
        if self.primes:
            stop = lambda: bool(self.interrupts)  # noqa: E731
            told, self.primed = prime(self.load, self.demand, self.primes, self.prompts.words, stop)
            self.notes += told
        polite = self.patient and politeness_pays()
        self.start_ns = self.begin()
        self.stolen_s = stolen_s()
        if self.scraper:
            self.scraper.start(self.start_ns)
        self._tell_the_end(self.schedule.end_ns)
        return polite

    def _conduct(self, polite: bool) -> None:
        """Until every worker has said goodbye, or is gone; or a polite one finds that it is too late for manners."""
        flushed = told = self.start_ns
        while not self.crew.over:
            now = time.monotonic_ns()
            if polite and self._starved(now):
                return
            self._feed(now)
            self._stop_if_told(now)
            if len(self.rows) >= FLUSH_ROWS or now - flushed >= FLUSH_NS:
                self._flush()
                flushed = now
            if now - told >= TELL_NS:
                self._tell(now)
                self._tell_when_late()
                self._open_if_steady(now)
                told = now
            self._read(now + READ_NS)
            if self.texts:
                self._hear_grades()
            busy = bool(self.crew.brought) or self._hungry(now)
            self.crew.listen(now if busy else now + (GRADED_NS if self.awaited else TICK_NS))

    def _read(self, until_ns: int | None) -> None:
        """Read what workers brought, for a while: feeding them comes first."""
        brought = self.crew.brought
        while brought and (until_ns is None or time.monotonic_ns() < until_ns):
            self._take(brought.popleft())
            if len(brought) % AT_ONCE == 0:
                give_way()

    def _take(self, finished: Finished) -> None:
        number, attempt = divmod(finished[0], TICKETS)
        request = self.asked.get(number)
        if request is None:
            return
        load = self.load
        if load.users:
            began = finished[3] or finished[5] or time.monotonic_ns()  # due when it was sent, or could not be
            self.schedule.due_ns[number] = max(began - self.start_ns, 0)
        where = self._where(number, attempt)
        place, target = load.sites[where]
        name, kind = self.numbers[number], self._kind(request, attempt)
        outcome = read_finished(finished, target, load.timeout_s)
        row = Row(name, self.schedule.due_ns[number], outcome, attempt, kind, request.ask)
        row.set_times(finished, self.start_ns)
        if len(load.sites) > 1 and outcome.replica is None:
            outcome.replica = place.host
        self._add(row)
        if self.texts:
            self.texts.add(row)
        if self.opened_ns is None and outcome.cached_tokens is not None:
            self.hits.append((outcome.cached_tokens, outcome.prompt_tokens or 0))
        if load.hedge is not None and outcome.status == "ok" and row.ended_ns is not None and request.tries == 1:
            self.begun.append((row.ended_ns if row.first_ns is None else row.first_ns) - row.due_ns)
        if finished[-1] or outcome.status == "cancelled":
            return
        if load.repair and self.texts and self.texts.waits_for(row):
            self.awaited[row.number, attempt] = number, row
            request.graded = True
        else:
            self._settle(number, request, row)

    def _hear_grades(self) -> None:
        """What was graded meanwhile; where a repair depends on it, it goes on."""
        assert self.texts is not None
        for key, grade in self.texts.graded():
            if key in self.awaited:
                number, row = self.awaited.pop(key)
                if number in self.asked:
                    self._settle(number, self.asked[number], row, grade)

    def _settle(self, number: int, request: _Request, row: Row, grade: Grade | None = None) -> None:
        """All copies of this attempt are back: try again, go on with the conversation, or leave it at that."""
        retry, repair, outcome = self.load.retry, self.load.repair, row.outcome
        if (retry or repair) and (self.halted_ns is not None or request.tries >= MOST_TRIES):
            retry = repair = None
        if (
            retry is not None
            and request.waves.count("retry") < retry.most
            and retry.applies(outcome.status, outcome.http_status)
            and retry.affords(self.retries, self.given)
        ):
            wait = to_ns(retry.wait_s(request.tries, self.rng))
            request.waves += ("retry",)
            self.retries += 1
            self.schedule.again((row.ended_ns or time.monotonic_ns() - self.start_ns) + wait, number)
            return
        if repair and grade and grade.passed is False and request.waves.count("repair") < repair.most:
            said = (("assistant", outcome.text or ""), ("user", repair.correction(grade.why)))
            request.ask = request.ask._replace(messages=(*request.ask.messages, *said))
            request.waves += ("repair",)
            self.schedule.again(max(row.ended_ns or 0, time.monotonic_ns() - self.start_ns), number)
            return
        del self.asked[number]
        self.settled += 1
        follower = self.followers.get(number)
        if follower is None or outcome.status != "ok" or self.halted_ns is not None:
            self.prompts.over(number)
            return
        assert self.demand.think_s is not None
        due = (row.ended_ns or 0) + to_ns(float(self.demand.think_s[follower]))
        if due >= self.schedule.end_ns or self.full_ns is not None:
            self.full_ns = None if self.full_ns is None else min(self.full_ns, due)
            self.prompts.over(number)
            return
        self.prompts.answered(number, outcome.text)
        self.schedule.follow(due, follower)

    def _kind(self, request: _Request, attempt: int) -> str:
        if self.load.hedge is None:
            return request.waves[attempt]
        return "hedge" if attempt % 2 else request.waves[attempt // 2]

    def _where(self, number: int, attempt: int) -> int:
        """One further with each try; a copy goes where the next try would."""
        if len(self.load.sites) == 1:
            return 0
        tries = attempt if self.load.hedge is None else attempt // 2 + attempt % 2
        return (self.numbers[number] + tries) % len(self.load.sites)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.unseen.append(row)
        self.statuses[row.outcome.status] += 1
        self.kernel_stamps += row.kernel_stamps
        self.stamps += row.stamps
        prices: Prices | None = self.load.facts.get("prices")
        if prices is not None and prices.by_use and row.sent_ns is not None:
            outcome = row.outcome
            self.spent += prices.of(outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens)

    def _hungry(self, now: int) -> bool:
        """Whether something is due soon that no worker has yet."""
        if self.halted_ns is not None:
            return False
        if self.load.users:
            return self.schedule.taken < self.schedule.planned and len(self.asked) < 2 * self.load.users + FEED_AT_ONCE
        return self.start_ns + self.schedule.next_ns < now + AHEAD_NS

    def _starved(self, now: int) -> bool:
        """Whether workers will soon have nothing to send, for what is due was not given to them in time."""
        begun = self.halted_ns is None and not self.load.users and now > self.start_ns
        return begun and self.start_ns + self.schedule.next_ns < now + LATE_NS

    def _feed(self, now: int) -> None:
        """Give workers what is due soon; when nothing more can come, say so."""
        workers = self.crew.workers
        shares: list[list[Asked]] = [[] for _ in workers]
        most = FEED_AT_ONCE * len(workers)
        while most and self._hungry(now):
            most -= 1
            due, number = self.schedule.take()
            if self.most is not None and number not in self.asked and self.given >= self.most:
                self._leave_out(number, due)
                break
            shares[number % len(workers)].append(self._asked(number, due))
            if most % AT_ONCE == 0:
                give_way()
        for worker, share in zip(workers, shares, strict=True):
            if worker.over:
                self._drop(ticket // TICKETS for ticket, *_ in share)
            elif share:
                self.crew.send(worker, ("ask", share))
        settled = self.patient or not self.asked
        if not self.ended and settled and self.schedule.next_ns == NEVER:
            self.ended = True
            self.crew.tell(("end",))

    def _leave_out(self, number: int, due: int) -> None:
        """This request and all after it: there are enough. Those that there are may still be tried again."""
        if due == self.latest:  # of several at the same time some are left out: the window ends before the next
            due = self.schedule.end_ns if self.load.users else self.schedule.after(due)
        self.full_ns = due
        self.cut_short = "requests"
        self.schedule.end_before(number, self.asked)
        why = "as was asked for" if self.most == self.load.most_requests else "which is the most of a closed loop"
        self.notes.append(f"stopped after {self.given:,} requests, {why}")
        self._tell_the_end(max(due, self.latest))

    def _asked(self, number: int, due: int) -> Asked:
        """What a worker is told: an attempt at a request, and a copy of it for the case that it is late."""
        request = self.asked.get(number)
        if request is None:
            ask = self.prompts.ask(number)
            if self.salter:
                ask = self.salter.salted(ask, self.numbers[number], due / 1e9)
            request = self.asked[number] = _Request(ask)
            self.given += 1
            self.latest = max(self.latest, due)
        name, hedged = self.numbers[number], self.load.hedge is not None
        attempt = (request.tries - 1) * (2 if hedged else 1)
        where = elsewhere = self._where(number, attempt)
        payload = self.load.sites[where][1].encode(request.ask, name)
        copy = b""
        if hedged:
            elsewhere = self._where(number, attempt + 1)
            copy = payload if where == elsewhere else self.load.sites[elsewhere][1].encode(request.ask, name)
        return number * TICKETS + attempt, self.start_ns + due, where, payload, elsewhere, copy

    def _open_if_steady(self, now: int) -> None:
        """Begin to measure once the hit rate is steady, by rows or else by the server's counters; or late."""
        if self.opened_ns is not None or now < self.start_ns:
            return
        settled = steady(self.hits) or (
            self.scraper is not None and not self.hits and steady(self.scraper.hits(), LEAST_READINGS)
        )
        if not settled and now - self.start_ns < to_ns(self.settling_s):
            return
        self.settled_hits = settled
        self.opened_ns = now - self.start_ns
        self.schedule.end_at(self.opened_ns + to_ns(self.load.seconds), self.asked)
        self.notes.append(
            f"the hit rate was {'steady' if settled else 'not steady yet'} after {self.opened_ns / 1e9:.0f} s, and the "
            "window begins there"
        )
        self._tell_the_end(self.schedule.end_ns)

    def _hurried(self, waited_s: float) -> bool:
        """Whether nobody wants to wait for the last grades."""
        return self.interrupts > 1 or (self.interrupts > 0 and waited_s > HALT_S)

    def _warmth(self) -> Warmth | None:
        """What the manifest says of caches, unless it did not come about."""
        stated = self.writer.manifest.cache_warmth
        came_about = self.primed and self.settled_hits and self.opened_ns is not None
        return stated if self.load.warming is None or came_about else None

    def _tell_when_late(self) -> None:
        """After how long a copy is to be sent, where that is a percentile of how long answers have taken so far."""
        hedge = self.load.hedge
        if hedge is not None and hedge.after.percentile is not None and len(self.begun) >= ENOUGH:
            after = int(np.percentile(np.array(self.begun), hedge.after.percentile))
            self.crew.tell(("hedge", max(after, 1)))

    def _tell_the_end(self, end_ns: int) -> None:
        """Nothing is due from this moment of the run on: workers wait a while for what is in flight."""
        self.crew.tell(("drain", self.start_ns + end_ns + to_ns(self.load.drain_s)))

    def _lost(self, worker: Worker) -> None:
        """A worker died: what it had becomes rows that say so."""
        self._read(None)  # what it brought before is not lost
        mine = [number for number in self.asked if number in worker.numbers]
        self.notes.append(f"a worker died, and {len(mine):,} requests with it; those it was to send later are dropped")
        self.schedule.forget(set(mine))
        self._drop(mine)

    def _drop(self, numbers: Iterable[int], why: str = "the worker that was to send it died") -> None:
        for number in numbers:
            request = self.asked.pop(number, None)
            self.settled += 1
            if request is None or not request.known:
                outcome, ask = Outcome("dropped", error=why), self.prompts.bare(number)
                self._add(Row(self.numbers[number], self.schedule.due_ns[number], outcome, ask=ask))

    def _stop_if_told(self, now: int) -> None:
        if self.interrupts:
            why = f"interrupted after {max(now - self.start_ns, 0) / 1e9:.1f} s"
            self._halt(now, now, why, HALT_S, cut_short="interrupt")
        elif self.load.users and now >= self.start_ns + self.schedule.end_ns:
            self._halt(now, now, None)
        elif (afforded := self._afforded(now)) is not None:
            self._halt(now, afforded, None, cut_short="spend")
        if self.interrupts > 1:
            self.crew.give_up()

    def _afforded(self, now: int) -> int | None:
        """Until when there is money for what is due, once that is known, and for the most that is in flight."""
        most, users = self.load.most_spend, self.load.users
        if most is None or self.halted_ns is not None:
            return None
        left = most - self._spent(now)
        if left <= 0:
            return now
        if left > len(self.asked) * self.dearest:
            return None
        soon_ns = now - self.start_ns + 2 * TICK_NS  # later, answers may turn out to be cheaper
        paid = {number for number, _ in self.awaited.values()}
        coming = sorted((self.schedule.due_ns[number], number) for number in self.asked.keys() - paid)
        for due, number in coming[:users]:
            left -= self.costs[number] if due < soon_ns else 0.0
            if left <= ROUNDING * most:
                if users:
                    return now
                together = self.schedule.next_ns <= due  # no worker has all yet that are due at that moment
                fits = left >= -ROUNDING * most  # else there is no money for this one either
                end = self.schedule.after(due) if fits else due
                return None if together else max(now, self.start_ns + end)
        return None

    def _spent(self, now: int) -> float:
        prices: Prices | None = self.load.facts.get("prices")
        hourly = prices.hourly * max(now - self.start_ns, 0) / 3.6e12 if prices else 0.0
        return self.spent + hourly + (self.texts.cost if self.texts else 0.0)

    def _halt(
        self, now: int, due_ns: int, why: str | None, patience_s: float | None = None, cut_short: str | None = None
    ) -> None:
        """Nothing is due from this moment on; what is in flight has a while to end."""
        until = max(now, due_ns) + to_ns(self.load.drain_s if patience_s is None else patience_s)
        if self.halted_ns is not None:
            if patience_s is not None and until < self.until_ns:
                self._end_by(until)
            return
        if now < self.start_ns + self.schedule.end_ns:
            self.cut_short = cut_short
        self.halted_ns = due_ns
        if why:
            self.notes.append(why)
        halted = self.halted_ns - self.start_ns
        for number in [each for each in self.asked if self.schedule.due_ns[each] >= halted]:
            del self.asked[number]  # was not due yet
        self._end_by(until)

    def _end_by(self, until_ns: int) -> None:
        self.until_ns = until_ns
        self.crew.tell(("halt", self.start_ns if self.load.users else self.halted_ns, until_ns))  # users ask no more

    def _tell(self, now: int) -> None:
        seconds = (now - self.start_ns) / 1e9
        due = self.schedule.due_by(min(self.halted_ns or now, now) - self.start_ns)
        if self.load.users:
            due = self.settled + min(len(self.asked), self.load.users)
        in_flight = max(due - self.settled, 0)
        write_now(self.writer.folder, Now(seconds, due, in_flight))
        why = self.watch(Snapshot(seconds, due, in_flight, self.statuses, self.unseen, self._read_s()))
        self.unseen = []
        if why and seconds < self.schedule.end_ns / 1e9:
            self._halt(now, now, why, cut_short="overload")

    def _read_s(self) -> float:
        """Up to when all that came is read, if nothing waits to be."""
        quiet = 0 if self.crew.brought else self.crew.quiet_ns
        return max((quiet - HELD_NS - self.start_ns) / 1e9, 0.0)

    def _flush(self) -> None:
        if self.rows:
            self.writer.append(batch_of(self.rows))
            self.rows = []
        if self.texts:
            self.texts.flush()

    def _close(self) -> None:
        """Whatever did not come back was in flight when we stopped watching."""
        schedule, stopped = self.schedule, max(time.monotonic_ns() - self.start_ns, 1)
        halted = None if self.halted_ns is None else self.halted_ns - self.start_ns
        if not self.load.users:
            planned = schedule.planned if halted is None else schedule.planned_by(halted)
            self._drop(range(schedule.taken, planned), "it was due before any worker had it")
        for number in [] if self.load.users else sorted(self.asked):
            request = self.asked[number]
            if not request.known:
                outcome = Outcome("censored", error="still in flight when the run was stopped")
                self._add(Row(self.numbers[number], schedule.due_ns[number], outcome, ask=request.ask))
        self._flush()
        self._stop_scraping()
        labels = self.texts.finish(self._hurried, self.notes) if self.texts else None
        end = schedule.end_ns
        if halted is not None:  # maybe while what was in flight ended: nothing was due by then
            end = halted if self.load.users else min(halted, end)
        if self.full_ns is not None:
            end = min(end, stopped if self.load.users else self.full_ns)
        if self.cut_short == "spend":
            spent, most = self._spent(self.start_ns + stopped), self.load.most_spend
            self.notes.append(
                f"stopped by the limit on spending: it came to {spent:.4g} in the end, of {most:g} allowed"
            )
        stolen = stolen_s() - self.stolen_s
        if stolen > STOLEN_SHARE * (os.cpu_count() or 1) * stopped / 1e9:
            self.notes.append(f"the host took {format_seconds(stolen)} of processor time from this machine meanwhile")
        self.writer.finish(
            labels,
            window_ns=(min(self.opened_ns or 0, max(end, 1) - 1), max(end, 1)),  # maybe it never began
            cache_warmth=self._warmth(),
            stopped_ns=stopped,
            stamps=self._stamps(),
            notes=tuple(self.notes),
            cut_short=self.cut_short,
            offered_rps=self._offered(end),
        )

    def _offered(self, end: int) -> float | None:
        """What a window that ended early was to have is what was on the schedule until then."""
        offered = self.writer.manifest.offered_rps
        if offered is None or self.halted_ns is self.full_ns is None:
            return offered
        opened = self.opened_ns or 0
        due = self.schedule.planned_by(end) - self.schedule.planned_by(opened)
        return due / (max(end - opened, 1) / 1e9) or None

    def _stop_scraping(self) -> None:
        if self.scraper and self.start_ns:
            self.notes += self.scraper.stop()

    def _stamps(self) -> str | None:
        if not self.stamps:
            return None
        share = self.kernel_stamps / self.stamps
        if share == 1:
            return "the kernel's, on receiving"
        return f"the kernel's for {share:.1%} of reads, else this process's"


def watched_by(watch: Watch | None, notes: list[str]) -> Watch:
    """One that fails is not called again, with a note: that nobody looks is no reason to stop measuring."""

    def look(now: Snapshot) -> str | None:
        nonlocal watch
        try:
            return watch(now) if watch else None
        except Exception as error:
            watch = None
            notes.append(f"the display failed ({type(error).__name__}), and the run went on")
            return None

    return look


@contextlib.contextmanager
def interrupts_heard(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and a polite kill are told, where signals can be heard, and end nothing by themselves."""
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {each: signal.signal(each, lambda *_: tell()) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def be_polite() -> None:
    """This thread, from now on: whoever else wants a processor has it first."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def give_way() -> None:
    """To a worker that waits for this processor. Its turn would come by itself, but as late as at the next tick of the
    kernel's clock: milliseconds in which nothing is sent."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def politeness_pays() -> bool:
    """Whether who is polite gets to work: beside a busy process on each processor it waits for seconds. Tried in a
    process of its own, for a thread that waits may hold what all others need."""
    try:
        subprocess.run([sys.executable, "-ISc", POLITE_WORK], stderr=subprocess.DEVNULL, timeout=SOON_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return False
    return True


@contextlib.contextmanager
def rarely_collecting() -> Iterator[None]:
    """Rows that wait for the disk are many, and none is part of a cycle: they are not looked through for any."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], RARELY) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _most_costs(load: Load, demand: Demand) -> list[float]:
    """What each request may cost, where money is limited: none of its prompt cached, all tokens that it asks for."""
    prices: Prices | None = load.facts.get("prices")
    if load.most_spend is None or prices is None:
        return []
    prompts = np.maximum(demand.prompt_tokens, 0).tolist()
    return [
        prices.of(prompt, None, output) for prompt, output in zip(prompts, demand.output_tokens.tolist(), strict=True)
    ]


def _followers(demand: Demand) -> dict[int, int]:
    """The next turn after each request."""
    before = () if demand.after is None else demand.after.tolist()
    return {each: number for number, each in enumerate(before) if each >= 0}
