"""The best of many fleets, by simulation: few are tried, and the best is confirmed on fresh seeds."""

from openloop.tune.run import OBJECTIVES, Trial, Tuning, tune
from openloop.tune.space import Space, read_space

__all__ = ["OBJECTIVES", "Space", "Trial", "Tuning", "read_space", "tune"]
