"""What theory says of the same queues, to hold simulations against. Times in seconds, rates per second."""

import math
from collections.abc import Sequence

from openloop.distributions import Distribution
from openloop.errors import SpecError


def concurrency(rate: float, latency_s: float) -> float:
    """Little's law: L = lambda * W."""
    return rate * latency_s


def mg1_wait(rate: float, service: Distribution) -> float:
    """Mean wait at one server (Pollaczek-Khinchine): rho / (1 - rho) * (1 + cv**2) / 2 * mean service."""
    load = _stable(rate * service.mean)
    return load / (1 - load) * (1 + service.cv**2) / 2 * service.mean


def probability_of_waiting(rate: float, service_s: float, servers: int) -> float:
    """Erlang's C: the share of requests that find all servers of M/M/c busy."""
    _stable(rate * service_s / servers)
    offered, blocked = rate * service_s, 1.0
    for count in range(1, servers + 1):  # Erlang's B, server by server
        blocked = offered * blocked / (count + offered * blocked)
    return servers * blocked / (servers - offered * (1 - blocked))


def mmc_wait(rate: float, service_s: float, servers: int) -> float:
    """Mean wait before service in M/M/c: C / (c / s - lambda)."""
    return probability_of_waiting(rate, service_s, servers) / (servers / service_s - rate)


def batch_throughput(size: int, fixed_s: float, each_s: float) -> float:
    """B / (c0 + c1 B), which tends to 1 / c1."""
    return size / (fixed_s + each_s * size)


def pipeline_throughput(stages_s: Sequence[float]) -> float:
    """1 / max t_i: the slowest stage decides."""
    return 1 / max(stages_s)


def pipeline_latency(stages_s: Sequence[float]) -> float:
    """sum t_i: one request passes through every stage."""
    return math.fsum(stages_s)


def slow_share(fast_share: float, n: int) -> float:
    """1 - q**n: the share of requests with at least one slow backend among n."""
    return -math.expm1(n * math.log(fast_share)) if fast_share > 0 else 1.0


def _stable(load: float) -> float:
    if not load < 1:
        raise SpecError(
            f"the load is {load:.3g} of what the servers can do: the queue grows for ever, and has no mean wait"
        )
    return load
