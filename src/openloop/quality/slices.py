"""Kinds of prompts whose quality is looked at apart, because their failures hide in an average."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

RARE_SHARE = 0.01  # of prompts, in which a name is rare
NUMBERS = re.compile(r"\d[\d,.]*")
AROUND = ".,;:!?()[]{}\"'`*"

Slice = Callable[[Sequence[str]], list[bool]]


def _numeric(prompts: Sequence[str]) -> list[bool]:
    """Two numbers or more."""
    return [len(NUMBERS.findall(prompt)) >= 2 for prompt in prompts]


def _rare(prompts: Sequence[str]) -> list[bool]:
    """A name that hardly any other prompt has."""
    names = [_names(prompt) for prompt in prompts]
    counts = Counter(name for each in names for name in each)
    most = max(RARE_SHARE * len(prompts), 1)
    return [any(counts[name] <= most for name in each) for each in names]


def _names(prompt: str) -> set[str]:
    """Words with a capital that begin no sentence, and words of letters and digits."""
    found = set()
    for before, word in pairwise([".", *prompt.split()]):
        bare = word.strip(AROUND)
        named = bare[:1].isupper() and len(bare) > 1 and before[-1] not in ".!?:"
        if named or (any(map(str.isdigit, bare)) and any(map(str.isalpha, bare))):
            found.add(bare)
    return found


SLICES: dict[str, Slice] = {"numeric": _numeric, "rare": _rare}


def slices_of(prompts: Sequence[str]) -> list[tuple[str, ...]]:
    """The names of those that each prompt belongs to."""
    found = {name: members(prompts) for name, members in SLICES.items()}
    return [tuple(name for name, members in found.items() if members[place]) for place in range(len(prompts))]
