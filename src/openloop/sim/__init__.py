"""Modelled systems in virtual time, which write the same records as real ones."""

from openloop.persistence import After
from openloop.sim.queues import (
    QUEUES,
    Batch,
    FanOut,
    Fcfs,
    Hedged,
    Pipeline,
    QueueModel,
    ReplicaQueue,
    Served,
    read_queue,
    simulate,
)

__all__ = [
    "QUEUES",
    "After",
    "Batch",
    "FanOut",
    "Fcfs",
    "Hedged",
    "Pipeline",
    "QueueModel",
    "ReplicaQueue",
    "Served",
    "read_queue",
    "simulate",
]
