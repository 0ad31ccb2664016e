"""Requests that were recorded elsewhere: when each came, how long it was, and which blocks it had in common.

Known by their contents: Mooncake (JSON lines; milliseconds; blocks of 512 tokens), Bailian (JSON lines with chat_id;
seconds; blocks of 16), Azure (CSV; dates), BurstGPT (CSV; seconds). No text was recorded, so texts are made: the same
block is the same text.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from openloop.arrays import Floats, Ints
from openloop.errors import SpecError
from openloop.spec import read_text
from openloop.terms import COUNT, NUMBER, SECONDS, TEXT, Term, param
from openloop.workload.demand import Demand, Pieces, laid_out

MOST_TOKENS = (1 << 31) - 1


class _Request(NamedTuple):
    time_s: float
    prompt: int
    output: int
    session: Any = None  # None: in no session
    kind: str = ""
    blocks: Sequence[int] = ()
    block: int = 0  # tokens in each of them


@dataclass(frozen=True)
class Trace(Term):
    """A recording, from `start` to `stop` of it, `speed` times as fast; a run ends with it. With arrivals of their own
    requests keep only their lengths and blocks, and when they run out they come again as new ones. `block` is the
    number of tokens in a block, where it is not the format's."""

    name = "trace"
    path: str = param(TEXT)
    speed: float = param(NUMBER, 1.0, above=0.0)
    start: float = param(SECONDS, 0.0)
    stop: float | None = param(SECONDS, None)
    block: int | None = param(COUNT, None)
    timed = True

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        found, empty = _read(Path(self.path))
        times = _times(found)
        kept = np.flatnonzero((times >= self.start) & (times < (np.inf if self.stop is None else self.stop)))
        due = (times[kept] - self.start) / self.speed
        if starts_s is None:
            kept, due = kept[due < horizon_s], due[due < horizon_s]
        if not len(kept):
            raise SpecError(f"{self.path} has nothing in the part that was asked for: it is {times[-1]:.6g} s long")
        notes = [f"{empty:,} records of {self.path} have no tokens and were left out"] if empty else []
        if starts_s is None and kept[-1] == len(times) - 1:
            notes.append(f"{self.path} ends after {due[-1]:.6g} s")
        some, block = [found[place] for place in kept], self.block or found[0].block
        if more := sum(len(each.blocks) > _most_blocks(each, block) for each in some):
            notes.append(
                f"{more:,} records of {self.path} have more blocks than their prompts have tokens for, at {block} "
                "each: the rest was left out (block= says how large they are)"
            )
        recorded = replace(_demand(some, block), due_s=due, notes=tuple(notes))
        if starts_s is None:
            return recorded
        laps, place = np.divmod(np.arange(len(starts_s)), len(recorded))
        return replace(_fresh(recorded.take(place), laps), due_s=starts_s)

    def lasts_s(self) -> float:
        """To `stop`, or until a mean gap after the last request."""
        times = _times(_read(Path(self.path))[0])
        end = times[-1] * len(times) / (len(times) - 1) if times[-1] > 0 else math.inf
        return float(min(end, math.inf if self.stop is None else self.stop) - self.start) / self.speed


def _times(found: list[_Request]) -> Floats:
    """From the first one on."""
    return np.array([each.time_s for each in found]) - found[0].time_s


def _fresh(demand: Demand, laps: Ints) -> Demand:
    """What comes again after the last is as new as it was at first; sessions are not kept, for their times are not."""
    count = int(np.abs(demand.pieces.identity).max(initial=0)) + 1

    def moved(identity: Ints, owner: Ints) -> Ints:
        by = count * laps[owner]
        return np.where(identity < 0, identity - by, identity + by)

    return replace(demand.renamed(moved), session=None, turn=None)


def _demand(found: list[_Request], block: int) -> Demand:
    known: dict[Any, int] = {}
    session = np.array([-1 if each.session is None else known.setdefault(each.session, len(known)) for each in found])
    kinds = sorted({each.kind for each in found})
    return Demand(
        np.zeros(len(found)),
        _blocks(found, block),
        np.array([each.output for each in found]),
        session=session if known else None,
        turn=_turns(session) if known else None,
        tenant=np.array([kinds.index(each.kind) for each in found]) if len(kinds) > 1 else None,
        tenants=kinds if len(kinds) > 1 else (),
    )


def _turns(session: Ints) -> Ints:
    """Which one of its session each is; those in no session are the first of none."""
    seen: dict[int, int] = {}
    turns = np.zeros(len(session), np.int64)
    for place, each in enumerate(session.tolist()):
        if each >= 0:
            turns[place] = seen[each] = seen.get(each, -1) + 1
    return turns


def _most_blocks(request: _Request, block: int) -> int:
    return -(-request.prompt // max(block, 1))


def _blocks(found: list[_Request], block: int) -> Pieces:
    """Prompts as blocks, of which the last is what is left; those without blocks are one piece of their own."""
    prompts = np.array([each.prompt for each in found])
    known: dict[int, int] = {}  # hashes may be of any size
    own = (each.blocks[: _most_blocks(each, block)] for each in found)
    named = ([known.setdefault(each, len(known)) for each in blocks] for blocks in own)
    flat = [blocks or [-1 - number] for number, blocks in enumerate(named)]
    lengths = np.array([len(each) for each in flat])
    starts, owner, place = laid_out(lengths)
    identity = np.array([identity for each in flat for identity in each])
    last = place == lengths[owner] - 1
    left = np.maximum(prompts[owner] - block * place, 1)
    return Pieces(starts, identity, np.where(last, left, block), np.zeros(len(owner), np.int8))


def _read(path: Path) -> tuple[list[_Request], int]:
    """The requests of a file, and how many of its records have no tokens: failures of the service that it recorded."""
    text = read_text(path)
    found, empty, latest = [], 0, -math.inf
    for number, each in _read_lines(path, text) if text.lstrip().startswith("{") else _read_table(path, text):
        if not (math.isfinite(each.time_s) and 0 <= each.prompt <= MOST_TOKENS and 0 <= each.output <= MOST_TOKENS):
            raise SpecError(f"{path}, line {number}: {each.time_s} s, {each.prompt} and {each.output} tokens cannot be")
        if each.time_s < latest:
            raise SpecError(f"{path}, line {number} comes before the one above it: sort the trace by time")
        latest = each.time_s
        if each.prompt and each.output:
            found.append(each)
        else:
            empty += 1
    if not found:
        raise SpecError(f"{path} holds no requests")
    return found, empty


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    chat_id: int | None = None
    parent_chat_id: int = -1
    type: str = ""


def _read_lines(path: Path, text: str) -> Iterator[tuple[int, _Request]]:
    """Mooncake's form, and Bailian's, which also tells conversations apart."""
    decoder = msgspec.json.Decoder(_Line)
    roots: dict[int, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            each = decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            needs = "it needs timestamp, input_length and output_length"
            raise SpecError(f"{path}, line {number} is no request of a trace: {error}; {needs}") from None
        lengths = each.input_length, each.output_length
        if each.chat_id is None:
            yield number, _Request(each.timestamp / 1000, *lengths, None, each.type, each.hash_ids, 512)
        else:
            session = roots[each.chat_id] = roots.get(each.parent_chat_id, each.chat_id)
            yield number, _Request(each.timestamp, *lengths, session, each.type, each.hash_ids, 16)


def _date(text: str) -> float:
    """`2023-11-16 18:15:46.6805900`, in UTC where it does not say."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# Names of the columns for: time, prompt, output, session, kind; and how time is written.
TABLES: dict[str, tuple[tuple[str, str, str, str, str], Callable[[str], float]]] = {
    "azure": (("TIMESTAMP", "ContextTokens", "GeneratedTokens", "", ""), _date),
    "burstgpt": (("Timestamp", "Request tokens", "Response tokens", "Session ID", "Log Type"), float),
}


def _whole(rows: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise SpecError(f"{path} is not CSV: {error}") from None


def _read_table(path: Path, text: str) -> Iterator[tuple[int, _Request]]:
    rows = _whole(csv.reader(io.StringIO(text)), path)
    header = [name.strip() for name in next(rows, [])]
    fitting = [(names, read) for names, read in TABLES.values() if names[0] in header]
    if not fitting:
        wanted = " or ".join(", ".join(names[:3]) for names, _ in TABLES.values())
        raise SpecError(f"{path} is no trace: its columns are {', '.join(header)[:200]}, and a trace has {wanted}")
    names, read = fitting[0]
    for name in names[:3]:
        if name not in header:
            raise SpecError(f"{path} has no column {name!r}: its columns are {', '.join(header)}")
    places = [header.index(name) if name in header else None for name in names]
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        time, prompt, output, session, kind = (row[p] if p is not None and p < len(row) else "" for p in places)
        try:
            yield number, _Request(read(time), int(float(prompt)), int(float(output)), session or None, kind)
        except (ValueError, OverflowError):
            told = ", ".join(f"{name} {value!r}" for name, value in zip(names, (time, prompt, output), strict=False))
            raise SpecError(f"{path}, line {number}: {told} are not a time and two numbers of tokens") from None
