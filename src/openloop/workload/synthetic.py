"""Prompts of given lengths, made of words."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from openloop.distributions import Distribution
from openloop.seeds import stream
from openloop.workload.ask import Ask

__all__ = ["Synthetic"]

# fmt: off
WORDS = [
    "able", "above", "across", "action", "again", "along", "amount", "animal", "answer", "area", "around", "base",
    "bear", "bed", "before", "began", "better", "bird", "black", "blue", "boat", "body", "book", "bring", "build",
    "busy", "call", "care", "carry", "cause", "chance", "change", "check", "circle", "city", "class", "clear", "close",
    "cold", "color", "common", "correct", "country", "cover", "cross", "dark", "day", "deep", "direct", "door", "draw",
    "dream", "drive", "early", "earth", "east", "end", "enough", "every", "eye", "face", "fact", "farm", "fast",
]
# fmt: on
BLOCK = 512  # requests whose lengths and words are drawn together


@dataclass(frozen=True)
class Synthetic:
    """Words drawn anew for every request, so that no prefix is ever seen twice."""

    prompt: Distribution  # words
    output: Distribution  # tokens

    def asks(self, count: int, seed: int) -> Iterator[Ask]:
        """One for each request in its order, the same for the same seed; made in blocks, for requests to come."""
        rng = stream(seed, "workload")
        for first in range(0, count, BLOCK):
            size = min(BLOCK, count - first)
            prompts, outputs = (
                np.maximum(np.rint(each.draw(BLOCK, rng)), 1).astype(int)[:size] for each in (self.prompt, self.output)
            )
            for number, (words, output) in enumerate(zip(prompts, outputs, strict=True), start=first):
                chosen = rng.integers(0, len(WORDS), words)
                text = f"{number} " + " ".join([WORDS[i] for i in chosen[1:].tolist()])
                yield Ask((("user", text),), int(output))

    def __str__(self) -> str:
        return f"synthetic words, prompt {self.prompt}, output {self.output}"
