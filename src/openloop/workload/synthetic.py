"""Requests of given lengths: alone, with prefixes that many share, or as conversations that grow."""

from dataclasses import dataclass

import numpy as np

from openloop.arrays import Floats, Ints
from openloop.distributions import LENGTHS, TIMES, Distribution, Fixed
from openloop.errors import SpecError
from openloop.terms import COUNT, NUMBER, SHARE, Term, param
from openloop.workload.demand import ASSISTANT, SYSTEM, USER, Demand, Pieces, laid_out, one_piece, token_counts

MOST_PIECES = 100_000_000


@dataclass(frozen=True)
class Synthetic(Term):
    """Lengths drawn for each request. A share of them begins with one of a few prefixes, the first the most often
    where there is a `skew` (Zipf's law); the rest of a prompt is its own."""

    name = "synthetic"
    prompt: Distribution = param(LENGTHS, Fixed(128))
    output: Distribution = param(LENGTHS, Fixed(64))
    prefixes: int = param(COUNT, 1)
    prefix: Distribution = param(LENGTHS, Fixed(0))
    reuse: float = param(SHARE, 1.0)
    skew: float = param(NUMBER, 0.0, most=10.0)
    timed = False

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        assert starts_s is not None
        count = len(starts_s)
        prompts, outputs = token_counts(self.prompt, count, rng), token_counts(self.output, count, rng)
        return self._demand(starts_s, prompts, outputs, token_counts(self.prefix, self.prefixes, rng, least=0), rng)

    def part(self, starts_s: Floats, rng: np.random.Generator, opening: np.random.Generator, users: int) -> Demand:
        """More of a demand that `opening` began with so many users: the same prefixes."""
        token_counts(self.prompt, users, opening)
        token_counts(self.output, users, opening)
        shared = token_counts(self.prefix, self.prefixes, opening, least=0)
        prompts, outputs = token_counts(self.prompt, len(starts_s), rng), token_counts(self.output, len(starts_s), rng)
        return self._demand(starts_s, prompts, outputs, shared, rng)

    def _demand(self, starts_s: Floats, prompts: Ints, outputs: Ints, shared: Ints, rng: np.random.Generator) -> Demand:
        count, own = len(starts_s), one_piece(prompts)
        if not shared.any():
            return Demand(starts_s, own, outputs)
        weights = np.arange(1.0, self.prefixes + 1) ** -self.skew
        chosen = rng.choice(self.prefixes, count, p=weights / weights.sum())
        chosen = np.where(rng.random(count) < self.reuse, chosen, -1)
        return Demand(starts_s, _prefixed(chosen, shared, own), outputs)


def _prefixed(chosen: Ints, shared: Ints, own: Pieces) -> Pieces:
    """Each prompt after the prefix that was chosen for it; -1: none."""
    has = (chosen >= 0) & (shared[chosen] > 0)
    starts = np.concatenate([[0], np.cumsum(1 + has)])
    identity = np.insert(own.identity, np.flatnonzero(has), chosen[has])
    tokens = np.insert(own.tokens, np.flatnonzero(has), shared[chosen[has]])
    return Pieces(starts, identity, tokens, np.zeros(len(tokens), np.int8))


@dataclass(frozen=True)
class Sessions(Term):
    """Conversations. Each turn repeats all that was said before it and comes some time after the last answer: only
    the first ones are on a schedule. `system` is the length of the prompt that conversations begin with; where there
    are several `systems`, each begins with one of them by chance."""

    name = "sessions"
    turns: Distribution = param(LENGTHS, Fixed(5))
    think: Distribution = param(TIMES, Fixed(5.0))
    prompt: Distribution = param(LENGTHS, Fixed(128))
    output: Distribution = param(LENGTHS, Fixed(64))
    system: int | None = param(COUNT, None)
    systems: int = param(COUNT, 1)
    timed = False

    def part(self, starts_s: Floats, rng: np.random.Generator, opening: np.random.Generator, users: int) -> Demand:
        """More of a demand: what was said there is not said here, but for the system prompts."""
        found = self.demand(starts_s, 0.0, rng)
        apart = int(rng.integers(1, 1 << 40)) << 21
        return found.renamed(lambda said, _: np.where(said >= self.systems, said + apart, said))

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        assert starts_s is not None
        turns = token_counts(self.turns, len(starts_s), rng)
        count = int(turns.sum())
        if turns @ (turns + 1) > MOST_PIECES:
            raise SpecError(f"sessions: {count:,} turns that repeat all before them are too much; have fewer of them")
        firsts, session, turn = laid_out(turns)
        asked, answered = token_counts(self.prompt, count, rng), token_counts(self.output, count, rng)
        think = self.think.draw(count, rng)
        due = np.where(turn == 0, starts_s[session], np.nan)
        which = rng.integers(self.systems, size=len(turns))[session] if self.systems > 1 else 0 * session
        return Demand(
            due,
            _conversations(firsts[session], turn, asked, answered, self.system or 0, which, self.systems),
            answered,
            after=np.where(turn == 0, -1, np.arange(count) - 1),
            think_s=np.where(turn == 0, np.nan, think),
            answer=np.where(turn < turns[session] - 1, self.systems + 1 + 2 * np.arange(count), -1),
            session=session,
            turn=turn,
        ).in_order()


def _conversations(
    first: Ints, turn: Ints, asked: Ints, answered: Ints, system: int, which: Ints, systems: int
) -> Pieces:
    """Of each turn: its system prompt, one of `systems`, then questions and answers up to its own question."""
    extra = int(system > 0)
    lengths = extra + 2 * turn + 1
    starts, owner, place = laid_out(lengths)
    place -= extra  # -1: the system prompt
    source = first[owner] + np.maximum(place, 0) // 2
    answer = place % 2 == 1
    tokens = np.where(place < 0, system, np.where(answer, answered[source], asked[source]))
    role = np.where(place < 0, SYSTEM, np.where(answer, ASSISTANT, USER)).astype(np.int8)
    return Pieces(starts, np.where(place < 0, which[owner], systems + 2 * source + answer), tokens, role)
