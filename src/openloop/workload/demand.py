"""What is asked, in columns: the same for a live server, which gets texts, and for a model of one, which needs lengths.

A prompt is a row of pieces. Pieces of the same identity and length are the same text, so that what a prefix cache may
know already can be counted before anything is sent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from openloop.arrays import Bools, Codes, Floats, Ints
from openloop.distributions import Distribution
from openloop.errors import SpecError

USER, ASSISTANT, SYSTEM = 0, 1, 2
LONGEST = 10_000_000  # tokens of a prompt or an answer


@dataclass(frozen=True, eq=False)
class Pieces:
    """The prompts of all requests end to end; those of request i are starts[i] to starts[i + 1]."""

    starts: Ints
    identity: Ints  # below zero: nobody else has it
    tokens: Ints
    role: Codes

    @property
    def owner(self) -> Ints:
        """Whose each piece is."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def of(self, request: int) -> slice:
        return slice(self.starts.item(request), self.starts.item(request + 1))

    def take(self, order: Ints) -> "Pieces":
        lengths = np.diff(self.starts)[order]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[order] - starts[:-1], lengths) + np.arange(starts[-1])
        return Pieces(starts, self.identity[places], self.tokens[places], self.role[places])

    def only(self, these: Bools) -> "Pieces":
        """Prompts without the other pieces."""
        starts = np.concatenate([[0], np.cumsum(these)])[self.starts]
        return Pieces(starts, self.identity[these], self.tokens[these], self.role[these])


def laid_out(lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows of these lengths end to end: where each starts, and the last ends; the row of each item; its place there."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return starts, owner, np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)


def one_piece(tokens: Ints) -> Pieces:
    """Prompts that nobody has seen before."""
    count = len(tokens)
    return Pieces(np.arange(count + 1), -1 - np.arange(count), np.asarray(tokens, np.int64), np.zeros(count, np.int8))


def token_counts(lengths: Distribution, count: int, rng: np.random.Generator, least: int = 1) -> Ints:
    """Numbers of tokens."""
    if np.isfinite(lengths.mean) and lengths.mean > LONGEST:
        raise SpecError(f"a length of {lengths.mean:,.0f} is too long; at most {LONGEST:,} tokens are possible")
    return np.maximum(np.rint(np.minimum(lengths.draw(count, rng), LONGEST)), least).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Demand:
    """One row per request."""

    due_s: Floats  # NaN: some time after another one has been answered
    pieces: Pieces
    output_tokens: Ints  # 0: not said
    after: Ints | None = None  # the request that comes before in its session, or -1
    think_s: Floats | None = None  # between the answer to that one and this
    answer: Ints | None = None  # identity of the piece that its answer will be in later prompts; -1: in none
    session: Ints | None = None  # -1: none
    turn: Ints | None = None
    workload_class: Ints | None = None  # place in `classes`
    tenant: Ints | None = None  # place in `tenants`
    texts: Ints | None = None  # place in `corpus`
    classes: Sequence[str] = ()
    tenants: Sequence[str] = ()
    corpus: Sequence[tuple[tuple[str, str], ...]] = ()  # messages, where they are given and not made
    known: Sequence[tuple[str | None, str | None]] = ()  # of each of the corpus: the right answer, and its context
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.due_s)

    @property
    def prompt_tokens(self) -> Ints:
        return np.add.reduceat(np.append(self.pieces.tokens, 0), self.pieces.starts[:-1]) if len(self) else _none(0)

    @property
    def lengths(self) -> str:
        """For the manifest: what prompts and answers are made of, in a few numbers."""
        prompt, output = (_spread(each) for each in (self.prompt_tokens, self.output_tokens))
        return f"prompt {prompt}, output {output} tokens" if len(self) else "no requests"

    @property
    def with_answers(self) -> bool:
        """Whether a prompt repeats what was answered before."""
        return self.after is not None and bool(np.any(self.after >= 0))

    def in_order(self) -> "Demand":
        """The same requests by when they are due; those that wait for another come last."""
        order = np.argsort(self.due_s, kind="stable")
        return self.take(order) if np.any(np.diff(order) < 0) else self

    def take(self, order: Ints) -> "Demand":
        """Some of the requests, or all in another order."""
        changed = {
            each.name: getattr(self, each.name)[order]
            for each in fields(self)
            if isinstance(getattr(self, each.name), np.ndarray)
        }
        if self.after is not None:
            places = np.full(len(self) + 1, -1)
            places[order] = np.arange(len(order))
            changed["after"] = places[self.after[order]]
        return replace(self, pieces=self.pieces.take(order), **changed)

    def renamed(self, name: Callable[[Ints, Ints], Ints]) -> "Demand":
        """With other identities: `name` is given some that there are, and whose each is."""
        pieces, answer = self.pieces, self.answer
        if answer is not None:
            answer = np.where(answer < 0, -1, name(answer, np.arange(len(self))))
        return replace(self, pieces=replace(pieces, identity=name(pieces.identity, pieces.owner)), answer=answer)


def _spread(tokens: Ints) -> str:
    low, mid, high = np.percentile(tokens, [10, 50, 90]) if len(tokens) else (0, 0, 0)
    return f"mean {tokens.mean():.0f} (p10 {low:.0f}, p50 {mid:.0f}, p90 {high:.0f})" if low < high else f"{mid:.0f}"


def one_after_the_other(first: Demand, second: Demand) -> Demand:
    """Two demands with the same columns as one, in which the same identities are the same texts."""
    joined: dict[str, Any] = {
        each.name: np.concatenate([getattr(first, each.name), getattr(second, each.name)])
        for each in fields(first)
        if isinstance(getattr(first, each.name), np.ndarray)
    }
    if first.after is not None and second.after is not None:
        shifted = np.where(second.after < 0, -1, second.after + len(first))
        joined["after"] = np.concatenate([first.after, shifted])
    return replace(second, pieces=_pieces_together([first.pieces, second.pieces]), **joined)


def _none(count: int) -> Ints:
    return np.full(count, -1)


def merged_demand(parts: Sequence[Demand], classes: Sequence[str]) -> Demand:
    """The requests of several demands, each a class of its own, in the order in which they are due."""
    sizes = [len(part) for part in parts]
    sessions = [0 if part.session is None else int(part.session.max(initial=-1)) + 1 for part in parts]

    def column(name: str, counts: Sequence[int]) -> Ints | None:
        """Of all parts, each after so many as those before it have."""
        found = [getattr(part, name) for part in parts]
        if all(each is None for each in found):
            return None
        filled = [_none(size) if each is None else each for each, size in zip(found, sizes, strict=True)]
        shifts = np.cumsum([0, *counts])[:-1]
        return np.concatenate([np.where(each < 0, each, each + by) for each, by in zip(filled, shifts, strict=True)])

    alike = [0] * len(parts)
    think = [np.full(len(part), np.nan) if part.think_s is None else part.think_s for part in parts]
    parts = [_apart(part, number, len(parts)) for number, part in enumerate(parts)]
    return Demand(
        np.concatenate([part.due_s for part in parts]),
        _pieces_together([part.pieces for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        column("after", sizes),
        np.concatenate(think),
        column("answer", alike),
        column("session", sessions),
        column("turn", alike),
        np.repeat(np.arange(len(parts)), sizes),
        column("tenant", [len(part.tenants) for part in parts]),
        column("texts", [len(part.corpus) for part in parts]),
        classes,
        [name for part in parts for name in part.tenants],
        [messages for part in parts for messages in part.corpus],
        [known for part in parts for known in (part.known or [(None, None)] * len(part.corpus))],
        tuple(note for part in parts for note in part.notes),
    ).in_order()


def _apart(part: Demand, number: int, count: int) -> Demand:
    """With identities that no other part has."""
    return part.renamed(lambda name, _: np.where(name < 0, (name + 1) * count - 1 - number, name * count + number))


def _pieces_together(parts: Sequence[Pieces]) -> Pieces:
    """End to end."""
    ends = np.cumsum([0, *[len(part.identity) for part in parts]])
    return Pieces(
        np.concatenate([*(part.starts[:-1] + by for part, by in zip(parts, ends, strict=False)), ends[-1:]]),
        np.concatenate([part.identity for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.role for part in parts]),
    )
