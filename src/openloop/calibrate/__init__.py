"""A modelled fleet fitted to measured runs, from their records alone; and what would be if something were changed."""

from openloop.calibrate.fit import Calibration, Held, calibrate
from openloop.calibrate.match import BatchLimits, read_known
from openloop.calibrate.model import drawn, fleet_of, suggestions, unknown, write_model
from openloop.calibrate.whatif import ChangeOutcome, FleetChange, compare_changes

__all__ = [
    "BatchLimits",
    "Calibration",
    "ChangeOutcome",
    "FleetChange",
    "Held",
    "calibrate",
    "compare_changes",
    "drawn",
    "fleet_of",
    "read_known",
    "suggestions",
    "unknown",
    "write_model",
]
