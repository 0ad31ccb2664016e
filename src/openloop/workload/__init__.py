"""What is asked."""

from openloop.workload.ask import Ask
from openloop.workload.synthetic import Synthetic

__all__ = ["Ask", "Synthetic"]
