"""What is asked: how much, of whom, with what in common, and in which words."""

from openloop.workload.demand import Demand
from openloop.workload.describe import Description, describe, known_tokens
from openloop.workload.mix import SOURCES, Scaled, Workload, read_source
from openloop.workload.prompts import Ask, Prompts
from openloop.workload.synthetic import Sessions, Synthetic
from openloop.workload.warmth import WARMTHS, Warming, priming, read_warming, salted, steady
from openloop.workload.words import Scale, Words, word_tokens

__all__ = [
    "SOURCES",
    "WARMTHS",
    "Ask",
    "Demand",
    "Description",
    "Prompts",
    "Scale",
    "Scaled",
    "Sessions",
    "Synthetic",
    "Warming",
    "Words",
    "Workload",
    "describe",
    "known_tokens",
    "priming",
    "read_source",
    "read_warming",
    "salted",
    "steady",
    "word_tokens",
]
