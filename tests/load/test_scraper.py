"""A server's figures are read beside the run, and nothing that a server does to us is more than a note."""

import contextlib
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openloop.load.address import find_place
from openloop.load.scraper import FigureSource, Gpus, MetricsPage, Scraper
from openloop.records import SERVER
from openloop.serve import Endpoint, Slots

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
EVERY_S = 0.02

Row = dict[str, Any]


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@contextlib.contextmanager
def server(answer: Callable[[int], bytes | None], heard: list[tuple[int, bytes]] | None = None) -> Iterator[str]:
    """Answers each request with what `answer` says to its number; None: not at all."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []
    asked = iter(range(10**6))

    def talk(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while request := sock.recv(65536):
                if heard is not None:
                    heard.append((sock.getpeername()[1], request))
                said = answer(next(asked))
                if said is not None:
                    sock.sendall(said)
                if said is not None and b"Connection: close" in said:
                    sock.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_ones.append(sock)
                threading.Thread(target=talk, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for sock in open_ones:
            sock.close()


def pages(*urls: str, timeout_s: float = 0.5) -> list[FigureSource]:
    return [MetricsPage(url.removeprefix("http://"), find_place(url), timeout_s=timeout_s) for url in urls]


def scrape(folder: Path, sources: Sequence[FigureSource], *enough: int) -> tuple[list[Row], tuple[str, ...], float]:
    """The rows, the notes, and how long stopping took; sources are asked so often, by default until given up."""
    scraper = Scraper(SERVER.writer(folder), sources, EVERY_S)
    scraper.start(time.monotonic_ns() + 10**9)
    wait_for(scraper, *(enough or [3] * len(sources)))
    began = time.monotonic()
    notes = scraper.stop()
    took = time.monotonic() - began
    table, note = SERVER.read(folder)
    assert note is None
    return [] if table is None else table.to_pylist(), notes, took


def wait_for(scraper: Scraper, *enough: int) -> None:
    until = time.monotonic() + 20
    tallies = [tally for _, tally in scraper._tallies]
    while any(tally.read + tally.failed < n for tally, n in zip(tallies, enough, strict=True)):
        assert time.monotonic() < until
        time.sleep(0.01)


def ask(url: str) -> None:
    body = {"model": "openloop", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 40}
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())).read()


def test_it_reads_the_built_in_endpoint_while_it_works(tmp_path: Path) -> None:
    endpoint = Endpoint(Slots(count=2, prefill=0.001))
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    url = f"http://127.0.0.1:{endpoint.port}"
    askers = [threading.Thread(target=ask, args=(url,)) for _ in range(3)]
    scraper = Scraper(SERVER.writer(tmp_path), pages(f"{url}/v1", timeout_s=5.0), EVERY_S)
    scraper.start(time.monotonic_ns() + 10**9)
    wait_for(scraper, 1)
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    notes = scraper.stop(patience_s=5.0)
    endpoint.stop()
    thread.join(5)
    table, _ = SERVER.read(tmp_path)
    assert table is not None
    rows = table.to_pylist()
    assert notes == ()
    assert {row["replica"] for row in rows} == {f"127.0.0.1:{endpoint.port}/v1"}
    assert rows[0]["time_ns"] < 0  # before the run's start: where counters stood
    assert [row["time_ns"] for row in rows] == sorted(row["time_ns"] for row in rows)
    values = {name: [row["value"] for row in rows if row["name"] == name] for name in {row["name"] for row in rows}}
    assert set(values) == {"queue", "running", "prompt_tokens", "output_tokens", "finished"}
    assert (max(values["running"]), max(values["queue"])) == (2.0, 1.0)
    assert (values["prompt_tokens"][-1], values["output_tokens"][-1], values["finished"][-1]) == (9.0, 120.0, 3.0)


def test_one_connection_serves_all_readings() -> None:
    heard: list[tuple[int, bytes]] = []
    with server(lambda _: whole(PAGE), heard) as url:
        page = pages(url)[0]
        found = [page.read() for _ in range(3)]
        page.close()
    replica = url.removeprefix("http://")
    assert found == [[(replica, "queue", 1.0), (replica, "running", 3.0)]] * 3
    assert len(heard) == 3
    assert len({port for port, _ in heard}) == 1


def test_headers_and_the_path_are_those_of_the_target() -> None:
    heard: list[tuple[int, bytes]] = []
    with server(lambda _: whole(PAGE), heard) as url:
        page = MetricsPage("a", find_place(f"{url}/engine/v1?key=k"), {"Authorization": "Bearer secret"})
        page.read()
        page.close()
    assert heard[0][1].startswith(b"GET /engine/metrics?key=k HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in heard[0][1]
    assert MetricsPage("a", find_place("http://127.0.0.1:9/metrics")).path == "/metrics"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (whole(b"{}", "404 Not Found"), "status 404"),
        (whole(b"<html>welcome</html>"), "there is no figure in it that openloop knows"),
        (whole(b"\xff\xfe"), "'utf-8' codec can't decode"),
        (whole(b"vllm:num_requests_waiting many\n"), "is no sample in prometheus' format"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "ssh-2.0"),
        (None, "timed out"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nv", "timed out"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 99\r\n\r\n" + PAGE, "incompleteread"),
    ],
    ids=["404", "html", "bytes", "broken", "no http", "silence", "half", "cut"],
)
def test_an_endpoint_without_figures_is_one_note(tmp_path: Path, answer: bytes | None, why: str) -> None:
    with server(lambda _: answer) as url:
        rows, notes, took = scrape(tmp_path, pages(url))
    assert rows == []
    assert not (tmp_path / "server.parquet").exists()
    [note] = notes
    assert note.startswith(f"{url} has no /metrics that can be read (")
    assert why in note
    assert note.endswith("): server figures are missing")
    assert took < 3.0


def test_nobody_there_is_a_note(tmp_path: Path) -> None:
    rows, notes, _ = scrape(tmp_path, pages("http://127.0.0.1:1"))
    assert rows == []
    assert notes == (
        "http://127.0.0.1:1 has no /metrics that can be read (connection refused): server figures are missing",
    )


def test_an_absent_endpoint_is_left_alone_after_three_tries(tmp_path: Path) -> None:
    heard: list[tuple[int, bytes]] = []
    with server(lambda _: whole(b"", "404 Not Found"), heard) as url:
        scrape(tmp_path, pages(url))
    assert len(heard) == 3


def test_one_that_goes_away_keeps_what_was_read_and_one_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    def fading(number: int) -> bytes | None:
        return whole(PAGE) if number < 5 else whole(b"", "503 Service Unavailable")

    with server(fading) as gone, server(lambda _: None) as hung, server(lambda _: whole(PAGE)) as well:
        rows, notes, took = scrape(tmp_path, pages(gone, hung, well), 8, 3, 8)
    assert took < 3.0
    count = {url: sum(row["replica"] == url.removeprefix("http://") for row in rows) for url in (gone, hung, well)}
    assert (count[gone], count[hung]) == (10, 0)
    assert count[well] >= 16
    assert [note.endswith(f"readings of {gone}/metrics failed (status 503)") for note in notes] == [True, False]
    assert notes[1].startswith(f"{hung} has no /metrics that can be read (timed out)")


def test_one_that_comes_back_is_read_again(tmp_path: Path) -> None:
    with server(lambda number: whole(PAGE) if number not in (2, 3, 4, 5) else whole(b"", "500 Oh")) as url:
        rows, notes, _ = scrape(tmp_path, pages(url), 9)
    assert len(rows) >= 2 * 5
    assert notes[0].startswith("4 of ")


def test_a_drip_does_not_hold_up_the_end(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock, contextlib.suppress(OSError):
                    while not over.wait(0.05):
                        sock.sendall(b"H")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    scraper = Scraper(
        SERVER.writer(tmp_path), pages(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=5.0), EVERY_S
    )
    scraper.start(0)
    time.sleep(0.2)
    began = time.monotonic()
    assert "has no /metrics" in scraper.stop(patience_s=0.2)[0]
    assert time.monotonic() - began < 3.0
    over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_disk_that_takes_nothing_is_a_note(tmp_path: Path) -> None:
    with server(lambda _: whole(PAGE)) as url:
        scraper = Scraper(SERVER.writer(tmp_path / "nowhere"), pages(url), EVERY_S)
        scraper.start(0)
        wait_for(scraper, 1)
        [note] = scraper.stop()
    assert "later server figures are missing" in note


def test_a_key_that_the_page_repeats_is_not_in_the_note(tmp_path: Path) -> None:
    key = "sk-VERYSECRET-0123456789"
    with server(lambda _: f"what is {key}\r\n\r\n".encode()) as url:
        sources = [
            MetricsPage("a", find_place(url), {"Authorization": f"Bearer {key}"}),
            MetricsPage("b", find_place(f"{url}?key={key}")),
        ]
        _, notes, _ = scrape(tmp_path, sources)
    assert ["can be read (what is ...\r\n)" in note for note in notes] == [True, True]


class FakeNvml:
    """Two GPUs, of which the second does not tell its power."""

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=50 + device, memory=10)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=20 << 30, total=80 << 30)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        if device:
            raise RuntimeError("Not Supported")
        return 312_500


def test_gpus_tell_what_they_can() -> None:
    assert Gpus(FakeNvml()).read() == [
        ("gpu:0", "gpu_use", 0.5),
        ("gpu:0", "gpu_memory_use", 0.25),
        ("gpu:0", "gpu_power_w", 312.5),
        ("gpu:1", "gpu_use", 0.51),
        ("gpu:1", "gpu_memory_use", 0.25),
    ]


def test_gpus_are_read_where_there_are_any_and_silently_not_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    scraper = Scraper.of(SERVER.writer(tmp_path), {})
    scraper.start(0)
    assert scraper.stop() == ()
    table, _ = SERVER.read(tmp_path)
    assert table is not None
    assert set(table.column("replica").to_pylist()) == {"gpu:0", "gpu:1"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus.find() is None
    nothing = Scraper.of(SERVER.writer(tmp_path), {})
    nothing.start(0)
    assert nothing.stop() == ()
