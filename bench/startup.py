"""How long does somebody wait who calls openloop for the first time?

    python bench/startup.py

`openloop --help`, beside a Python that does nothing: the aim is 0.3 s, for a command line that one asks for help must
not load a numerical library first. And commands that simulate, with nothing compiled yet, beside the same with all of
it on disk: the aim is 5 s. Processor time, the least of several runs, which is what a user waits on a quiet machine.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import openloop

SOURCE = str(Path(openloop.__file__).parent.parent)  # also from another folder
HELP_S, FIRST_S = 0.3, 5.0
FLEET = "model: 8b\ngpu: h100\n"
SLO = ["--slo", "ttft<=1s, tpot<=40ms", "--for", "1m"]
FIRST = {
    "one replica": ["sim", "one.yaml", "--rate", "4", *SLO],
    "a fleet with a router": ["sim", "four.yaml", "--rate", "16", *SLO],
    "a fleet with prefix caches": ["sim", "four.yaml", "--rate", "4", "--workload", "sessions:system=500", *SLO],
    "a queue": ["queue", "fcfs:service=exponential(100ms),servers=4", "--rate", "20", "--slo", "e2e<=1s"],
    "serve --engine": ["serve", "--engine", "four.yaml", "--port", "0"],
}


def cpu_seconds(arguments: list[str], runs: int, home: Path | None = None, *, cold: bool = False) -> float:
    """Of the quickest run; of a server, until it says where it is."""
    times = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as empty:
            told = {"NUMBA_CACHE_DIR": empty if cold else str(home), "PYTHONPATH": SOURCE} if home else {}
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with subprocess.Popen(
                [sys.executable, *arguments], cwd=home, env={**os.environ, **told}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            ) as child:  # fmt: skip
                assert child.stdout is not None
                said = ""
                for line in child.stdout:
                    said += line
                    if "serve" in arguments and re.search(r"http://\S+", line):
                        child.terminate()
            if child.returncode > 1:
                sys.exit(said)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a tool that is installed does not read its source each time
    nothing, helping = cpu_seconds(["-c", ""], 5), cpu_seconds(["-m", "openloop", "--help"], 5)
    print(
        f"=> openloop --help | {helping:.3f} s of CPU | Python that does nothing: {nothing:.3f} s"
        f" | {helping / nothing:.1f}x | under {HELP_S} s"
    )
    late = helping > HELP_S
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "one.yaml").write_text(FLEET)
        (home / "four.yaml").write_text(FLEET + "replicas: 4\nrouting: least-requests\n")
        for what, arguments in FIRST.items():
            command = ["-m", "openloop", *arguments]
            first, again = cpu_seconds(command, 2, home, cold=True), cpu_seconds(command, 3, home)
            late |= first > FIRST_S
            print(
                f"=> {what}, nothing compiled yet | {first:.2f} s of CPU | the same again: {again:.2f} s"
                f" | {first / again:.1f}x | under {FIRST_S:g} s",
                flush=True,
            )
    sys.exit(late)


if __name__ == "__main__":
    main()
