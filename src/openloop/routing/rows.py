"""What a policy sees: plain rows, the same in front of real replicas and in a model of them."""

from typing import Any

import numpy as np

MEMORY = 64  # whole numbers that a policy may keep,
SEED = 63  # of which this one is where chance comes from
NOBODY = -1  # the place of no replica: the request is shed


def _row(whole: str, real: str) -> np.dtype[Any]:
    return np.dtype(
        [*((name, np.int64) for name in whole.split()), *((name, np.float64) for name in real.split())], align=True
    )


ASK = _row(
    "number session "  # the session is -1 where there is none
    "prompt output "  # tokens; of the answer as far as somebody knows
    "prefix",  # what its first blocks are, -1 where nobody may share them
    "deadline",  # when its first token is wanted, on the clock that `now` is of
)
VIEW = _row(
    "open "  # whether it may be chosen
    # As the replica says, `age` seconds ago:
    "requests waiting "  # all that are there, and those of them that are not served yet
    "prefill tokens used "  # tokens of prompts still to be read, of all requests, and in memory
    "capacity memory "  # requests that it serves at a time, tokens that it has room for; 0: not known
    # As the router knows at once:
    "sent sent_prefill sent_tokens "  # requests, prefill and tokens, of what it sent there and is not over
    "cached known home",  # tokens of this prompt that are there; tokens of all prompts; whether the session was there
    "age pace gap",  # seconds to read a token of a prompt, and lately between two that left the queue; 0: not known
)


def rows(kind: np.dtype[Any], count: int) -> Any:
    return np.zeros(count, kind).view(np.recarray)
