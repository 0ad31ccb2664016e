"""On a real Ray cluster of two nodes on this machine. Ray weighs 280 MB, so this runs only where it is installed."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openloop as ol
from openloop.errors import SpecError
from openloop.load.scenario import read_scenario, run_scenario
from openloop.serve.process import RunningEndpoint, endpoint_process
from tests.load.test_conductor import ENGINE, rows_of

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    testing = pytest.importorskip("ray.cluster_utils")
    made = testing.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningEndpoint]:
    with endpoint_process(ENGINE) as served:
        yield served


def flags(server: RunningEndpoint, seconds: str) -> dict[str, Any]:
    return {"target.url": server.url, "rate": 60, "for": seconds, "output": "8", "seed": 3, "slo": "ttft<=5s"}


def test_two_nodes_drive_one_run(cluster: Any, server: RunningEndpoint, tmp_path: Path) -> None:
    found = run_scenario(read_scenario(None, flags(server, "3s")), tmp_path / "run", ray=cluster.address)
    found.validate()
    alone = run_scenario(read_scenario(None, flags(server, "3s")), tmp_path / "alone")
    schedules = [sorted((row["request_id"], row["scheduled_ns"]) for row in rows_of(run)) for run in (found, alone)]
    assert schedules[0] == schedules[1]
    assert [node.lost for node in found.manifest.nodes] == [None, None]
    assert all(abs(node.offset_ns) <= node.error_ns for node in found.manifest.nodes)  # one machine has one clock
    assert {row["status"] for row in rows_of(found)} == {"ok"}
    assert (tmp_path / "run" / "server.parquet").exists()


def test_a_node_that_is_killed_is_dropped_rows(cluster: Any, server: RunningEndpoint, tmp_path: Path) -> None:
    killed: list[int] = []

    def watch(now: Any) -> None:
        if now.seconds > 2 and not killed:
            told = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
            mine = [line.split()[0] for line in told.splitlines() if "ray::Part" in line]
            killed.append(int(mine[0]))
            os.kill(killed[0], signal.SIGKILL)

    began = time.monotonic()
    found = run_scenario(read_scenario(None, flags(server, "6s")), tmp_path / "run", watch, ray=cluster.address)
    assert time.monotonic() - began < 120
    found.validate()
    assert Counter(bool(node.lost) for node in found.manifest.nodes) == {True: 1, False: 1}
    assert Counter(row["status"] for row in rows_of(found))["dropped"] > 20
    assert not ol.score(found, "ttft<=5s").valid


def test_simulated_points_are_the_same_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    scenario = {"slo": "ttft<=1s, tpot<=40ms", "for": "60s"}
    fleet = {"model": "8b", "gpu": "h100"}
    found = [
        ol.sweep(tmp_path / name, scenario, fleet, rates=[2.0, 20.0], processes=1, ray=address)
        for name, address in (("there", cluster.address), ("here", None))
    ]
    assert [p.goodput_rps for p in found[0].points] == [p.goodput_rps for p in found[1].points]
    with pytest.raises(SpecError, match="give --rates"):
        ol.sweep(tmp_path / "search", scenario, fleet, ray=cluster.address)


def test_no_cluster_is_a_sentence(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "openloop", "run", "--target", "http://127.0.0.1:9", "--model", "m", "--rate", "1"]
    call += ["--ray", "127.0.0.1:1", "-o", str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "no Ray cluster is found at '127.0.0.1:1'" in done.stderr
