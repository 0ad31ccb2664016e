"""Runs in, a calibration out; and what is known beforehand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openloop.calibrate.fit import Calibration, calibrate_traces
from openloop.calibrate.match import Limits
from openloop.calibrate.trace import Trace, read_traces
from openloop.errors import SpecError
from openloop.records import Run
from openloop.spec import suggest


def calibrate(
    runs: Sequence[str | Path | Run | Trace], known: str = "", tell: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Fit a model to runs, or to folders of them. `known` are limits that need not be found, as `max_tokens=2048`."""
    return calibrate_traces(read_traces(runs), *read_known(known), tell)


def read_known(text: str) -> tuple[Limits, frozenset[str]]:
    """`policy=chunked,max_tokens=2048` as limits, and which of them are given."""
    given: dict[str, Any] = {}
    names = list(Limits.__dataclass_fields__)
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = each.partition("=")
        if name not in names:
            raise SpecError(f"{name!r} is no limit that can be known{suggest(name, names)}")
        if name != "policy" and not (value.isdigit() and int(value) > 0):
            raise SpecError(f"{each!r}: {name} is a number of tokens or sequences, as {name}=2048")
        if name == "policy" and value not in ("chunked", "prefill-first", "static"):
            raise SpecError(f"{each!r}: the policy is chunked, prefill-first or static")
        given[name] = value if name == "policy" else int(value)
    return Limits(**given), frozenset(given)
