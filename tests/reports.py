"""Runs and frontiers to report on."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from openloop.frontier.folder import SweepAsked
from openloop.records import SERVER, Manifest, Prices, Run, TimedEvent, make_batch, make_lists, make_words
from openloop.sim import simulate

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><svg onload=alert(1)>'\"`|**[x](javascript:alert(1))"
SLO = "ttft<=400ms, tpot<=40ms"
MODEL = "replica:prompt=lognormal(median=500,sigma=0.6),output=64,prefill=0.1ms,gap=exponential(20ms),crowding=4%"


def fleet_run(requests: int = 1200, seed: int = 1, names: tuple[str, ...] = ("r0", "r1", "r2"), **facts: Any) -> Run:
    """Three replicas, the last of them slow; failures, events, prices and the server's own figures."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(0.05, requests))
    replica = np.arange(requests) % len(names)
    first = due + rng.gamma(2.0, 0.05, requests) * np.where(replica == len(names) - 1, 4.0, 1.0)
    lengths = rng.integers(2, 60, requests)
    gaps = rng.exponential(0.03, int(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    gaps[starts] = 0.0
    steps = np.cumsum(gaps)
    tokens = np.repeat(first - steps[starts], lengths) + steps
    ok = rng.random(requests) > 0.02
    ended = tokens[starts + lengths - 1] + 0.001
    columns = {
        "request_id": np.arange(requests),
        "scheduled_ns": _ns(due),
        "sent_ns": _ns(due + 40e-6),
        "ended_ns": _ns(ended),
        "event_ns": make_lists("event_ns", _ns(tokens), lengths),
        "status": np.where(ok, "ok", "error").tolist(),
        "error": [None if each else facts.get("model", "it broke") for each in ok],
        "replica": make_words(replica, names),
        "workload_class": make_words(replica % 2, ("chat", names[-1])),
        "prompt_tokens": np.full(requests, 100, np.int32),
    }
    manifest: dict[str, Any] = {
        "source": "test",
        "model": "m",
        "slo": SLO,
        "seed": seed,
        "command": ["openloop", "run", "--seed", str(seed)],
        "prices": Prices(per_hour=4.0),
        "events": (TimedEvent(at_ns=int(due[-1] * 5e8), kind="deploy", detail="new weights"),),
        **facts,
    }
    moments = np.arange(0, due[-1], 0.5)
    readings = [
        (int(t * 1e9), names[0], name, 0.5 + 0.4 * float(np.sin(t))) for t in moments for name in ("kv_use", "queue")
    ]
    return Run.of(Manifest(**manifest), [make_batch(columns)], SERVER.of(readings))


def _ns(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
    return pa.array((seconds * 1e9).astype(np.int64))


def hostile_run() -> Run:
    """Whatever text a run may carry tries to become part of the page."""
    return fleet_run(
        names=("r0", "r1", HOSTILE),
        model=HOSTILE,
        target=HOSTILE,
        engine_flags=HOSTILE,
        notes=(HOSTILE,),
        command=["openloop", HOSTILE],
        events=(TimedEvent(at_ns=10**9, kind=HOSTILE, detail=HOSTILE),),
    )


def write_frontier(
    folder: Path,
    rates: tuple[float, ...] = (2, 5, 7, 9, 12),
    seconds: float = 150.0,
    model: str = MODEL,
    slo: str = "ttft<=1s, tpot<=40ms",
) -> Path:
    """A sweep over a modelled system, as openloop sweep leaves it."""
    for rate in rates:
        run = simulate(model, f"poisson:rate={rate}", seconds, int(rate), slo=slo, prices=Prices(per_hour=3.0))
        run.save(folder / "points" / f"{rate:g}-1")
    asked = SweepAsked(
        source="sim",
        slo=slo,
        target=0.95,
        rates=[float(rate) for rate in rates],
        seconds=seconds,
        repeat=1,
        precision=0.05,
        scenario={"for": f"{seconds:g}s"},
        current=4.0,
        stopped="all rates were measured",
    )
    (folder / "frontier.json").write_bytes(msgspec.json.encode(asked))
    return folder


def look_up(data: Any, key: str) -> Any:
    """The value at a dotted key, where a name may itself have dots."""
    if not key:
        return data
    if isinstance(data, list):
        head, _, rest = key.partition(".")
        return look_up(data[int(head)], rest)
    for name in sorted(data, key=len, reverse=True):
        if key == name or key.startswith(f"{name}."):
            return look_up(data[name], key[len(name) + 1 :])
    raise KeyError(key)
