"""`openloop proxy` in front of real processes, one of which is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from openloop.cli import cli
from openloop.records import open_run
from tests.proxy.fakes import CHAT

STREAMS = 12


def start(*words: str) -> tuple["subprocess.Popen[str]", str]:
    process = subprocess.Popen([sys.executable, "-m", "openloop", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().partition("listening on ")[2].split()[0]


async def ask(session: aiohttp.ClientSession, url: str, tokens: int) -> tuple[str, bool]:
    """Who answered, and whether to the end."""
    body = {"model": "openloop", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}]}
    async with session.post(url + CHAT, json=body) as reply:
        who = reply.headers["X-Openloop-Replica"]
        try:
            return who, b"[DONE]" in await reply.read()
        except aiohttp.ClientError:
            return who, False


def test_a_killed_replica_loses_only_what_it_had_in_flight(tmp_path: Path) -> None:
    processes = []
    try:
        urls = []
        for _ in range(2):
            process, url = start("serve", "--port", "0", "--engine", "slots:gap=20ms")
            processes.append(process)
            urls.append(url)
        file = tmp_path / "proxy.yaml"
        text = f"replicas: [{{name: a, url: '{urls[0]}'}}, {{name: b, url: '{urls[1]}'}}]\nrouting: round-robin\n"
        file.write_text(text)
        process, url = start("proxy", str(file), "--listen", "127.0.0.1:0", "-o", str(tmp_path / "run"))
        processes.append(process)

        async def main() -> None:
            async with aiohttp.ClientSession() as session:
                asking = [asyncio.create_task(ask(session, url, 150)) for _ in range(STREAMS)]
                await asyncio.sleep(1.0)
                processes[0].kill()
                found = await asyncio.gather(*asking)
                assert {who for who, whole in found if not whole} == {"a"}
                assert sum(whole for _, whole in found) == STREAMS // 2
                later = [await ask(session, url, 2) for _ in range(4)]
                assert set(later) == {("b", True)}
                file.write_text(text.replace("name: b", "name: b, drain: true"))
                process.send_signal(signal.SIGHUP)
                while True:
                    async with session.get(url + "/metrics") as reply:
                        if 'openloop_replica_draining{replica="b"} 1' in await reply.text():
                            break
                async with session.post(url + CHAT, json={"messages": []}) as reply:
                    assert reply.status == 502  # a is gone, and b gets nothing new

        asyncio.run(main())
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "17 requests" in told
    finally:
        for each in processes:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()
    run = open_run(tmp_path / "run")
    rows = [row for batch in run.batches() for row in batch.to_pylist()]
    lost = [row["replica"] for row in rows if row["status"] == "error" and row["event_ns"]]
    assert lost == ["a"] * (STREAMS // 2)
    assert [row["status"] for row in rows].count("ok") == STREAMS // 2 + 4
    assert ("failure", "a") in [(event.kind, event.detail) for event in run.manifest.events]
    replayed = CliRunner().invoke(cli, ["decisions", str(tmp_path / "run" / "decisions.jsonl"), "--json"])
    assert replayed.exit_code == 0, replayed.output
    assert json.loads(replayed.output)["elsewhere"] == []


def test_a_proxy_goes_on_and_ends_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text("replicas: [http://127.0.0.1:1]\n")
    process, _ = start("proxy", str(file), "--listen", "127.0.0.1:0", "-o", str(tmp_path / "run"))
    try:
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert open_run(tmp_path / "run").manifest.finished


@pytest.mark.parametrize("words", [["proxy"], ["proxy", "nowhere.yaml"]])
def test_what_cannot_be_used_is_refused(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openloop", *words], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
