"""What is asked."""

from openloop.workload.synthetic import Ask, Synthetic

__all__ = ["Ask", "Synthetic"]
