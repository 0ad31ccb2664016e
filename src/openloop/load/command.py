"""From what a user wrote to a run: the arguments of `openloop run`, checked and put together."""

import http.client
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openloop.arrivals import read_arrivals
from openloop.distributions import read_distribution
from openloop.errors import SpecError
from openloop.load.address import Place, find, tls_context
from openloop.load.conductor import Load, Snapshot, drive
from openloop.load.targets import TARGETS
from openloop.records import Prices, Run
from openloop.terms import NUMBER
from openloop.workload import Synthetic

__all__ = ["default_folder", "run_load"]


def default_folder() -> Path:
    return Path(time.strftime("openloop-run-%Y%m%d-%H%M%S"))


def run_load(
    out: Path,
    watch: Callable[[Snapshot], None] | None = None,
    *,
    target: str,
    model: str | None,
    rate: float | None,
    arrivals: str | None,
    seconds: float,
    prompt: str,
    output: str,
    api: str,
    stream: bool,
    extra: str | None,
    header: Sequence[str],
    key_env: str,
    ca: str,
    insecure: bool,
    timeout: float,
    drain: float,
    workers: int,
    connections: int | None,
    closed: int | None,
    seed: int,
    price: float | None,
    slo: str | None = None,
    command: list[str] | None = None,
) -> Run:
    if sum(each is not None for each in (arrivals, rate, closed)) != 1:
        raise SpecError("say when requests are due: --rate 20 or --arrivals gamma:rate=20,cv=2, and not both")
    process = read_arrivals(arrivals or f"poisson:rate={1.0 if rate is None else rate!r}")
    workload = Synthetic(_lengths("--prompt", prompt), _lengths("--output", output))
    place = find(target, ca, insecure=insecure)
    headers = _headers(header)
    key = os.environ.get(key_env, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise SpecError(f"the key in {key_env} has characters that no key has")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    name = model or _only_model(place, headers)
    asked = TARGETS[api](place.host, name, place.base, headers, stream, _extra(extra))
    cap = f"an experiment with at most {connections} connections: requests waited for one, and that counts"
    facts = {
        "target": target,
        "model": name,
        "command": command,
        "slo": slo,
        "prices": None if price is None else Prices(per_hour=price),
        "notes": (cap,) if connections else (),
    }
    load = Load(place, asked, process, workload, seconds, seed, timeout, drain, workers, connections, closed, facts)
    return drive(load, out, watch)


def _lengths(flag: str, text: str) -> Any:
    try:
        return read_distribution(text, NUMBER)
    except SpecError as error:
        raise SpecError(f"{flag}: {error}") from None


def _headers(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not colon or not name.strip() or not (each.isascii() and each.isprintable()):
            raise SpecError(f"--header {each!r} is none; write it as 'Name: value'")
        found[name.strip()] = value.strip()
    return found


def _extra(text: str | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text) if text else {}
    except msgspec.MsgspecError as error:
        raise SpecError(f"--extra {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SpecError(f'--extra {text!r} is no JSON object, such as {{"ignore_eos": true}}')
    return found


def _only_model(place: Place, headers: dict[str, str]) -> str:
    """The model of a server that has one."""
    address, context = place.address, tls_context(place.address)
    connection = (
        http.client.HTTPSConnection(address.name, address.port, timeout=10, context=context)
        if context
        else http.client.HTTPConnection(address.host, address.port, timeout=10)
    )
    try:
        connection.request("GET", f"{place.base}/v1/models", headers={"Host": place.host, **headers})
        found = msgspec.json.decode(connection.getresponse().read())
        names = [str(each["id"]) for each in found["data"]]
    except (OSError, http.client.HTTPException, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise SpecError(f"{place.host} does not say which models it has ({error}); name one with --model") from None
    finally:
        connection.close()
    if len(names) != 1:
        raise SpecError(f"{place.host} has {len(names)} models ({', '.join(names[:5])}); choose one with --model")
    return names[0]
