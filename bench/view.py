"""How long the view takes to answer another SLO, over HTTP: a run of 100,000 requests, and a frontier of 39 runs.

    python bench/view.py [requests]

Every answer is the scorer's whole JSON, for an SLO that was not asked before; of a frontier also the page that is drawn
of it. They are held to be what is found from the disk.
"""

import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from openloop.frontier import sweep
from openloop.report.read import read_report
from openloop.score import score
from openloop.sim import simulate
from openloop.view import ViewServer

MODEL = "replica:prompt=500,output=100,prefill=0.1ms,gap=exponential(10ms),crowding=0.1%"
FLEET = {"model": "8b", "gpu": "h100"}
RATES, REPEAT, SECONDS = range(3, 28, 2), 3, 222
SCENARIO = {
    "slo": "ttft<=500ms, tpot<=30ms",
    "for": f"{SECONDS}s",
    "prompt": "lognormal(median=900,sigma=0.7)",
    "output": "150",
    "prices.per_hour": 3.0,
}
GOAL_S = 0.2
ASKED = 20


def ask(port: int, path: str) -> tuple[float, dict[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    link.request("GET", path)
    found = json.loads(link.getresponse().read())
    return time.perf_counter() - began, found


def ask_all(port: int, what: str, slos: list[str]) -> tuple[np.ndarray, np.ndarray, float, dict[str, Any]]:
    """Seconds until each was scored, until it was drawn then, of the processor by each, and the last score."""
    used = time.process_time()
    scored, drawn = [], []
    for slo in slos:
        seconds, told = ask(port, f"/api/score?what={what}&slo={quote(slo)}")
        scored.append(seconds)
        drawn.append(ask(port, f"/api/report?what={what}&slo={quote(slo)}")[0])
    return np.array(scored), np.array(drawn), (time.process_time() - used) / len(slos), told["score"]


def tell(what: str, scored: np.ndarray, drawn: np.ndarray, used: float, anew: float, whole: np.ndarray) -> None:
    middle, most = 1e3 * np.median(whole), 1e3 * scored.max()
    print(f"  scored against another SLO    {1e3 * np.median(scored):6.0f} ms (p50), {most:.0f} ms (most of {ASKED})")
    print(f"  and its figures drawn         {1e3 * np.median(drawn):6.0f} ms more (p50)")
    print(f"  processor time, of both       {1e3 * used:6.0f} ms")
    print(f"  from the disk                 {1e3 * anew:6.0f} ms")
    print(
        f"=> {what}, over HTTP | {middle:.0f} ms | from the disk: {1e3 * anew:.0f} ms"
        f" | {1e3 * anew / middle:.1f}x as fast | under {1e3 * GOAL_S:.0f} ms"
    )
    print(f"under {1e3 * GOAL_S:.0f} ms: {'yes' if middle < 1e3 * GOAL_S else 'no'}")


def of_a_run(folder: Path, port: int, requests: int) -> None:
    simulate(MODEL, "poisson:rate=20", requests / 20, 1, slo="ttft<=1s").save(folder / "run")
    first, _ = ask(port, "/api/score?what=run")
    slos = [f"ttft<={60 + 7 * i}ms, tpot<={12 + i}ms" for i in range(ASKED)]
    scored, drawn, used, told = ask_all(port, "run", slos)
    began = time.perf_counter()
    wanted = score(folder / "run", slos[-1]).to_dict()
    anew = time.perf_counter() - began
    assert told == wanted
    print(f"{wanted['requests']:,} requests, {wanted['itl_s']['n'] + wanted['requests']:,} tokens")
    print(f"  opened and scored first       {1e3 * first:6.0f} ms")
    tell(f"another SLO for {wanted['requests']:,} requests", scored, drawn, used, anew, scored)


def of_a_frontier(folder: Path, port: int) -> None:
    sweep(folder / "frontier", SCENARIO, FLEET, rates=RATES, repeat=REPEAT)
    first, _ = ask(port, "/api/score?what=frontier")
    slos = [f"ttft<={200 + 20 * i}ms, tpot<={15 + i}ms" for i in range(ASKED)]
    scored, drawn, used, told = ask_all(port, "frontier", slos)
    began = time.perf_counter()
    wanted = read_report(folder / "frontier", slos[-1]).data
    anew = time.perf_counter() - began
    assert told == wanted
    runs, requests = (sum(point[key] for point in wanted["points"]) for key in ("repeats", "requests"))
    print(f"{runs} runs, {requests:,} requests")
    print(f"  opened and scored first       {1e3 * first:6.0f} ms")
    what = f"another SLO for a frontier of {runs} runs, {requests:,} requests, and its page"
    tell(what, scored, drawn, used, anew, scored + drawn)


def main(requests: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ViewServer(folder) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            port = urlsplit(server.url).port or 0
            of_a_run(folder, port, requests)
            of_a_frontier(folder, port)
            server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
