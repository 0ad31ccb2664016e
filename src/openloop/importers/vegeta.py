"""vegeta's results as `vegeta encode --to json` (one object per hit) or `--to csv` writes them."""

import csv
import re
from datetime import datetime
from pathlib import Path

from openloop.importers.foreign import ENCODING, NO_SCHEDULE, Call, JsonLines, Runs, make_run

CSV = re.compile(r"\d{18,20},\d{1,3},\d+,\d+,\d+,")


def looks_like(head: str) -> bool:
    return bool(CSV.match(head)) or (head.startswith("{") and '"bytes_out"' in head and '"attack"' in head)


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    with path.open(encoding=ENCODING, newline="") as file:
        objects = file.read(1) == "{"
        file.seek(0)
        if objects:
            hits = ((iso_ns(r["timestamp"]), r["code"], r["latency"], r.get("error") or "") for r in rows)
        else:
            hits = ((int(r[0]), int(r[1]), int(r[2]), r[5]) for r in csv.reader(file))
        calls = [_call(*hit) for hit in hits]
    notes = [NO_SCHEDULE, "no tokens, only whole answers", *rows.notes]
    yield make_run("vegeta", calls, notes=notes, dated=True)


def _call(sent_ns: int, code: int, took_ns: int, error: str) -> Call:
    ok = 200 <= code < 400
    status = "ok" if ok else "timeout" if "deadline exceeded" in error or "Timeout" in error else "error"
    return Call(
        sent_ns=sent_ns, ended_ns=sent_ns + took_ns, status=status, http_status=code or None, error=error or None
    )


def iso_ns(text: str) -> int:
    """A moment in ISO 8601 with up to nanoseconds, as nanoseconds since 1970."""
    found = re.fullmatch(r"(.+?:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)", text)
    if not found:
        raise ValueError(f"{text!r} is no moment in ISO 8601")
    moment = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    return int(moment.timestamp()) * 1_000_000_000 + int((found[2] or "0")[:9].ljust(9, "0"))
