"""From a knee to a deployment: how many replicas, how available, how much they cost, and what to improve first."""

from openloop.plan.make import CapacityPlan, Day, Gain, Needs, make_plan, read_plan
from openloop.plan.system import LoadPoint, System, frontier_system, typed_system

__all__ = [
    "CapacityPlan",
    "Day",
    "Gain",
    "LoadPoint",
    "Needs",
    "System",
    "frontier_system",
    "make_plan",
    "read_plan",
    "typed_system",
]
