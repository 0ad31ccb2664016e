"""How long the view takes to answer another SLO: a run of 100,000 requests, scored again over HTTP.

    python bench/view.py [requests]

Every answer is the scorer's whole JSON, for an SLO that was not asked before.
"""

import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from openloop.score import score
from openloop.sim import simulate
from openloop.view import ViewServer

MODEL = "replica:prompt=500,output=100,prefill=0.1ms,gap=exponential(10ms),crowding=0.1%"
GOAL_S = 0.2
ASKED = 20


def ask(port: int, path: str) -> tuple[float, dict[str, object]]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    link.request("GET", path)
    found = json.loads(link.getresponse().read())
    return time.perf_counter() - began, found


def main(requests: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulate(MODEL, "poisson:rate=20", requests / 20, 1, slo="ttft<=1s").save(Path(folder) / "run")
        with ViewServer(Path(folder)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            port = urlsplit(server.url).port or 0
            first, _ = ask(port, "/api/score?what=run")
            slos = [f"ttft<={60 + 7 * i}ms, tpot<={12 + i}ms" for i in range(ASKED)]
            used = time.process_time()
            answers = [ask(port, f"/api/score?what=run&slo={quote(slo)}") for slo in slos]
            used = (time.process_time() - used) / ASKED
            pages = [ask(port, f"/api/report?what=run&slo={quote(slo)}")[0] for slo in slos[-5:]]
            began = time.perf_counter()
            wanted = score(Path(folder) / "run", slos[-1]).to_dict()
            anew = time.perf_counter() - began
            assert answers[-1][1]["score"] == wanted
            server.shutdown()
    took = np.array([seconds for seconds, _ in answers])
    middle, most = 1e3 * np.median(took), 1e3 * took.max()
    print(f"{wanted['requests']:,} requests, {wanted['itl_s']['n'] + wanted['requests']:,} tokens")
    print(f"opened and scored first       {1e3 * first:6.0f} ms")
    print(f"scored against another SLO    {middle:6.0f} ms (p50), {most:.0f} ms (most of {ASKED})")
    print(f"  of which processor time     {1e3 * used:6.0f} ms")
    print(f"and its figures drawn         {1e3 * np.median(pages):6.0f} ms more (p50)")
    print(f"openloop score, from the disk {1e3 * anew:6.0f} ms")
    print(
        f"=> another SLO for {wanted['requests']:,} requests, over HTTP | {middle:.0f} ms"
        f" | from the disk: {1e3 * anew:.0f} ms | {1e3 * anew / middle:.1f}x as fast | under {1e3 * GOAL_S:.0f} ms"
    )
    print(f"under {1e3 * GOAL_S:.0f} ms: {'yes' if middle < 1e3 * GOAL_S else 'no'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
