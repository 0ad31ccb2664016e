"""Whatever bytes say, they are read or refused with a sentence: fuzzing that is guided by coverage.

    pip install atheris
    python -m validation.fuzz [slo] [chat] ... [--seconds 60] [--keep FOLDER]

Each reader has a process of its own, which begins with tests/corpus and the samples of the tests and makes up what
leads to code that nothing has led to before. The first input that is neither read nor refused ends the script. With
--keep, up to 12 of the small inputs that each led somewhere else are put into FOLDER: tests/corpus is made so, and
`tests/test_fuzz.py` reads all of it again in every build.
"""

# ruff: noqa: PLC0415  the fuzzer follows what is imported after it has begun

import argparse
import contextlib
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "tests" / "corpus"
SAMPLES = ROOT / "tests" / "importers" / "files"
MOST_KEPT, LARGEST_KEPT = 12, 8000

Reader = Callable[[bytes], object]


def readers() -> dict[str, Reader]:
    """By name: what is to read any bytes, or raise an error of openloop's own."""
    import openloop as ol
    from openloop.arrivals import read_arrivals
    from openloop.calibrate import read_known
    from openloop.distributions import read_distribution
    from openloop.load.prometheus import read_figures
    from openloop.load.scenario import read_scenario
    from openloop.load.targets import Chat, Completions, Messages, Responses
    from openloop.persistence import read_hedge, read_retry
    from openloop.proxy.config import read_proxy
    from openloop.quality import read_gating
    from openloop.routing import read_routing
    from openloop.sim.fleet import read_fleet
    from openloop.terms import NUMBER
    from openloop.workload import read_source

    texts: dict[str, Callable[[str], object]] = {
        "slo": ol.parse_slo,
        "arrivals": read_arrivals,
        "distribution": partial(read_distribution, value=NUMBER),
        "workload": read_source,
        "retry": read_retry,
        "hedge": read_hedge,
        "gate": read_gating,
        "routing": read_routing,
        "known": read_known,
        "prometheus": read_figures,
    }
    files: dict[str, tuple[str, Callable[[Path], object]]] = {
        "scenario": ("scenario.yaml", read_scenario),
        "fleet": ("fleet.yaml", read_fleet),
        "proxy": ("proxy.yaml", read_proxy),
        "json": ("result.json", _score),
        "lines": ("result.jsonl", _score),
        "histogram": ("result.hlog", _score),
        "manifest": ("run/run.json", lambda path: _score(path.parent)),
        "parquet": ("run/requests.parquet", lambda path: _score(path.parent)),
        "spool": ("run/requests.arrows", lambda path: _score(path.parent)),
    }
    streams = {"chat": Chat, "completions": Completions, "messages": Messages, "responses": Responses}
    found: dict[str, Reader] = {name: partial(_text, read) for name, read in texts.items()}
    found |= {name: partial(_file, file, read) for name, (file, read) in files.items()}
    found |= {name: partial(_stream, kind) for name, kind in streams.items()}
    return found | {"events": _events}


def refusals(name: str) -> tuple[type[Exception], ...]:
    """What a reader may raise; of what servers say, its caller makes a note."""
    from openloop.errors import OpenloopError
    from openloop.load.wire import WireError
    from openloop.proxy.caches import NONSENSE

    of_servers: dict[str, tuple[type[Exception], ...]] = {"prometheus": (ValueError,), "events": NONSENSE}
    return of_servers.get(name, (OpenloopError, WireError))


def _text(read: Callable[[str], object], data: bytes) -> None:
    read(data.decode(errors="replace"))


def _file(name: str, read: Callable[[Path], object], data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / name
        if name.startswith("run/"):
            shutil.copytree(_whole_run(), path.parent)
            if name.endswith(".arrows"):
                (path.parent / "requests.parquet").unlink()
        path.write_bytes(data)
        read(path)


def _score(path: Path) -> None:
    import openloop as ol

    run = ol.load(path)
    run.validate()
    ol.score(run, "ttft<=1s")


@cache
def _whole_run() -> Path:
    from tests.runs import row, write_run

    rows = [row(i, 0.1 * i, [0.1, 0.2, 0.3], prompt_tokens=5, workload_class="chat") for i in range(40)]
    return write_run(Path(tempfile.mkdtemp()) / "run", rows, batches=3, slo="ttft<=1s", model="m")


def _events(data: bytes) -> None:
    from openloop.routing.blocks import Blocks, read_events

    blocks = Blocks()
    for event in read_events(data)[1]:
        blocks.take(event)


def _stream(kind: Any, data: bytes) -> None:
    """An answer says the same however it is cut into reads (the first byte says how it is), its words kept or not."""
    from openloop.load.wire import joined

    answer, step = data[1:], 1 + (data[0] if data else 0)
    blocks = [answer[at : at + step] for at in range(0, len(answer), step)] or [b""]
    target = kind("host", "m", keep_text=True)
    whole = target.read(*joined([answer], [0]))
    cut = target.read(*joined(blocks, range(len(blocks))))
    assert (whole.status, whole.text, whole.output_tokens) == (cut.status, cut.text, cut.output_tokens), "cuts matter"
    skimmed = kind("host", "m").read(*joined(blocks, range(len(blocks))))
    assert (skimmed.status, skimmed.error, skimmed.event_ns) == (cut.status, cut.error, cut.event_ns), "words matter"


def _spool() -> bytes:
    import openloop as ol

    folder = Path(tempfile.mkdtemp()) / "run"
    writer = ol.RunWriter(folder, ol.Manifest(source="test", slo="ttft<=1s"))
    for batch in ol.open_run(_whole_run()).batches():
        writer.append(batch)
    writer.close()
    return (folder / "requests.arrows").read_bytes()


def seeds(name: str) -> list[bytes]:
    """What a reader begins with, besides the corpus."""
    from openloop.load.scenario import STARTER
    from tests.test_fuzz import STREAM

    if name in ("json", "lines", "histogram"):
        kinds = {"json": ".json", "lines": ".jsonl", "histogram": ".hlog"}
        return [each.read_bytes() for each in SAMPLES.rglob(f"*{kinds[name]}") if each.stat().st_size < 20_000]
    if name in ("chat", "completions", "messages", "responses"):
        return [b"\x05" + STREAM]
    if name in ("manifest", "parquet"):
        return [(_whole_run() / {"manifest": "run.json", "parquet": "requests.parquet"}[name]).read_bytes()]
    if name == "spool":
        return [_spool()]
    if name == "events":
        stored = ["BlockStored", [7], None, [1, 2, 3, 4], 4, None]
        return [msgspec.msgpack.encode([1.5, [stored, ["BlockRemoved", [7]], {"type": "AllBlocksCleared"}]])]
    fleet = b"model: 8b\ngpu: h100\nreplicas: 2\nmemory: {blocks: 100, block: 16}\n"
    proxy = b"replicas: [{url: 'http://127.0.0.1:1', name: a}]\nrouting: prefix-aware\nslo: ttft<=1s\n"
    return {
        "slo": [b"ttft<=500ms, tpot<=40ms", b"p99 ttft<=1s; quality", b"deadline: 1s + 50ms * i"],
        "arrivals": [b"gamma:rate=12,cv=2", b"poisson:rate=5", b"steps:rate=1,to=9"],
        "distribution": [b"lognormal(median=40,sigma=0.35)", b"uniform(1,5)"],
        "workload": [b"synthetic:prompt=uniform(1,9),output=5", b"sessions:turns=3,think=2s"],
        "retry": [b"retry:most=2,on=error+shed"],
        "hedge": [b"hedge:after=p95,budget=10%"],
        "gate": [b"json", b"regex:^a", b"length:min=1,max=9"],
        "known": [b"batching=chunked,max_tokens=2048", b"max_sequences=16"],
        "routing": [b"prefix-aware:lead=4", b"power-of-two"],
        "prometheus": [b'vllm:num_requests_waiting{engine="0"} 3\n', b"llamacpp:requests_deferred 1\n"],
        "scenario": [STARTER.encode()],
        "fleet": [fleet],
        "proxy": [proxy],
    }.get(name, [b""])


def fuzz(name: str, corpus: Path, seconds: int) -> None:
    """In a process of its own, which the fuzzer ends."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["openloop"], exclude=["openloop.score.kernel"]):  # which numba compiles
        reader, refused = readers()[name], refusals(name)

    def once(data: bytes) -> None:
        with contextlib.suppress(*refused):
            reader(data)

    limits = [f"-max_total_time={seconds}", "-max_len=32768", "-timeout=20", "-rss_limit_mb=3000"]
    told = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([name, str(corpus), *limits, *told], once)
    atheris.Fuzz()


def explore(name: str, seconds: int, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        known = (each.read_bytes() for each in sorted((CORPUS / name).glob("*")))
        for number, data in enumerate(itertools.chain(seeds(name), known)):
            (corpus / f"seed-{number}").write_bytes(data)
        call = [sys.executable, "-m", "validation.fuzz", "--one", name, str(corpus), "--seconds", str(seconds)]
        done = subprocess.run(call, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT)
        if done.returncode:
            told = [line for line in done.stderr.splitlines() if not line.startswith(("INFO", "WARNING", "stat:"))]
            found = [shutil.copy(each, tempfile.mkdtemp()) for each in corpus.parent.glob("crash-*")]
            raise SystemExit("\n".join([done.stdout[-3000:], *told, f"{name}: neither read nor refused: {found}"]))
        tried = next((line.split()[-1] for line in done.stderr.splitlines() if "executed_units" in line), "0")
        made = [each for each in corpus.iterdir() if not each.name.startswith("seed-")]
        print(f"{name}: {int(tried):,} inputs, {len(made):,} led somewhere new; all read or refused", flush=True)
        if keep is not None:
            small = sorted(each for each in made if each.stat().st_size <= LARGEST_KEPT)
            (keep / name).mkdir(parents=True, exist_ok=True)
            for each in small[:MOST_KEPT]:  # names are hashes: these are any
                shutil.copy(each, keep / name / each.name[:12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="readers; all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    parser.add_argument("--keep", type=Path, help="a folder for some of the inputs that were made up")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        fuzz(given.one, Path(given.names[0]), given.seconds)
        return
    for name in given.names or readers():
        explore(name, given.seconds, given.keep)


if __name__ == "__main__":
    main()
