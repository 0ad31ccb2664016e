"""openloop as a load generator beside its peers: how far from the truth, and at what cost?

    python bench/load.py [--rates 100,300] [--times 3] [--k6 K6] [--vllm PYTHON] [--guidellm GUIDELLM]
        [--aiperf AIPERF] [--locust LOCUST] [--tokenizer FOLDER]

One after the other, each tool drives the same endpoint, which notes when each request arrived and each token was
written. The endpoint has the first core and the tool the last. Printed are the rate and the variation of gaps at the
endpoint, the p50 and p99 of TTFT as the tool reports them minus the true ones, and processor time per 1,000 requests:
of the whole command, and of more requests in the same run, which is that of a run minus that of a run of one second, so
that starting the tool does not count. A machine that is shared is now faster and now slower: with --times, all tools
have several turns, and the medians are compared. What a tool takes to start is not the same each time either (seconds
more or less, for vllm bench): over a minute (--for 60) that hardly weighs on what more requests take, over ten seconds
it does.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from openloop.clock import stolen_s
from openloop.load.selftest import ENGINE, TOKENS
from openloop.serve.process import RunningEndpoint, endpoint_process

PROMPT = 20


@dataclass
class Reported:
    """What a tool says, in milliseconds."""

    ttft_p50: float
    ttft_p99: float


def openloop(url: str, rate: float, seconds: float) -> Reported:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "openloop", "run", "--target", url, "--rate", str(rate)]
        command += ["--for", f"{seconds:g}s", "--prompt", str(PROMPT), "--output", str(TOKENS)]
        command += ["--slo", "ttft<=1s", "--json", "-o", f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode > 1:  # 1: a second is too short for a valid run
            raise SystemExit(f"openloop failed: {done.stderr[-2000:]}")
    ttft = json.loads(done.stdout)["ttft_s"]["from_sent"]
    return Reported(1000 * ttft["p50"], 1000 * ttft["p99"])


def vllm(python: str, tokenizer: str) -> Callable[[str, float, float], Reported]:
    def run(url: str, rate: float, seconds: float) -> Reported:
        with tempfile.TemporaryDirectory() as folder:
            command = [python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat"]
            command += ["--base-url", url, "--endpoint", "/v1/chat/completions", "--model", "openloop"]
            command += ["--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", str(PROMPT)]
            command += ["--random-output-len", str(TOKENS), "--num-prompts", str(round(rate * seconds))]
            command += [
                "--request-rate",
                str(rate),
                "--percentile-metrics",
                "ttft,itl",
                "--metric-percentiles",
                "50,99",
            ]
            command += [
                "--save-result",
                "--result-dir",
                folder,
                "--result-filename",
                "result.json",
                "--ready-check-timeout-sec",
                "0",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"vllm bench failed: {done.stderr[-2000:]}")
            found = json.loads((Path(folder) / "result.json").read_text())
        return Reported(found["p50_ttft_ms"], found["p99_ttft_ms"])

    return run


def k6(program: str) -> Callable[[str, float, float], Reported]:
    """Constant arrivals, for it has no others; its time to the first byte is that to the first token here."""

    def run(url: str, rate: float, seconds: float) -> Reported:
        body = {"model": "openloop", "messages": [{"role": "user", "content": "word " * PROMPT}], "max_tokens": TOKENS}
        scenario = {"executor": "constant-arrival-rate", "rate": rate, "timeUnit": "1s", "duration": f"{seconds:g}s"}
        scenario |= {"preAllocatedVUs": round(rate), "maxVUs": round(rate * 4)}
        options = {"scenarios": {"all": scenario}, "summaryTrendStats": ["p(50)", "p(99)"]}
        script = f"""
            import http from "k6/http";
            export const options = {json.dumps(options)};
            const body = {json.dumps(json.dumps(body | {"stream": True}))};
            const more = {{headers: {{"Content-Type": "application/json"}}}};
            export default () => http.post("{url}/v1/chat/completions", body, more);
        """
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "script.js").write_text(script)
            summary = Path(folder) / "summary.json"
            command = [program, "run", "--quiet", "--no-usage-report", "--summary-export", str(summary), "script.js"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"k6 failed: {done.stderr[-2000:]}")
            found = json.loads(summary.read_text())["metrics"]["http_req_waiting"]
        return Reported(found["p(50)"], found["p(99)"])

    return run


LOCUST = """
import time
from locust import HttpUser, constant_throughput, task

class Asker(HttpUser):
    wait_time = constant_throughput(1)

    @task
    def ask(self):
        began = time.perf_counter()
        with self.client.post("/v1/chat/completions", json=BODY, stream=True, catch_response=True) as reply:
            first = None
            for piece in reply.iter_content(1024):
                first = first or time.perf_counter()
            reply.success()
        told = {"request_type": "first", "name": "token", "response_length": 0, "exception": None, "context": {}}
        self.environment.events.request.fire(response_time=1000 * ((first or began) - began), **told)
"""


def locust(program: str) -> Callable[[str, float, float], Reported]:
    """A closed loop: as many users as requests per second, each of whom asks once a second if the server is quick."""

    def run(url: str, rate: float, seconds: float) -> Reported:
        body = {"model": "openloop", "messages": [{"role": "user", "content": "word " * PROMPT}], "max_tokens": TOKENS}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.py"
            script.write_text(f"BODY = {body | {'stream': True}!r}\n{LOCUST}")
            command = [program, "-f", str(script), "--headless", "-H", url, "-u", str(round(rate)), "-r", str(rate)]
            command += ["-t", f"{seconds:g}s", "--csv", str(Path(folder) / "out"), "--only-summary"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if not (Path(folder) / "out_stats.csv").exists():
                raise SystemExit(f"locust failed: {done.stderr[-2000:]}")
            with (Path(folder) / "out_stats.csv").open() as file:
                found = next(
                    (row for row in csv.DictReader(file) if row["Name"] == "token"), {"50%": "nan", "99%": "nan"}
                )
        return Reported(float(found["50%"]), float(found["99%"]))

    return run


def aiperf(program: str, tokenizer: str) -> Callable[[str, float, float], Reported]:
    def run(url: str, rate: float, seconds: float) -> Reported:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer").symlink_to(Path(tokenizer).resolve())
            command = [
                program,
                "profile",
                "--model",
                "openloop",
                "--url",
                url,
                "--endpoint-type",
                "chat",
                "--streaming",
            ]
            command += ["--tokenizer", "tokenizer", "--request-rate", str(rate), "--ui", "none"]
            command += ["--request-count", str(round(rate * seconds)), "--artifact-dir", "out"]
            command += ["--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(TOKENS)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            results = list(Path(folder).rglob("profile_export_aiperf.json"))
            if not results:
                raise SystemExit(f"aiperf failed: {(done.stdout + done.stderr)[-2000:]}")
            found = json.loads(results[0].read_text())["time_to_first_token"]
        return Reported(found["p50"], found["p99"])

    return run


def guidellm(program: str, tokenizer: str) -> Callable[[str, float, float], Reported]:
    def run(url: str, rate: float, seconds: float) -> Reported:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            command = [program, "run", "--backend", f"kind=openai_http,target={url},model=openloop"]
            command += ["--profile", f"kind=poisson,rate={rate:g}"]
            command += ["--constraint", f"kind=max_requests,count={round(rate * seconds)}"]
            command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--output", f"kind=json,path={result}"]
            command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"guidellm failed: {(done.stdout + done.stderr)[-2000:]}")
            answered = json.loads(result.read_text())["benchmarks"][0]["requests"]["successful"]
        times = [each["time_to_first_token_ms"] for each in answered]
        return Reported(*np.percentile(times, [50, 99]).tolist())

    return run


def measure(
    name: str, tool: Callable[[str, float, float], Reported], server: RunningEndpoint, rate: float, seconds: float
) -> tuple[float, float]:
    """One line; returns processor seconds per 1,000 requests: of more of them, and of the whole command."""
    started, few = _cost(tool, server, rate, 1.0)[:2]
    stolen, began = stolen_s(), time.monotonic()
    cpu, count, reported, truth = _cost(tool, server, rate, seconds)
    taken = (stolen_s() - stolen) / (time.monotonic() - began) / (os.cpu_count() or 1)
    each, whole = (cpu - started) / (count - few) * 1000, cpu / count * 1000
    true = np.percentile([(written[0] - arrived) / 1e6 for arrived, written in truth], [50, 99])
    arrived = np.sort([arrived for arrived, _ in truth])
    gaps = np.diff(arrived)
    print(
        f"{name:<16} {rate:>6g}/s {len(truth) / (np.ptp(arrived) / 1e9):>7.0f}/s {gaps.std() / gaps.mean():>6.2f}"
        f" {reported.ttft_p50 - true[0]:>10.3f} {reported.ttft_p99 - true[1]:>10.3f}"
        f" {whole:>10.2f} {each:>9.2f} {taken:>8.1%}",
        flush=True,
    )
    return each, whole


def _cost(
    tool: Callable[[str, float, float], Reported], server: RunningEndpoint, rate: float, seconds: float
) -> tuple[float, int, Reported, list[tuple[int, list[int]]]]:
    """Processor seconds and requests of a run, what the tool said of it, and what was true."""
    server.truth()
    before = _cpu()
    reported = tool(server.url, rate, seconds)
    cpu = _cpu() - before
    truth = [each for each in server.truth().values() if each[1]]
    return cpu, len(truth), reported, truth


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,300,1000,3000")
    parser.add_argument("--for", dest="seconds", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=1, help="turns that each tool has")
    parser.add_argument("--vllm", help="a Python that can import vllm")
    parser.add_argument("--k6", help="the program k6")
    parser.add_argument("--guidellm", help="the program guidellm")
    parser.add_argument("--aiperf", help="the program aiperf")
    parser.add_argument("--locust", help="the program locust")
    parser.add_argument("--tokenizer", help="a folder with a tokenizer, for vllm, guidellm and aiperf")
    parser.add_argument("--most", type=float, default=1000.0, help="highest rate to try peers at")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a tool that is installed does not read its source each time
    tools: dict[str, Callable[[str, float, float], Reported]] = {"openloop": openloop}
    if arguments.vllm:
        tools["vllm bench"] = vllm(arguments.vllm, arguments.tokenizer)
    if arguments.k6:
        tools["k6"] = k6(str(Path(arguments.k6).resolve()))
    if arguments.locust:
        tools["locust"] = locust(arguments.locust)
    if arguments.aiperf:
        tools["aiperf"] = aiperf(arguments.aiperf, arguments.tokenizer)
    if arguments.guidellm:
        tools["guidellm"] = guidellm(arguments.guidellm, arguments.tokenizer)
    cores = sorted(os.sched_getaffinity(0))
    print("                                                                 cpu s/1000:")
    print("tool             offered  arrived     cv  p50 off/ms  p99 off/ms       all      more   stolen")
    turns: dict[tuple[str, float], list[tuple[float, float]]] = {}
    with endpoint_process(ENGINE, cores[0]) as server:
        os.sched_setaffinity(0, {cores[-1]})
        openloop(server.url, 50.0, 1.0)  # what is compiled is kept
        for rate in [float(rate) for _ in range(arguments.times) for rate in arguments.rates.split(",")]:
            for name, tool in tools.items():
                if name == "openloop" or rate <= arguments.most:
                    turns.setdefault((name, rate), []).append(measure(name, tool, server, rate, arguments.seconds))
    costs: dict[str, dict[float, list[float]]] = {name: {} for name in tools}
    for (name, rate), found in turns.items():
        costs[name][rate] = [median(kind) for kind in zip(*found, strict=True)]
    for name in list(tools)[1:]:
        rate = max(costs[name])
        for place, what in enumerate(("more requests", f"a whole run of {arguments.seconds:g} s")):
            ours, theirs = ({at: each[place] for at, each in costs[who].items()} for who in ("openloop", name))
            for at in (rate, max(ours)):
                print(
                    f"=> client, {what} | {ours[at]:.2f} CPU-s per 1,000 at {at:g}/s | {name}: {theirs[rate]:.2f} at"
                    f" {rate:g}/s | {theirs[rate] / ours[at]:.1f}x less | {'10x' if name == 'vllm bench' else ''}"
                )


if __name__ == "__main__":
    main()
