"""What counts as accepted: gates, token deadlines, and what a late answer is still worth."""

from openloop.slo.deadlines import CustomDeadlines, Deadlines, LinearDeadlines, Smooth
from openloop.slo.gates import E2E, GATES, TPOT, TTFT, Completion, SLOGate, TokenDeadlines
from openloop.slo.objectives import PRESETS, SLO, Objectives, parse_objectives, parse_slo, read_slo

__all__ = [
    "E2E",
    "GATES",
    "PRESETS",
    "SLO",
    "TPOT",
    "TTFT",
    "Completion",
    "CustomDeadlines",
    "Deadlines",
    "LinearDeadlines",
    "Objectives",
    "SLOGate",
    "Smooth",
    "TokenDeadlines",
    "parse_objectives",
    "parse_slo",
    "read_slo",
]
