"""Names of the blocks of prompts: the same name is the same tokens after the same tokens.

Only blocks that somebody else may have are named: from the first piece of a prompt that nobody shares, none is.
"""

from typing import Any

import numpy as np

from openloop.arrays import Ints
from openloop.native.build import native
from openloop.workload import Demand


def block_names(demand: Demand, size: int, salt: Ints | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Names end to end; and for each request where its names begin, how many there are, and how many are its prompt's.

    `salt` keeps the caches of tenants apart.
    """
    pieces = demand.pieces
    count = len(demand)
    answers = np.full(count, -1) if demand.answer is None else np.asarray(demand.answer, np.int64)
    owned = np.zeros(count, np.int64) if demand.answer is None else np.asarray(demand.output_tokens, np.int64)
    most = (demand.prompt_tokens + owned) // size
    starts = np.concatenate([[0], np.cumsum(most)])
    names = np.empty(int(starts[-1]), np.int64)
    named, of_prompt = np.zeros(count, np.int64), np.zeros(count, np.int64)
    salted = np.zeros(count, np.int64) if salt is None else np.asarray(salt, np.int64)
    _name(
        pieces.starts, pieces.identity, pieces.tokens, answers, owned, salted, starts, size, names, named, of_prompt
    )  # fmt: skip
    return names, starts[:-1], named, of_prompt


@native
def _name(
    piece_starts: Any, identity: Any, tokens: Any, answers: Any, owned: Any, salt: Any, starts: Any, size: int,
    names: Any, named: Any, of_prompt: Any,
) -> None:  # fmt: skip
    for i in range(len(named)):
        chain = np.uint64(salt[i]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        filled = 0  # tokens of the block that is being named
        place = starts[i]
        last = piece_starts[i + 1] + (1 if owned[i] > 0 and answers[i] >= 0 else 0)
        for n in range(piece_starts[i], last):
            answer = n == piece_starts[i + 1]
            who = answers[i] if answer else identity[n]
            left = owned[i] if answer else tokens[n]
            if who < 0:
                break
            at = 0
            while left > 0:
                step = min(left, size - filled)
                chain = _mixed(chain, who, at, step)
                filled += step
                at += step
                left -= step
                if filled == size:
                    names[place] = np.int64(chain >> np.uint64(1))
                    place += 1
                    filled = 0
                    if not answer:
                        of_prompt[i] += 1
        named[i] = place - starts[i]


def _mixed(chain: Any, who: int, at: int, step: int) -> Any:
    """A number of 64 bits that looks random, from what was before and what comes (as splitmix64 does)."""
    value = chain ^ (np.uint64(who) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(at) * np.uint64(0xD1B54A32D192ED03))
    value = (value + np.uint64(step)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
