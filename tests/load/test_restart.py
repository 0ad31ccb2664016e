"""A server is started anew before a run, and asked nothing before the run's first request."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openloop.errors import RunError, SpecError
from openloop.load.address import find_place
from openloop.load.exchange import restart
from openloop.load.scenario import read_scenario, run_scenario
from openloop.serve.process import RunningEndpoint

SCRIPT = """
if [ -f pid ]; then
    kill $(cat pid)
    while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done
fi
{python} -m openloop serve --port {port} --engine slots:gap=1ms > log 2>&1 &
echo $! > pid
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A command that starts the built-in endpoint anew, and its address; it has run once."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "again.sh").write_text(SCRIPT.format(python=sys.executable, port=port))
    subprocess.run(["sh", "again.sh"], check=True)
    yield "sh again.sh", f"http://127.0.0.1:{port}"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


def test_a_cold_run_is_the_first_thing_that_a_new_server_hears(script: tuple[str, str], tmp_path: Path) -> None:
    command, url = script
    restart("true", [find_place(url)])  # it is only waited for
    flags = {"target.url": url, "rate": 30.0, "for": "1s", "slo": "ttft<=1s", "restart": command, "warmth": "cold"}
    first = (tmp_path / "pid").read_text()
    run = run_scenario(read_scenario(None, flags), tmp_path / "run")
    assert (tmp_path / "pid").read_text() != first
    assert run.manifest.cache_warmth == "cold"
    assert [(event.at_ns, event.kind) for event in run.manifest.events] == [(0, "restart")]
    assert any("was started anew" in note for note in run.manifest.notes)
    assert any("cannot be seen" in note for note in run.manifest.notes)
    assert len(RunningEndpoint(url).truth()) == run.num_rows > 10  # not one request besides those of the run


def test_what_a_restart_may_get_wrong(script: tuple[str, str]) -> None:
    place = find_place(script[1])
    with pytest.raises(RunError, match="failed with 3: no such unit"):
        restart("echo no such unit >&2; exit 3", [place])
    with pytest.raises(RunError, match="did not end within 0.2 s"):
        restart("sleep 5", [place], 0.2)
    with pytest.raises(RunError, match="was not ready in time"):
        restart("true", [find_place("http://127.0.0.1:9")], 0.3)
    with pytest.raises(SpecError, match="give --restart-command"):
        read_scenario(None, {"target.url": script[1], "rate": 1.0, "warmth": "cold"})
    with pytest.raises(SpecError, match="no server to start anew"):
        read_scenario(None, {"rate": 1.0, "restart": "true"}, live=False)


def test_a_server_is_asked_with_the_query_of_its_url_and_the_key() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while len(heard) < 3:
                client, _ = server.accept()
                with client:
                    asked = client.recv(65536)
                    assert b"\r\nAuthorization: Bearer k\r\n" in asked
                    heard.append(asked.partition(b" HTTP")[0])
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        place = find_place(f"http://127.0.0.1:{server.getsockname()[1]}/a/v1?key=k")
        server.accept()[0].close()  # who looked where it is
        thread.start()
        restart("true", [place], headers={"Authorization": "Bearer k"})
        thread.join(10)
    assert heard == [b"GET /a/metrics?key=k", b"GET /a/health?key=k", b"GET /a/metrics?key=k"]


def test_a_server_that_was_not_started_anew_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: object, path: str, __: object) -> tuple[int, str]:
        return 200, "process_start_time_seconds 1.7e9\n" if path.endswith("/metrics") else ""

    monkeypatch.setattr("openloop.load.exchange._get", answer)
    with pytest.raises(RunError, match="is the one from before"):
        restart("true", [find_place("http://127.0.0.1:9")])
