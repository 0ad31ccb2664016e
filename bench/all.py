"""Run all benches, and write what they found into the table of docs/performance.md.

    python bench/all.py [--quick] [NAME...]

A bench prints its headline as `=> what | ours | against what | ratio | aim`. Peers that are not installed are left out;
`bench/load.py --help` says how to name them, and what OPENLOOP_PEERS holds is handed to it; OPENLOOP_SGLANG is a Python
that has the sglang router.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parent
PAGE = HOME.parent / "docs" / "performance.md"
BENCHES = {  # slow ones last, and what makes them quick
    "startup": "",
    "queues": "",
    "sim": "",
    "fleet": "",
    "view": "",
    "scale": "--for 2",
    "gating": "--rounds 1",
    "score": "--large 0",
    "proxy": "--alone",
    "load": "--rates 100",
    "compare": "--pairs 200",
    "knee": "--systems 40",
    "tune": "--seeds 2",
}
LONGEST_S = 3600  # that a bench may take
MARKS = r"(<!-- measured -->\n).*?(<!-- end -->)"


def rows_of(name: str, arguments: list[str]) -> list[str]:
    print(f"{name} {shlex.join(arguments)}", flush=True)
    command = [sys.executable, str(HOME / f"{name}.py"), *arguments]
    try:
        told = subprocess.run(command, stdout=subprocess.PIPE, timeout=LONGEST_S, check=False).stdout.decode()
    except subprocess.TimeoutExpired as late:
        told = f"{(late.stdout or b'').decode()}\n=> not done after {LONGEST_S} s | | | |"
    print(told, flush=True)
    found = [line[3:] for line in told.splitlines() if line.startswith("=> ")]
    return [f"| {row} | `bench/{name}.py` |" for row in found] or [f"| `bench/{name}.py` failed | | | | | |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="these only; by default all")
    parser.add_argument("--quick", action="store_true", help="smaller, and less sure")
    asked = parser.parse_args()
    before = re.search(MARKS, PAGE.read_text(), flags=re.DOTALL)
    kept = before[0].splitlines()[5:-1] if before else []
    for name in asked.names or BENCHES:
        arguments = shlex.split(BENCHES[name]) if asked.quick else []
        if name == "load":
            arguments += shlex.split(os.environ.get("OPENLOOP_PEERS", ""))
        kept = [row for row in kept if f"`bench/{name}.py`" not in row] + rows_of(name, arguments)
    kept.sort(key=lambda row: list(BENCHES).index(row.rpartition("bench/")[2].partition(".py")[0]))
    table = "\n".join(["| what | openloop | against | ratio | aim | by |", "|---|---|---|---|---|---|", *kept])
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    text = f"<!-- measured -->\nOn {machine}:\n\n{table}\n<!-- end -->"
    PAGE.write_text(re.sub(MARKS, lambda _: text, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
