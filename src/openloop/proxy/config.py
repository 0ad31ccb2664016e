"""proxy.yaml: who stands behind the proxy, and what it does with requests."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from openloop.admission import Admission, Deadline, read_admission
from openloop.errors import SpecError
from openloop.persistence import Hedge, Retry, read_hedge, read_retry
from openloop.routing import Policy, read_routing
from openloop.slo import SLO, Objectives, read_slo
from openloop.spec import Strict, convert, read_yaml, saying_where
from openloop.units import parse_listen, parse_seconds


class ReplicaSpec(Strict, frozen=True):
    url: str
    name: str | None = None  # null: its host and port
    drain: bool = False  # it finishes what it has, and gets nothing new
    key_env: str | None = None  # the variable that holds its key; null: what the client shows is passed on
    kv_events: str | None = None  # where it publishes what its cache holds; null: it is guessed from what was sent
    kv_replay: str | None = None  # where it tells again what was missed

    def called(self) -> str:
        return self.name or urlsplit(self.url).netloc

    def key(self) -> str | None:
        return _secret(self.key_env)


class HeaderNames(Strict, frozen=True, rename="kebab"):
    """Which headers of a request say what it is."""

    workload_class: str = "x-workload-class"
    session: str = "x-session-id"
    tenant: str = "x-tenant"


class ProxySpec(Strict, frozen=True):
    replicas: tuple[ReplicaSpec | str, ...]
    listen: str = "127.0.0.1:8000"
    routing: str = "least-requests"
    admission: str | None = None
    retry: str | int | None = None
    hedge: str | None = None
    slo: str | dict[str, Any] | None = None
    timeout: str = "10m"  # of an attempt, as a whole
    health: str | None = "/health"  # null: replicas are not asked
    health_every: str = "2s"
    token_env: str | None = None  # the variable that holds the token which clients must show
    headers: HeaderNames = HeaderNames()
    largest_body: int = 16 << 20  # bytes
    largest_header: int = 16 << 10
    slowest: str = "10s"  # head and body of a request must be here by then
    drain: str = "30s"  # what is in flight has so long to end when the proxy is stopped
    error_texts: bool = False  # what a replica says when it refuses may quote the prompt
    run: str | None = None  # folder of records and decisions
    model: str | None = None  # facts for the manifest
    hardware: str | None = None

    def members(self) -> list[ReplicaSpec]:
        return [ReplicaSpec(url=each) if isinstance(each, str) else each for each in self.replicas]

    def address(self) -> tuple[str, int]:
        return parse_listen(self.listen)

    def policy(self) -> Policy:
        return read_routing(self.routing)

    def admits(self) -> Admission | None:
        found = None if self.admission is None else read_admission(self.admission)
        if isinstance(found, Deadline):
            raise SpecError("admission deadline needs a model of the replica; take in-flight, queue or bucket")
        return found

    def retries(self) -> Retry | None:
        return None if self.retry is None else read_retry(str(self.retry))

    def hedges(self) -> Hedge | None:
        return None if self.hedge is None else read_hedge(self.hedge)

    def objectives(self) -> Objectives:
        """Without an SLO, whatever is answered counts."""
        found = Objectives(SLO(())) if self.slo is None else read_slo(self.slo)
        if found.default is None:
            raise SpecError("slo: traffic may be of no class or of any; give a default besides the classes")
        return found

    def token(self) -> str | None:
        return _secret(self.token_env)


def read_proxy(what: str | Path | dict[str, Any]) -> ProxySpec:
    """A proxy.yaml, or what stands in one; whatever is wrong in it is one sentence."""
    where = "the proxy" if isinstance(what, dict) else str(what)
    found = convert(what if isinstance(what, dict) else read_yaml(Path(what)), ProxySpec, where)
    with saying_where(where):
        _check(found)
    return found


def _check(found: ProxySpec) -> None:
    if not found.replicas:
        raise SpecError("there are no replicas; name at least one, such as replicas: [http://127.0.0.1:8001]")
    for each in found.members():
        _check_address(each.url)
    names = [each.called() for each in found.members()]
    for each in found.members():
        for place in (each.kv_events, each.kv_replay):
            if place is not None and not re.fullmatch(r"tcp://[^*]+:\d+|ipc://.+", place):
                raise SpecError(f"{place!r} is nowhere to listen to events; write it as tcp://127.0.0.1:5557")
        if not each.called().isascii() or not each.called().isprintable():
            raise SpecError(f"a replica is called {each.called()!r}; take plain letters, for it is also in a header")
        if names.count(each.called()) > 1:
            raise SpecError(f"two replicas are called {each.called()!r}; give each a name of its own")
        each.key()
    if found.health is not None and not found.health.startswith("/"):
        raise SpecError(f"health is {found.health!r}; write a path such as /health, or null")
    for name, least in (("largest_body", 1024), ("largest_header", 256)):
        if getattr(found, name) < least:
            raise SpecError(f"{name} is {getattr(found, name)}; it is a number of bytes, at least {least}")
    for name in ("timeout", "health_every", "slowest"):
        if not parse_seconds(getattr(found, name)) > 0:
            raise SpecError(f"{name} is {getattr(found, name)}; it is more than nothing, such as 10s")
    parse_seconds(found.drain)
    listens = "cache" in found.policy().sees and any(each.kv_events for each in found.members())
    if listens and importlib.util.find_spec("zmq") is None:
        raise SpecError("kv_events needs the package pyzmq: pip install 'openloop[kv]'")
    for read in (found.address, found.admits, found.retries, found.hedges, found.objectives, found.token):
        read()


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.port == 0
    except ValueError:
        wrong = True
    if "@" in (url if wrong else parts.netloc):
        raise SpecError("the address of a replica holds a password; give it by key_env, the name of a variable")
    if wrong:
        raise SpecError(f"{url!r} is no address of a replica; write it as http://host:8001")


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    found = os.environ.get(variable, "")
    if not found or not (found.isascii() and found.isprintable()):
        raise SpecError(f"the variable {variable} holds no key that can be sent; set it, or leave the line out")
    return found
