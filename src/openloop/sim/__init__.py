"""Modelled systems in virtual time, which write the same records as real ones."""

from openloop.sim.queues import QUEUES, Batch, FanOut, Fcfs, Hedged, Pipeline, Queue, Replica, Served, read_queue
from openloop.sim.simulate import simulate

__all__ = [
    "QUEUES",
    "Batch",
    "FanOut",
    "Fcfs",
    "Hedged",
    "Pipeline",
    "Queue",
    "Replica",
    "Served",
    "read_queue",
    "simulate",
]
