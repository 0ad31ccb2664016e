"""Other machines, through Ray: an object on each of them that is asked from here, or functions spread over all.

Ray is imported by name and only when it is asked for, because it is a hundred megabytes that few need.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from openloop import __version__
from openloop.errors import SpecError

MARK = "openloop"  # a resource of Ray's: where some machines offer it, the others are left alone
PATIENCE_S = 10.0
AT_ONCE = 16  # calls that an object answers, the one that takes as long as the run included


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; `auto`: the one that this machine belongs to."""
    try:
        ray = import_module("ray")
    except ImportError:
        raise SpecError("--ray needs Ray: pip install 'openloop[ray]' on every machine") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            host, colon, port = address.rpartition(":")
            if colon and port.isdigit() and "/" not in host:  # Ray itself waits for minutes where nobody listens
                socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except Exception as error:  # of many kinds: unreachable, another version of Ray or Python, ...
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SpecError(
                f"no Ray cluster is found at {address!r} ({why}); start one: ray start --head, and on the other "
                "machines ray start --address=HOST:6379"
            ) from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


@dataclass(eq=False)
class Host:
    """An object on another machine."""

    name: str
    ray: Any
    actor: Any

    def ask(self, method: str, *args: Any) -> "Future[Any]":
        """Call a method of it; the answer fails when the machine is lost."""
        found: Future[Any] = getattr(self.actor, method).remote(*args).future()
        return found

    def end(self) -> None:
        """Let it go, whatever it does."""
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)


def hosts_on(ray: Any, kind: type, each: int) -> list[Host]:
    """So many objects of `kind` on every machine of the cluster, or on those that offer the resource `openloop`."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    marked = [node for node in nodes if node["Resources"].get(MARK)]
    nodes = sorted(marked or nodes, key=lambda node: (node["NodeName"], node["NodeID"]))
    nodes = [node for node in nodes for _ in range(each)]
    if not nodes:
        raise SpecError("the Ray cluster has no machine with a processor to send from")
    pinned = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    names = [str(node["NodeName"]) for node in nodes]
    remote = ray.remote(kind)
    return [
        Host(
            name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}",
            ray,
            remote.options(
                num_cpus=_reserved(node["Resources"]["CPU"] / each),
                max_concurrency=AT_ONCE,
                max_restarts=0,
                scheduling_strategy=pinned(node["NodeID"], soft=False),
            ).remote(__version__),
        )
        for place, (name, node) in enumerate(zip(names, nodes, strict=True))
    ]


def _reserved(cpus: float) -> float:
    """Of the processors that there are for each object: one to send with and one to read, or less."""
    return min(int(cpus), 2) or int(1000 * cpus) / 1000


def spread_over(ray: Any, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Answers to all calls as they come, each with the place of its call; a lost machine's are made elsewhere."""
    remote = ray.remote(num_cpus=1)(function)
    waiting = {remote.remote(*call): place for place, call in enumerate(calls)}
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            try:
                found = ray.get(done)
            except Exception as error:
                raise getattr(error, "cause", None) or error from None
            yield waiting.pop(done), found
    finally:
        for each in waiting:
            ray.cancel(each, force=True)
