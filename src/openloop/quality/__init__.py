"""Whether an output is acceptable: gates over what was asked and what was answered."""

from openloop.quality.case import Case, Grade
from openloop.quality.gates import QUALITY_GATES, Gating, read_gating, read_quality_gate
from openloop.quality.pool import Pool, jobs_for

__all__ = [
    "QUALITY_GATES",
    "Case",
    "Gating",
    "Grade",
    "Pool",
    "jobs_for",
    "read_gating",
    "read_quality_gate",
]
