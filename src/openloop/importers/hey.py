"""hey's `-o csv`: a row per answer, in seconds, with the moment of sending as an offset from the start."""

import csv
from pathlib import Path

from openloop.importers.foreign import ENCODING, Call, Runs, begins, make_run
from openloop.units import to_ns

looks_like = begins("response-time,DNS+dialup,")


def read(path: Path) -> Runs:
    with path.open(encoding=ENCODING, newline="") as file:
        calls = [_call(row) for row in csv.DictReader(file)]
    yield make_run(
        "hey",
        calls,
        notes=[
            "the file lists answers only, and the first million of them: requests without one, as after a time-out, "
            "are missing from every share",
            "times are rounded to a tenth of a millisecond",
            "no tokens, only whole answers",
        ],
        arrivals="closed: users that wait for answers",
    )


def _call(row: dict[str, str]) -> Call:
    sent, code = to_ns(float(row["offset"])), int(row["status-code"])
    return Call(
        sent_ns=sent,
        ended_ns=sent + to_ns(float(row["response-time"])),
        status="ok" if 200 <= code < 400 else "error",
        http_status=code,
    )
