"""The same requests by openloop and by `vllm bench serve`, on one server: where they agree and where they do not."""

import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Fixed
from openloop.load.address import find_place
from openloop.load.exchange import measure_scale
from openloop.load.targets import Chat
from openloop.report.chart import Chart
from openloop.workload import Prompts, Scale, Synthetic, Words, Workload, word_tokens
from validation.engines import Engine, Noise, fresh, ms, quietest, rows, save, table
from validation.vllm_server import ENVIRONMENT, NO_CACHE, SAMPLING, SLO, Setup

T = TypeVar("T")

PROMPT, OUTPUT = 100, 32


@dataclass
class Seen:
    """What one run shows: times in seconds, as the tool reports them and as the server does."""

    tool: str
    requests: int
    ttft_p50: float
    ttft_p99: float
    ttft_mean: float
    tpot_p50: float
    tpot_mean: float
    goodput: float
    due_s: list[float]
    ttft_s: list[float]
    from_due_s: list[float]
    role_s: list[float]  # from the first chunk to the first token, where that is known
    goodput_from_sent: float = math.nan
    prompt_tokens: float = math.nan
    server_ttft_mean: float = math.nan
    server_queue_mean: float = math.nan

    @property
    def beyond_server(self) -> float:
        """What a client adds: the mean it sees less the mean that the server does, of the same requests."""
        return self.ttft_mean - self.server_ttft_mean


@dataclass(frozen=True)
class Bench:
    """The same requests by either tool."""

    setup: Setup
    server: Engine
    words: Words

    @classmethod
    def of(cls, setup: Setup, server: Engine) -> "Bench":
        vocabulary, scale = word_tokens(setup.model)
        place = find_place(server.url)
        found = measure_scale(place, Chat(place.host, "tiny", place.base), Words(0, scale, vocabulary))
        assert isinstance(found, Scale), found
        return cls(setup, server, Words(0, Scale(scale.per_word, found.overhead), vocabulary))

    def openloop(self, name: str, rate: float, seconds: float, connections: int | None = None) -> Seen:
        place = find_place(self.server.url)
        target = Chat(place.host, "tiny", place.base, extra=SAMPLING)
        load = ol.Load(
            [(place, target)],
            Workload.of(Synthetic(Fixed(PROMPT), Fixed(OUTPUT))),
            Poisson(rate),
            seconds,
            words=self.words,
            drain_s=120.0,
            connections=connections,
        )
        out = fresh(self.setup.out / "runs" / name)
        run = self._with_server(lambda: ol.drive(load, out))
        found = ol.score(run[0], SLO)
        each = [row for row in rows(run[0]) if row["status"] == "ok"]
        assert found.ttft_s is not None
        assert found.tpot_s is not None
        sent = found.ttft_s.from_sent
        assert sent is not None
        return Seen(
            "openloop",
            found.requests,
            sent.p50,
            sent.p99,
            sent.mean,
            found.tpot_s.p50,
            found.tpot_s.mean,
            found.goodput_rps,
            [row["scheduled_ns"] / 1e9 for row in each],
            [(row["event_ns"][0] - row["sent_ns"]) / 1e9 for row in each],
            [(row["event_ns"][0] - row["scheduled_ns"]) / 1e9 for row in each],
            [(row["event_ns"][0] - row["first_any_ns"]) / 1e9 for row in each],
            found.goodput_rps_from_sent,
            float(np.mean([row["prompt_tokens"] for row in each])),
            *run[1],
        )

    def vllm(self, name: str, rate: float, seconds: float, cap: int | None = None) -> Seen:
        folder = fresh(self.setup.out / "runs" / name)
        folder.mkdir(parents=True)
        count = self._write_prompts(folder / "prompts.jsonl", rate, seconds)
        command = [self.setup.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat"]
        command += ["--base-url", self.server.url, "--endpoint", "/v1/chat/completions", "--model", "tiny"]
        command += ["--tokenizer", self.setup.model, "--dataset-name", "custom", "--skip-chat-template"]
        command += ["--dataset-path", str(folder / "prompts.jsonl"), "--custom-output-len", str(OUTPUT)]
        command += ["--num-prompts", str(count), "--request-rate", str(rate), "--ignore-eos", "--temperature", "1"]
        command += ["--ready-check-timeout-sec", "0", "--goodput", "ttft:500", "tpot:100", "--disable-tqdm"]
        command += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"]
        command += [] if cap is None else ["--max-concurrency", str(cap)]
        _, server = self._with_server(lambda: _run(command, folder / "output.txt"))
        return _of_vllm(json.loads((folder / "result.json").read_text()), server)

    def _write_prompts(self, path: Path, rate: float, seconds: float) -> int:
        """Those that openloop sends at this rate, and how many they are."""
        demand = Workload.of(Synthetic(Fixed(PROMPT), Fixed(OUTPUT))).demand(Poisson(rate), seconds, 0)
        prompts = Prompts(demand, self.words)
        lines = [json.dumps({"prompt": prompts.ask(number).text}) for number in range(len(demand))]
        path.write_text("\n".join(lines) + "\n")
        return len(lines)

    def _with_server(self, work: Callable[[], T]) -> tuple[T, tuple[float, float]]:
        """And what the server says of the same requests: mean TTFT, and how much of it was queueing."""
        before = self.server.figures()
        result = work()
        after = self.server.figures()

        def mean(name: str) -> float:
            count = after[f"vllm:{name}_count"] - before[f"vllm:{name}_count"]
            return (after[f"vllm:{name}_sum"] - before[f"vllm:{name}_sum"]) / count

        return result, (mean("time_to_first_token_seconds"), mean("request_queue_time_seconds"))


def _run(command: list[str], output: Path) -> None:
    with output.open("wb") as file:
        done = subprocess.run(command, env=os.environ | ENVIRONMENT, stdout=file, stderr=file, check=False)
    if done.returncode:
        raise SystemExit(f"vllm bench failed: {output} says why")


def _of_vllm(found: dict[str, Any], server: tuple[float, float]) -> Seen:
    starts, waited = np.array(found["start_times"]), np.array(found["queue_times"])
    ttft = np.array(found["ttfts"])
    due = starts - waited
    return Seen(
        "vllm bench",
        found["completed"],
        found["median_ttft_ms"] / 1000,
        found["p99_ttft_ms"] / 1000,
        found["mean_ttft_ms"] / 1000,
        found["median_tpot_ms"] / 1000,
        found["mean_tpot_ms"] / 1000,
        found["request_goodput"],
        (due - due.min()).tolist(),
        ttft.tolist(),
        (ttft + waited).tolist(),
        [],
        prompt_tokens=found["total_input_tokens"] / found["completed"],
        server_ttft_mean=server[0],
        server_queue_mean=server[1],
    )


COMPARED = ("ttft_p50", "ttft_p99", "ttft_mean", "beyond_server", "tpot_p50", "tpot_mean")
HEAD = ["", "requests", "prompt", "ttft p50", "p99", "mean", "server's mean", "tpot p50", "mean", "stolen / others"]


def _line(name: str, seen: Seen, noise: Noise) -> list[object]:
    ttft = [ms(each) for each in (seen.ttft_p50, seen.ttft_p99, seen.ttft_mean, seen.server_ttft_mean)]
    tpot = [f"{1000 * each:.2f}" for each in (seen.tpot_p50, seen.tpot_mean)]
    return [name, seen.requests, f"{seen.prompt_tokens:.1f}", *ttft, *tpot, noise]


def agree(setup: Setup) -> None:
    found: dict[str, list[tuple[Seen, Noise]]] = {"openloop": [], "vllm bench": []}
    with setup.serve("agree", *NO_CACHE) as server:
        bench = Bench.of(setup, server)
        bench.openloop("warm", setup.rate, 10.0)
        for _ in range(setup.repeats):
            found["openloop"].append(quietest(server, lambda: bench.openloop("agree", setup.rate, setup.seconds), 1))
            found["vllm bench"].append(quietest(server, lambda: bench.vllm("agree-vllm", setup.rate, setup.seconds), 1))
    lines = [
        _line(tool, *each) for pair in zip(*found.values(), strict=True) for tool, each in zip(found, pair, strict=True)
    ]
    table(f"{setup.rate:g}/s, prompt {PROMPT}, output {OUTPUT}; milliseconds", HEAD, lines)
    values = {
        name: [np.array([getattr(seen, name) for seen, _ in runs]) for runs in found.values()] for name in COMPARED
    }
    table(
        "median of the repeats (least to most), milliseconds",
        ["", *found],
        [
            [
                name,
                *(
                    f"{1000 * np.median(each):.2f} ({1000 * each.min():.2f} to {1000 * each.max():.2f})"
                    for each in pair
                ),
            ]
            for name, pair in values.items()
        ],
    )
    for name in ("ttft_p50", "tpot_p50"):
        ours, theirs = values[name]
        apart = abs(np.median(ours) - np.median(theirs))
        spread = max(np.ptp(ours), np.ptp(theirs))
        setup.checks.that(bool(apart <= spread), f"{name}: apart {ms(apart)} ms, spread of repeats {ms(spread)} ms")
    role = np.concatenate([seen.role_s for seen, _ in found["openloop"]])
    print(f"first chunk (a role) to first token: p50 {ms(np.median(role))} ms, p99 {ms(np.quantile(role, 0.99))} ms")
    save(setup.out, "agree", found, _draw_agreement(found))


def _draw_agreement(found: dict[str, list[tuple[Seen, Noise]]]) -> Chart:
    chart = Chart(
        "TTFT by two tools and by the server: repeats differ more than tools", "Stolen meanwhile", "Mean TTFT (ms)"
    )
    for tool, color in (("openloop", "blue"), ("vllm bench", "orange")):
        runs = [seen for seen, _ in found[tool]]
        chart.line(range(len(runs)), [1000 * seen.ttft_mean for seen in runs], tool, color=color)
        told = [1000 * seen.server_ttft_mean for seen in runs]
        chart.line(range(len(runs)), told, f"server, during {tool}", color=color, dashed=True)
    chart.ticks([f"{ours[1].stolen:.1%}, {theirs[1].stolen:.1%}" for ours, theirs in zip(*found.values(), strict=True)])
    chart.limits(y=(0, 1200 * max(seen.ttft_mean for runs in found.values() for seen, _ in runs)))
    return chart


def overload(setup: Setup) -> None:
    """Sixteen at once on the server. Then the client allows sixteen at once too, as many do."""
    cap = 16
    rate, seconds = setup.overload, setup.seconds
    found: dict[str, tuple[Seen, Noise]] = {}
    with setup.serve("overload", *NO_CACHE, "--max-num-seqs", str(cap)) as server:
        bench = Bench.of(setup, server)
        bench.openloop("warm", setup.rate, 10.0)
        found["openloop"] = quietest(server, lambda: bench.openloop("over", rate, seconds), setup.tries)
        found["vllm bench"] = quietest(server, lambda: bench.vllm("over-vllm", rate, seconds), setup.tries)
        found[f"openloop, {cap} connections"] = quietest(
            server, lambda: bench.openloop("capped", rate, seconds, cap), setup.tries
        )
        found[f"vllm bench, {cap} at once"] = quietest(
            server, lambda: bench.vllm("capped-vllm", rate, seconds, cap), setup.tries
        )
    head = [
        "",
        "ttft p50 from send",
        "from schedule",
        "server's mean",
        "in its queue",
        "goodput/s",
        "from send",
        "stolen / others",
    ]
    table(
        f"{rate:g}/s for {seconds:g} s, {SLO}; seconds",
        head,
        [
            [
                name,
                f"{seen.ttft_p50:.2f}",
                f"{np.median(seen.from_due_s):.2f}",
                f"{seen.server_ttft_mean:.2f}",
                f"{seen.server_queue_mean:.2f}",
                f"{seen.goodput:.2f}",
                f"{seen.goodput_from_sent:.2f}",
                noise,
            ]
            for name, (seen, noise) in found.items()
        ],
    )
    _, _, capped, theirs = (seen for seen, _ in found.values())
    hidden = float(np.median(capped.from_due_s) / np.median(theirs.ttft_s))
    setup.checks.that(
        hidden > 3, f"with the cap, vllm bench reports a TTFT {hidden:.0f} times below what users would wait"
    )
    save(setup.out, "overload", found, _draw_overload(found, rate))


def _draw_overload(found: dict[str, tuple[Seen, Noise]], rate: float) -> Chart:
    free, _, capped, theirs = (seen for seen, _ in found.values())
    chart = Chart(
        f"A cap on concurrency hides the queue: {rate:g}/s, more than it can serve", "Due after (s)", "TTFT (s)"
    )
    chart.line(*_by_due(free.due_s, free.from_due_s), "no cap", color="blue")
    chart.line(*_by_due(capped.due_s, capped.from_due_s), "capped, from schedule", color="green")
    chart.line(*_by_due(capped.due_s, capped.ttft_s), "capped, from send", color="green", dashed=True)
    chart.line(*_by_due(theirs.due_s, theirs.ttft_s), "vllm bench, capped", color="orange")
    return chart


def _by_due(due_s: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """In order, averaged over a second each."""
    seconds = np.floor(due_s).astype(int)
    known = np.unique(seconds)
    return (known + 0.5).tolist(), [float(np.mean(np.array(values)[seconds == each])) for each in known]
