"""A queue and a schedule in, a run out."""

from typing import Any

import numpy as np

from openloop import __version__
from openloop.arrays import Floats, Ints
from openloop.arrivals import MOST_ARRIVALS, Arrivals, lasts_s, read_arrivals
from openloop.errors import SpecError
from openloop.records import Manifest, Run, checked, make_batch, make_lists, make_words
from openloop.seeds import stream
from openloop.sim.queues import QueueModel, Served, read_queue
from openloop.units import LONGEST_S, NS_PER_S, check_number, to_ns


def simulate(
    queue: QueueModel | str,
    arrivals: Arrivals | str,
    seconds: float,
    seed: int | np.random.Generator = 0,
    **facts: Any,
) -> Run:
    """Arrivals of so many seconds, or until a recording of them ends, through a queue, all of them to their end.

    A generator in place of a seed gives the arrivals first and then the service times. `facts` go into the manifest:
    prices, slo, notes.
    """
    queue = read_queue(queue) if isinstance(queue, str) else queue
    arrivals = read_arrivals(arrivals) if isinstance(arrivals, str) else arrivals
    check_number("the length of the run in seconds", seconds, 1e-6, LONGEST_S)
    seconds = min(seconds, lasts_s(arrivals))
    expected = arrivals.expected(seconds)
    if expected > MOST_ARRIVALS:
        raise SpecError(f"{expected:,.0f} arrivals are too many for one run, which holds {MOST_ARRIVALS:,}")
    if isinstance(seed, np.random.Generator):
        chosen = None
        due_s = arrivals.times(seconds, seed)
        served = queue.serve(due_s, seed)
    else:
        chosen = _seed(seed)
        due_s = arrivals.times(seconds, stream(chosen, "arrivals"))
        served = queue.serve(due_s, stream(chosen, "service"))
    manifest = Manifest(
        **{
            "source": "sim",
            "engine": "queue",
            "engine_version": __version__,
            "engine_flags": str(queue),
            "model": "none: a queue",
            "hardware": "none: virtual time",
            "replicas": queue.replicas,
            "arrivals": str(arrivals),
            "arrivals_cv": arrivals.cv,
            "arrivals_dispersion": arrivals.dispersion(seconds),
            "offered_rps": expected / seconds if expected > 0 else None,
            "window_ns": (0, to_ns(seconds)),
            "seed": chosen,
            **facts,
        }
    )
    return Run.of(checked(manifest), [make_batch(_columns(due_s, served, to_ns(seconds)))])


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise SpecError(f"the seed is {seed!r}; it is a whole number of zero or more")
    return int(seed)


def _columns(due_s: Floats, served: Served, end_ns: int) -> dict[str, Any]:
    latest = max((float(times.max()) for times in (served.sent_s, served.ended_s) if len(times)), default=0.0)
    if not latest <= LONGEST_S:
        raise SpecError(f"a request ends after {latest:.3g} s, over thirty years; make service times or load smaller")
    request = np.arange(len(due_s)) if served.request is None else served.request
    columns: dict[str, Any] = {
        "request_id": request,
        "scheduled_ns": np.minimum(_ns(due_s), end_ns - 1)[request],  # rounding must not move one out of the window
        "sent_ns": _ns(served.sent_s),
        "ended_ns": _ns(served.ended_s),
        "prompt_tokens": served.prompt_tokens,
        "output_tokens": served.output_tokens,
    }
    if served.hedge is not None:
        columns["attempt"] = served.hedge.astype(np.int32)
        columns["kind"] = make_words(served.hedge, ["first", "hedge"])
    if served.replica is not None and len(served.replica):
        columns["replica"] = make_words(served.replica, [str(each) for each in range(served.replica.max() + 1)])
    if served.token_s is not None and served.output_tokens is not None:
        columns["event_ns"] = make_lists("event_ns", _ns(served.token_s), served.output_tokens)
    return {name: values for name, values in columns.items() if values is not None}


def _ns(seconds: Floats) -> Ints:
    return np.rint(seconds * NS_PER_S).astype(np.int64)
