"""A modelled fleet fitted to measured runs, from their records alone; and what would be if something were changed."""

from openloop.calibrate.fit import Calibration, calibrate
from openloop.calibrate.match import read_known
from openloop.calibrate.model import drawn, fleet_of, suggestions, write_model
from openloop.calibrate.whatif import compare_changes

__all__ = [
    "Calibration",
    "calibrate",
    "compare_changes",
    "drawn",
    "fleet_of",
    "read_known",
    "suggestions",
    "write_model",
]
