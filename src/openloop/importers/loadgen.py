"""MLPerf LoadGen's `mlperf_log_trace.json` (log setting `enable_trace`): a sample's span starts when it was due."""

import re
from pathlib import Path

from openloop.importers.foreign import ENCODING, Call, Runs, begins, make_run

# The file is not always JSON as a whole: keys of logged strings are quoted twice. Samples are.
SAMPLE = re.compile(r'"name":"Sample".*?"ph":"b".*?"ts":([\d.]+).*?"issue_start_ns":(\d+),"complete_ns":(\d+)')
looks_like = begins('{"traceEvents":[', '"GenerateLoadableSets"')


def read(path: Path) -> Runs:
    calls = []
    with path.open(encoding=ENCODING) as file:
        for line in file:
            if found := SAMPLE.search(line):
                whole, _, part = found[1].partition(".")
                due_ns = int(whole) * 1000 + int(part.ljust(3, "0"))
                calls.append(Call(due_ns + int(found[2]), due_ns, due_ns + int(found[3])))
    yield make_run(
        "LoadGen", calls, notes=["the trace keeps the end of an answer and not its tokens", "it knows no failures"]
    )
