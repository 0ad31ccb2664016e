"""From a knee to a deployment: how many replicas, how available, how much they cost, and what to improve first."""

from openloop.plan.make import Day, Gain, Needs, Plan, make_plan, read_plan
from openloop.plan.system import Load, System, frontier_system, typed_system

__all__ = [
    "Day",
    "Gain",
    "Load",
    "Needs",
    "Plan",
    "System",
    "frontier_system",
    "make_plan",
    "read_plan",
    "typed_system",
]
