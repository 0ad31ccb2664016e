"""Texts of a given number of tokens, made of common words: by a tokenizer exactly, without one nearly.

A text is cut from one long row of random words that is made once, so it costs the same for ten tokens and for a
hundred thousand; its first words are its identity, so two texts that are not the same differ from the start.
"""

import importlib
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.errors import SpecError
from openloop.seeds import stream
from openloop.spec import one_line

# fmt: off
WORDS = [
    "able", "above", "across", "action", "again", "along", "amount", "animal", "answer", "area", "around", "base",
    "bear", "bed", "before", "began", "better", "bird", "black", "blue", "boat", "body", "book", "bring", "build",
    "busy", "call", "care", "carry", "cause", "chance", "change", "check", "circle", "city", "class", "clear", "close",
    "cold", "color", "common", "correct", "country", "cover", "cross", "dark", "day", "deep", "direct", "door", "draw",
    "dream", "drive", "early", "earth", "east", "end", "enough", "every", "eye", "face", "fact", "farm", "fast",
]
# fmt: on
ROW = 1 << 15  # words in the row that texts are cut from
IDENTITY_BITS = 48
TRIALS = 20
MOST_WORDS = 1024


@dataclass(frozen=True)
class Scale:
    """How a server counts: tokens of a prompt = overhead + per_word * words."""

    per_word: float = 1.0
    overhead: float = 0.0


class Words:
    """Makes texts; the same for the same seed."""

    def __init__(self, seed: int = 0, scale: Scale | None = None, vocabulary: Sequence[str] | None = None) -> None:
        self.scale = scale or Scale()
        self._seed = seed
        vocabulary = self._vocabulary = vocabulary or WORDS
        row = stream(seed, "words").integers(0, len(vocabulary), ROW)
        text = " ".join([vocabulary[i] for i in row.tolist()])
        self._row = f"{text} {text}"
        lengths = np.array([len(word) + 1 for word in vocabulary])[row]
        self._starts = array("q", np.cumsum(np.concatenate([[0], lengths, lengths])).tobytes())
        head = min(-(-IDENTITY_BITS // max((len(vocabulary) - 1).bit_length(), 1)), 16)
        self._powers = [len(vocabulary) ** place for place in range(head)]  # words that tell a text from all others

    def text(self, identity: int, tokens: float) -> str:
        """The text with this identity, of so many tokens.

        Words are rounded up or down by chance, so that many short pieces are as long as they should be together.
        """
        words = tokens / self.scale.per_word
        if words % 1:
            words += _mix(~identity, self._seed) / 2**64
        return self.text_of(identity, max(int(words), 1))

    def text_of(self, identity: int, words: int) -> str:
        mixed = _mix(identity, self._seed)
        vocabulary, size, starts = self._vocabulary, len(self._vocabulary), self._starts
        pieces = [vocabulary[mixed // power % size] for power in self._powers[:words]]
        left = words - len(pieces)
        at = mixed % ROW
        while left > 0:
            stop = at + (left if left < ROW else ROW)
            pieces.append(self._row[starts[at] : starts[stop] - 1])
            left -= stop - at
        return " ".join(pieces)


def _mix(identity: int, seed: int) -> int:
    """A number of 64 bits that looks random (the finalizer of splitmix64)."""
    mask = (1 << 64) - 1
    value = (identity * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def word_tokens(folder: str | Path) -> tuple[list[str], Scale]:
    """Words that a tokenizer turns into one token each, wherever they stand, and how it counts a text of them."""
    tokenizer = _load(Path(folder))
    specials = len(tokenizer.encode("").ids)

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids) - specials

    known = [word for word in WORDS if count(word) == count(f" {word}") == 1]
    if len(known) < len(WORDS):
        spelt = (token.lstrip("Ġ▁ ") for token in sorted(tokenizer.get_vocab()) if token[:1] in "Ġ▁ ")
        others = (word for word in spelt if len(word) > 1 and word.isascii() and word.isalpha())
        single = (word for word in others if count(word) == count(f" {word}") == 1)
        known = list(dict.fromkeys([*known, *itertools.islice(single, MOST_WORDS)]))
    words = known if len(known) > 1 else list(WORDS)
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 500, TRIALS)
    trials = [count(" ".join([words[i] for i in rng.integers(0, len(words), size)])) for size in sizes]
    return words, Scale(sum(trials) / int(sizes.sum()), specials)


def _load(folder: Path) -> Any:
    try:
        tokenizer = importlib.import_module("tokenizers").Tokenizer
    except ImportError:
        raise SpecError(
            "a tokenizer needs the package tokenizers: pip install 'openloop[tokenizer]', or leave the tokenizer out"
        ) from None
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SpecError(f"{folder} is no folder of a tokenizer: it has no tokenizer.json")
    try:
        return tokenizer.from_file(str(path))
    except Exception as error:
        raise SpecError(f"{path} is no tokenizer: {one_line(error)[:200]}") from None
