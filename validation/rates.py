"""Real engines at rates from idle to overload, kept in a folder: what calibration is fitted to and held against.

    python -m validation.rates vllm --vllm PYTHON --model FOLDER [--chunked | --whole] -o OUT
    python -m validation.rates llama --server BINARY --gguf FILE --model FOLDER -o OUT

A short overload says what the engine can do; rates are shares of that. A run that is there is not measured again.
"""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openloop as ol
from validation.engines import Engine, arguments, drive, engine, noise, stay_off_the_engines_core
from validation.llama_server import EXTRA
from validation.vllm_server import ENVIRONMENT, NO_CACHE, SAMPLING

SHARES = (0.15, 0.35, 0.55, 0.75, 0.9, 1.05, 1.25)
ROUNDS = 3  # a machine that others use is not the same for long: each rate in parts, in turn with the others
SECONDS = 15
PROBE_SECONDS = 10
WORKLOAD = "synthetic:prompt=lognormal(median=150,sigma=0.8),output=lognormal(median=30,sigma=0.6)"
SLO = "ttft<=500ms, tpot<=40ms"
SLOTS = 8
HTTP_THREADS = 512  # llama-server has a thread for each open connection, and by default few: the others wait unseen
VLLM = {
    "chunked": (*NO_CACHE, "--max-num-batched-tokens", "256", "--max-num-seqs", "16"),
    "whole": (
        *NO_CACHE, "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-num-seqs", "16",
    ),
}  # fmt: skip


@contextlib.contextmanager
def precedence(server: Engine, lock: Path | None) -> Iterator[None]:
    """Where people share a machine, one measures at a time, and the others wait. Linux shares processors between
    sessions before it looks at the priorities within them, so it is the sessions' priority that counts."""
    with contextlib.ExitStack() as stack:
        if lock is not None:
            fcntl.flock(stack.enter_context(lock.open("a")), fcntl.LOCK_EX)
        for pid in (server.pid, os.getpid()):
            group = Path(f"/proc/{pid}/autogroup")
            with contextlib.suppress(OSError):
                group.write_text("-20")
                stack.callback(group.write_text, "0")
        yield


def collect(server: Engine, out: Path, lock: Path | None, probe: float, **flags: Any) -> None:
    """Runs `rate-0.1`, `rate-0.3` and so on: shares of what a short overload completed."""
    given = {"target.model": "tiny", "workload": WORKLOAD, "slo": SLO, "drain": "60s", **flags}
    note = out / "capacity.txt"
    if not note.exists():
        with precedence(server, lock):
            drive(server, out / "warm", **given, arrivals="poisson:rate=3", **{"for": "4s"})
            run = drive(
                server, out / "probe", **given, arrivals=f"poisson:rate={probe}", **{"for": f"{PROBE_SECONDS}s"}
            )
        ended = [row["ended_ns"] / 1e9 for row in run.head(1 << 30) if row["status"] == "ok"]
        begin, end = 2.0, max(ended) - 1.0
        note.write_text(f"{sum(begin < each < end for each in ended) / (end - begin)}\n")
    capacity = float(note.read_text())
    print(f"{out}: completes {capacity:.1f}/s in overload", flush=True)
    for number, (turn, share) in enumerate(itertools.product(range(1, ROUNDS + 1), SHARES)):
        folder = out / f"rate-{share:g}-{turn}"
        if folder.exists():
            continue
        with precedence(server, lock), noise(server) as around:
            how = {"arrivals": f"poisson:rate={share * capacity:.3f}", "for": f"{SECONDS}s", "seed": 100 + number}
            score = ol.score(drive(server, folder, **given, **how))
        (folder / "noise.txt").write_text(f"{around}\n")
        assert score.ttft_s is not None
        assert score.tpot_s is not None
        print(
            f"{share:g}: {score.offered_rps:.1f}/s, ttft {score.ttft_s.p50:.3f} / {score.ttft_s.p99:.3f}, "
            f"tpot {score.tpot_s.p50:.4f} / {score.tpot_s.p99:.4f}, {around}",
            flush=True,
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("what", choices=["vllm", "llama"])
    parser.add_argument("--vllm", help="a Python that can import vllm")
    parser.add_argument("--server", help="the program llama-server")
    parser.add_argument("--gguf", help="a small model")
    parser.add_argument("--model", required=True, help="a folder with the model and its tokenizer")
    parser.add_argument("--prefill", choices=[*VLLM], default="chunked")
    parser.add_argument("--lock", type=Path, help="a file to hold while measuring")
    given = parser.parse_args()
    stay_off_the_engines_core()
    log, common = given.out / "engine.log", {"tokenizer": given.model}
    if given.what == "vllm":
        command = [given.vllm, "-m", "vllm.entrypoints.cli.main", "serve", given.model, "--served-model-name", "tiny"]
        command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "4096"]
        command += ["--distributed-executor-backend", "uni", *VLLM[given.prefill]]
        with engine(command, log, env=ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}) as server:
            collect(server, given.out, given.lock, 60, **common, **{"target.extra": SAMPLING})
    else:
        command = [given.server, "-m", given.gguf, *f"-t 1 -c 32768 -np {SLOTS} -cb --metrics --alias tiny".split()]
        command += ["--threads-http", str(HTTP_THREADS)]
        with engine(command, log) as server:
            collect(server, given.out, given.lock, 40, **common, **{"target.extra": EXTRA})


if __name__ == "__main__":
    main()
