"""A policy in front of real replicas: what is known of them, kept up to date, and a log of decisions that replays."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from openloop.arrays import records
from openloop.errors import OpenloopError
from openloop.native import kept_by_numba
from openloop.native.kept import PLAIN
from openloop.routing import index as prefixes
from openloop.routing.policies import read_routing
from openloop.routing.policy import ASK, MEMORY, NOBODY, SEED, VIEW, Policy

CHUNK = 256  # characters of a prompt behind one name
CHUNK_TOKENS = 64
_MASK = (1 << 62) - 1
# Numba takes fifty times as long to look at a record array.
_KIND: Any = np.recarray if PLAIN else np.ndarray
_REPORTED = ("requests", "waiting", "prefill", "tokens", "used", "capacity", "memory", "pace", "gap")

_OWN = {"requests": "sent", "prefill": "sent_prefill", "tokens": "sent_tokens", "used": "sent_tokens"}

Line = Callable[[], bytes]  # of a log, made when it is asked for


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    """Of the index; when it is first called."""
    return function if PLAIN else kept_by_numba("njit", function)


def prefix_names(text: str | bytes) -> list[int]:
    """Hashes of the beginnings of a prompt, one further with each 256 characters; the same text, the same names."""
    data = text.encode() if isinstance(text, str) else text
    found, chain = [], hashlib.blake2b(digest_size=8)
    for start in range(0, len(data) - CHUNK + 1, CHUNK):
        chain.update(data[start : start + CHUNK])
        found.append(int.from_bytes(chain.digest(), "big") & _MASK)
    return found


def session_name(session: str | int | None) -> int:
    """A session by whatever it is called, as a whole number; -1: there is none."""
    if session is None or isinstance(session, int):
        return -1 if session is None else session
    return int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest(), "big") & _MASK


def start_memory(seed: int) -> Any:
    memory = np.zeros(MEMORY, np.int64)
    memory[SEED] = 1 + session_name(str(seed)) % 2147483646  # seeds that are alike are no longer
    return memory


class Routed(NamedTuple):
    """An attempt that was sent: its number, for `answered` and `ended`, and to whom."""

    number: int
    place: int


@dataclass
class _Sent:
    place: int
    at: float
    work: int  # tokens of prompts to read until its first token, its own among them
    prefill: int
    tokens: int


class Router:
    """Who gets a request, by what is known when it comes.

    Times are seconds of one clock, whichever. What this router sent is counted as it comes and goes; what a replica
    says of itself (`report`) is believed until it says something else, and its age is known. A replica that says
    nothing is taken to have what was sent to it. `log` gets a line for each decision, with all that the policy saw;
    `note` gets the same to be made into a line later, where a request shall not wait for it.
    """

    def __init__(
        self,
        policy: Policy | str,
        replicas: int,
        seed: int = 0,
        *,
        capacity: int = 0,
        log: BinaryIO | None = None,
        note: Callable[[Line], object] | None = None,
        entries: int = prefixes.ENTRIES,
    ) -> None:
        self.policy = read_routing(policy) if isinstance(policy, str) else policy
        self.views = records(VIEW, replicas).view(_KIND)
        self.views["open"], self.views["capacity"] = 1, capacity
        self._columns = {name: self.views[name] for name in VIEW.names or ()}
        self.index, self.held = prefixes.make_index(replicas, entries)
        self.index = self.index.view(_KIND)
        self._ask, self._memory, self._knobs = records(ASK, 1).view(_KIND), start_memory(seed), self.policy.knobs()
        self._choose = self.policy.caller()
        self._sent: dict[int, _Sent] = {}
        self._number = -1
        self._said = np.full(replicas, np.nan)  # when each reported last
        self._heard: list[set[str]] = [set() for _ in range(replicas)]  # and what it reports
        self._exact: set[int] = set()  # who says what its cache holds
        self._note = note if log is None else lambda line: log.write(line())
        if self._note is not None:
            self._note(partial(_encoded, _Head(str(self.policy), replicas, seed)))

    def route(
        self,
        now: float,
        prompt: int,
        *,
        output: int = 0,
        session: str | int | None = None,
        deadline: float = math.inf,
        names: Sequence[int] = (),
        each: int = CHUNK_TOKENS,
        avoid: int | None = None,
    ) -> Routed | None:
        """To whom a request goes, which then counts as sent; None: nobody should get it. `names` are of the beginnings
        of its prompt (`prefix_names`, or `token_names`), one further with `each` tokens; `avoid` is who has a copy of
        it already."""
        views, who = self.views, session_name(session)
        self._number += 1
        self._ask[0] = (self._number, who, prompt, output, names[0] if len(names) else -1, deadline)
        if any(self._heard):
            views["age"] = np.where(np.isnan(self._said), 0.0, now - self._said)
        self._look_up(names, each, who, prompt)
        avoided = avoid is not None and views["open"][avoid] and int(views["open"].sum()) > 1
        if avoided:
            views["open"][avoid] = 0
        before = b"" if self._note is None else self._memory.tobytes()
        place = _open_place(self._choose(self._ask, views, self._memory, self._knobs, now), views)
        if self._note is not None:
            self._note(partial(_line, now, self._ask.tobytes(), views.tobytes(), before, place))
        if avoided:
            views["open"][avoid] = 1
        if place < 0:
            return None
        self._book(place, names, who, prompt, output, now)
        return Routed(self._number, place)

    def answered(self, number: int, now: float) -> None:
        """Its first token has come: its prompt is read."""
        sent = self._sent.get(number)
        if sent is not None and sent.prefill:
            known, pace = self._columns["pace"], (now - sent.at) / max(sent.work, 1)
            if "pace" not in self._heard[sent.place]:
                known[sent.place] = pace if known[sent.place] == 0 else 0.9 * known[sent.place] + 0.1 * pace
            self._count(sent.place, 0, -sent.prefill, 0)
            sent.prefill = 0

    def ended(self, number: int) -> None:
        """It is over, however it ended."""
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._count(sent.place, -1, -sent.prefill, -sent.tokens)

    def report(self, place: int, now: float, **figures: float) -> None:
        """What a replica says of itself: requests, waiting, prefill, tokens, used, capacity, memory, pace, gap. Of the
        rest, what was sent to it is taken."""
        for name, value in figures.items():
            if name not in _REPORTED:
                raise OpenloopError(f"a replica cannot report {name!r}; it reports {', '.join(_REPORTED)}")
            self.views[name][place] = value
            self._heard[place].add(name)
        self._said[place] = now

    def set_open(self, place: int, is_open: bool) -> None:
        self._columns["open"][place] = is_open

    def cache_event(self, place: int, stored: Iterable[int] = (), removed: Iterable[int] = ()) -> None:
        """A replica says by name what it has, and what it has no more. From its first event on that is believed, in
        place of what was sent there."""
        if place not in self._exact:
            self._exact.add(place)
            self.forget_cache(place)
        _compiled(prefixes.learn)(self.index, self.held, np.fromiter(stored, np.int64), place)
        _compiled(prefixes.unlearn)(self.index, self.held, np.fromiter(removed, np.int64), place)

    def forget(self, place: int) -> None:
        """A replica has started anew: what was under way there is lost, and its caches are empty, unless it says what
        they hold."""
        if place not in self._exact:
            self.held[:, place] = 0
        for number in [number for number, sent in self._sent.items() if sent.place == place]:
            self.ended(number)

    def forget_cache(self, place: int) -> None:
        """What a replica has in its cache is not known any more; what was sent there is."""
        self.held[self.index["name"] >= 0, place] = 0

    def _look_up(self, names: Sequence[int], each: int, who: int, prompt: int) -> None:
        sees = self.policy.sees
        if sees & {"prefix", "cache"}:
            _compiled(prefixes.look)(self.index, self.held, np.array(names, np.int64), self.views, each)
            np.minimum(self.views["cached"], prompt, out=self.views["cached"])
        if "session" in sees:
            home = prefixes.find_home(self.index, who)
            self.views["home"] = self.held[home] if home else 0

    def _book(self, place: int, names: Sequence[int], who: int, prompt: int, output: int, now: float) -> None:
        uncached = prompt - int(self._columns["cached"][place])
        before = int(self._columns["sent_prefill"][place])
        self._sent[self._number] = _Sent(place, now, before + uncached, uncached, prompt + output)
        self._count(place, 1, uncached, prompt + output)
        if self.policy.sees & {"prefix", "cache"} and place not in self._exact:
            _compiled(prefixes.learn)(self.index, self.held, np.array(names, np.int64), place)
        if "session" in self.policy.sees:
            _compiled(prefixes.learn_home)(self.index, self.held, who, place)

    def _count(self, place: int, requests: int, prefill: int, tokens: int) -> None:
        columns, heard = self._columns, self._heard[place]
        columns["sent"][place] += requests
        columns["sent_prefill"][place] += prefill
        columns["sent_tokens"][place] += tokens
        for name, own in _OWN.items():
            if name not in heard:
                columns[name][place] = columns[own][place]


def _open_place(place: Any, views: Any) -> int:
    """Where a policy says, if that is a replica that is open."""
    return int(place) if 0 <= place < len(views) and views["open"][int(place)] else NOBODY


class _Head(msgspec.Struct):
    """The first line of a log."""

    decisions_of: str
    replicas: int
    seed: int
    ask: tuple[str, ...] = ASK.names or ()
    view: tuple[str, ...] = VIEW.names or ()


class _Decision(msgspec.Struct):
    now: float
    ask: list[Any]
    views: list[list[Any]]
    memory: tuple[list[int], list[int]]  # places that are not zero, and what is there
    place: int


def _encoded(said: _Head | _Decision) -> bytes:
    return msgspec.json.encode(said) + b"\n"


def _line(now: float, ask: bytes, views: bytes, memory: bytes, place: int) -> bytes:
    kept = np.frombuffer(memory, np.int64)
    some = np.flatnonzero(kept)
    seen, of = np.frombuffer(views, VIEW).tolist(), np.frombuffer(ask, ASK).tolist()[0]
    return _encoded(_Decision(now, of, seen, (some.tolist(), kept[some].tolist()), place))


class Replayed(NamedTuple):
    """Of a log of decisions: by which policy, how many there are, and the numbers of requests that went elsewhere."""

    policy: str
    decisions: int
    elsewhere: list[int]


def replay(log: str | Path, policy: Policy | str | None = None, *, python: bool = False) -> Replayed:
    """All decisions of a log once more, each by what was seen then, compiled as the simulator has it, or in `python`.
    With another `policy`: whom that would have sent elsewhere, had it seen the same."""
    with Path(log).open("rb") as file:
        lines = (line for line in file if line.endswith(b"\n"))  # the last may not be written to its end
        try:
            head = msgspec.json.decode(next(lines, b""), type=_Head)
        except msgspec.DecodeError:
            head = _Head("", 0, 0, ())
        if head.ask != ASK.names or head.view != VIEW.names:
            raise OpenloopError(f"{log} is no log of decisions that this version writes")
        chosen = head.decisions_of if policy is None else policy
        chosen = read_routing(chosen) if isinstance(chosen, str) else chosen
        choose, knobs = chosen.choose if python else chosen.caller(), chosen.knobs()
        ask, views, memory = records(ASK, 1), records(VIEW, head.replicas), start_memory(head.seed)
        count, elsewhere = 0, []
        for line in lines:
            try:
                row = msgspec.json.decode(line, type=_Decision)
                ask[0] = tuple(math.inf if each is None else each for each in row.ask)
                views[:] = [tuple(each) for each in row.views]
                if policy is None:
                    memory[:] = 0
                    memory[row.memory[0]] = row.memory[1]
            except (msgspec.DecodeError, IndexError, TypeError, ValueError) as error:
                told = f"line {count + 2} of {log} is no decision among {head.replicas} replicas"
                raise OpenloopError(f"{told}: {error}") from None
            count += 1
            if _open_place(choose(ask, views, memory, knobs, row.now), views) != row.place:
                elsewhere.append(int(ask[0].number))
    return Replayed(str(chosen), count, elsewhere)
