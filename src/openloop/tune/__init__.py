"""The best of many fleets, by simulation: few are tried, and the best is confirmed on fresh seeds."""

from openloop.tune.run import MAXIMIZED, Trial, Tuning, tune
from openloop.tune.space import Space, read_space

__all__ = ["MAXIMIZED", "Space", "Trial", "Tuning", "read_space", "tune"]
