"""The view: what it lists, what it re-scores, what it follows, and whom it refuses."""

import gc
import http.client
import json
import shutil
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from openloop.cli import cli
from openloop.errors import RunError, SpecError
from openloop.frontier import open_frontier
from openloop.records import Manifest, Now, Run, RunWriter, forget_now, open_run, read_now, write_now
from openloop.records.tail import Tail
from openloop.report.curve import read_frontier_subject
from openloop.report.read import read_report
from openloop.score import judged, score
from openloop.score.streams import read_streams
from openloop.view import ViewServer
from openloop.view.live import live_report
from openloop.view.shelf import Shelf, entries
from tests.reports import fleet_run, write_frontier
from tests.runs import batch, row, steady_run


@contextmanager
def serving(folder: Path, **how: Any) -> Iterator[ViewServer]:
    with ViewServer(folder, **how) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def ask(server: ViewServer, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    place = urlsplit(server.url)
    link = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
    try:
        link.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            link.putheader(name, value)
        link.endheaders()
        answer = link.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        link.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    steady_run(slo="ttft<=300ms").save(root / "steady")
    fleet_run(600).save(root / "deep" / "fleet")
    write_frontier(root / "front", rates=(3, 9), seconds=60.0)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewServer]:
    with serving(folder) as found:
        yield found


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_it_listens_on_ipv6(host: str, folder: Path) -> None:
    with ViewServer(folder, host) as server:
        assert server.url == f"http://[::1]:{server.server_address[1]}/"


def test_the_list_has_every_run_and_frontier_with_its_verdict(server: ViewServer, folder: Path) -> None:
    found = server.shelf.cards()
    assert [card["name"] for card in found] == ["deep/fleet", "front", "steady"]
    while any(card.get("pending") for card in found):
        found = json.loads(ask(server, "/api/list")[2])["entries"]
    by_name = {card["name"]: card for card in found}
    wanted = score(folder / "steady")
    assert by_name["steady"]["goodput"] == wanted.goodput_rps
    assert by_name["steady"]["verdict"] == "good"
    shown = by_name["steady"]["shown"]
    assert (
        f"Users accepted {shown['goodput'][:-2]} of {shown['offered'][:-2]} requests" in by_name["steady"]["headline"]
    )
    assert shown["attainment"] == "100.0%"
    assert shown["p99"].endswith(" ms")
    assert by_name["front"]["kind"] == "frontier"


def test_a_run_is_scored_against_whatever_is_asked(server: ViewServer, folder: Path) -> None:
    for slo in ("ttft<=150ms", "ttft<=120ms, tpot<=30ms", "read>=20tok/s"):
        status, _, text = ask(server, f"/api/score?what=steady&slo={quote(slo)}")
        assert status == 200
        assert json.loads(text)["score"] == score(folder / "steady", slo).to_dict()


def test_a_frontier_is_scored_again_as_if_it_were_the_first_time(server: ViewServer, folder: Path) -> None:
    for slo in ("tpot<=35ms", "tpot<=80ms", "ttft<=300ms, tpot<=60ms", "read>=30tok/s", "ttft<=200ms"):
        told = json.loads(ask(server, f"/api/score?what=front&slo={quote(slo)}")[2])["score"]
        assert told == read_report(folder / "front", slo).data


def test_a_frontier_is_judged_again_from_what_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(folder)
    entry = shelf.find("front")
    shelf.frontier(entry, "tpot<=35ms")
    read: list[str] = []

    def noted(run: Run, *more: Any) -> Any:
        read.append(Path(run.path or "").name)
        return read_streams(run, *more)

    monkeypatch.setattr(judged, "read_streams", noted)
    found = shelf.frontier(entry, "tpot<=80ms")
    assert read == []
    anew = read_frontier_subject(folder / "front", "tpot<=80ms").detail
    assert found.detail
    assert anew
    assert repr(found.detail.score) == repr(anew.score)
    wanted = open_frontier(folder / "front", "tpot<=80ms")
    assert found.frontier.knee == wanted.knee
    assert repr([point.scores for point in found.frontier.points]) == repr([point.scores for point in wanted.points])
    (folder / "front" / "points" / "3-1" / "run.json").touch()
    read.clear()
    shelf.frontier(entry, "tpot<=70ms")
    assert "3-1" in read


def test_a_point_without_a_window_is_shown_as_its_report_has_it(tmp_path: Path) -> None:
    """The report took its whole run into what it shows of the point, which itself leaves the warm-up out."""
    front = write_frontier(tmp_path / "front", rates=(3, 9), seconds=60.0)
    for where in sorted((front / "points").iterdir()):
        run = open_run(where)
        manifest = msgspec.structs.replace(run.manifest, window_ns=None)
        anew = Run.of(manifest, list(run.batches()))
        shutil.rmtree(where)
        anew.save(where)
    shelf = Shelf(tmp_path)
    told = read_report(front, point=9.0).data
    assert shelf.data(shelf.find("front"), point=9.0) == told
    assert told["detail"]["window_s"] == told["points"][1]["seconds"]


def test_a_point_that_is_measured_anew_does_not_count_until_it_is_over(tmp_path: Path) -> None:
    front = write_frontier(tmp_path / "front", rates=(3, 9), seconds=60.0)
    shelf = Shelf(tmp_path)
    assert len(shelf.frontier(shelf.find("front"), None).frontier.points) == 2
    shutil.rmtree(front / "points" / "9-1")
    anew = steady_run(slo="ttft<=300ms")
    with RunWriter(front / "points" / "9-1", anew.manifest) as writer:
        for each in anew.batches():
            writer.append(each)
        found = shelf.frontier(shelf.find("front"), None).frontier
        assert [point.rate for point in found.points] == [3.0]
        assert found.to_dict() == open_frontier(front).to_dict()


def test_what_was_judged_by_an_earlier_slo_is_not_kept(tmp_path: Path) -> None:
    """Until Python looks for circles, which it may not do in hundreds of SLOs."""
    steady_run(slo="ttft<=300ms").save(tmp_path / "run")
    write_frontier(tmp_path / "front", rates=(3, 9), seconds=30.0)
    shelf = Shelf(tmp_path)
    run, front = shelf.find("run"), shelf.find("front")
    gc.disable()
    try:
        shown = shelf.frontier(front, "ttft<=100ms").detail
        assert shown
        found = [shown.judged, shelf.subject(run, "ttft<=100ms").judged]
        found += [judged for *_, judged in shelf._trials.values()]
        gone = [weakref.ref(each) for each in found]
        del found, shown
        for bound in range(1, 8):
            shelf.frontier(front, f"ttft<={bound}s")
        assert [each() for each in gone] == [None] * 4
    finally:
        gc.enable()


def test_an_slo_by_class_is_changed_as_it_is_shown(tmp_path: Path) -> None:
    slo = {"default": "ttft<=1s", "classes": {"chat": "ttft<=400ms, tpot<=40ms"}}
    fleet_run(300, slo=slo).save(tmp_path / "run")
    with serving(tmp_path) as server:
        text = "default: ttft<=1s; chat: ttft<=400ms, tpot<=40ms"
        assert f'value="{escape(text)}"' in ask(server, "/show?what=run")[2]
        changed = text.replace("400ms", "150ms")
        told = json.loads(ask(server, f"/api/score?what=run&slo={quote(changed)}")[2])["score"]
        shown = unescape(ask(server, f"/show?what=run&slo={quote(changed)}")[2])
    wanted = score(tmp_path / "run", slo | {"classes": {"chat": "ttft<=150ms, tpot<=40ms"}})
    assert told["attainment"] == wanted.attainment
    assert told["slo"] == changed
    fleet_run(300, slo=changed).save(tmp_path / "text")
    assert score(tmp_path / "text").attainment == wanted.attainment
    assert f"openloop report {tmp_path / 'run'} --slo '{changed}'" in shown


def test_a_page_has_a_slider_for_each_gate_of_time(server: ViewServer) -> None:
    status, headers, text = ask(server, f"/show?what=deep%2Ffleet&slo={quote('ttft<=1s, tpot<=40ms')}")
    assert status == 200
    assert text.count("data-gate=") == 2
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "connect-src &#x27;self&#x27;" in text


def test_two_of_a_kind_can_be_compared(server: ViewServer, folder: Path) -> None:
    status, _, text = ask(server, "/compare?a=steady&b=deep%2Ffleet")
    assert status == 200
    assert "change, A to B" in text
    told = json.loads(ask(server, f"/api/score?a=steady&b=deep%2Ffleet&slo={quote('ttft<=200ms')}")[2])["score"]
    assert told["b"]["goodput_rps"] == score(folder / "deep" / "fleet", "ttft<=200ms").goodput_rps
    assert ask(server, "/compare?a=steady&b=front")[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/compare?a=steady&b=..%2Fsecret",
        "/compare?a=steady",
        "/show?what=..%2Fsecret",
        "/api/report?what=/etc",
        "/api/score?what=steady/../../secret",
        "/api/report?what=linked",
        "/api/report?what=%00",
        "/api/report",
        "/api/score?what=steady&slo=/etc/hostname.yaml",
        "/api/score?what=steady&slo=nonsense",
        "/api/report?what=steady&request=abc",
        "/api/report?what=steady&request=123456789",
        "/api/report?what=front&point=77",
    ],
)
def test_nothing_outside_of_the_folder_is_ever_shown(path: str, tmp_path: Path) -> None:
    steady_run(slo="ttft<=300ms").save(tmp_path / "secret")
    steady_run(slo="ttft<=300ms").save(tmp_path / "root" / "steady")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "secret")
    sly = tmp_path / "root" / "sly"
    sly.mkdir()
    for name in ("run.json", "requests.parquet"):
        (sly / name).symlink_to(tmp_path / "secret" / name)
    assert [entry.name for entry in entries(tmp_path / "root")] == ["steady"]
    with serving(tmp_path / "root") as found:
        status, _, text = ask(found, path)
    assert status == 400
    assert "Traceback" not in text
    assert "requests per second" not in text


@pytest.mark.parametrize("inside", ["nodes", "nodes/0", "nodes/0/requests.parquet"])
def test_rows_of_another_machine_that_lie_elsewhere_are_not_shown(inside: str, tmp_path: Path) -> None:
    for where in ("elsewhere", "root/run"):
        steady_run(slo="ttft<=300ms").save(tmp_path / where)
        steady_run(slo="ttft<=300ms").save(tmp_path / where / "nodes" / "0")
    assert [entry.name for entry in entries(tmp_path / "root")] == ["run"]
    lure = tmp_path / "root" / "run" / inside
    lure.rename(tmp_path / "aside")
    lure.symlink_to(tmp_path / "elsewhere" / inside)
    assert not list(entries(tmp_path / "root"))


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/run.json", "/steady/run.json", "/api/nothing", "//etc/passwd"])
def test_files_are_not_served_at_all(path: str, server: ViewServer) -> None:
    assert ask(server, path)[0] == 404


def test_a_question_that_is_too_long_is_refused(server: ViewServer) -> None:
    assert ask(server, "/api/score?what=" + "x" * 5000)[0] == 414


def test_another_sites_name_is_refused(server: ViewServer) -> None:
    """A page elsewhere may point its own name at this machine; the browser then still says which name it asked for."""
    assert ask(server, "/api/list", Host="evil.example:8080")[0] == 403
    assert ask(server, "/api/list", Host="localhost:8080")[0] == 200
    assert ask(server, "/api/list", Host="[::1]:8080")[0] == 200
    assert ask(server, "/api/list", Host="[")[0] == 403
    assert ask(server, "/api/list", Host="LocalHost")[0] == 200
    assert ask(server, "/api/list", Host="")[0] == 403


def test_beyond_loopback_a_token_is_needed(folder: Path) -> None:
    with serving(folder, host="0.0.0.0") as found:
        assert found.token
        assert len(found.token) >= 20
        assert found.url.endswith(f"?token={found.token}")
        assert ask(found, "/api/list")[0] == 403
        assert ask(found, "/api/list?token=wrong")[0] == 403
        assert ask(found, "/api/list", Cookie=f"openloop-token={found.token}x")[0] == 403
        status, headers, _ = ask(found, f"/?token={found.token}")
        assert status == 200
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        assert ask(found, "/api/list", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200
        assert ask(found, "/api/list", Authorization=f"Bearer {found.token}")[0] == 200


def test_a_chosen_token_holds_on_loopback_as_well(folder: Path) -> None:
    with serving(folder, token="sesame") as found:
        assert ask(found, "/api/list")[0] == 403
        assert ask(found, "/api/list?token=sesame")[0] == 200


def test_a_token_of_any_letters_comes_back_in_the_cookie(folder: Path) -> None:
    with serving(folder, token="p@ss wörd;/x") as found:
        _, headers, _ = ask(found, found.url.partition(str(found.server_address[1]))[2])
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert ask(found, "/api/list", Cookie=cookie)[0] == 200


def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    rows = [row(i, i / 50, (0.1, 0.12)) for i in range(400)]
    writer = RunWriter(tmp_path / "run", Manifest(source="test", slo="ttft<=200ms"))
    tail = Tail(tmp_path / "run")
    assert live_report(tail).headline == "The run has just begun"
    for part in range(4):
        writer.append(batch(rows[100 * part : 100 * part + 100]))
        write_now(tmp_path / "run", Now(2.0 * part + 2.0, 100 * part + 105, 5))
        report = live_report(tail)
        assert report.data["rows"] == 100 * part + 100
        assert report.data["in_flight"] == 5
    assert report.data["goodput_rps"] == pytest.approx(400 / 8, rel=0.1)
    assert report.data["attainment"] == 1.0
    assert report.data["p50_s"] == pytest.approx(0.1)
    with (tmp_path / "run" / "requests.arrows").open("ab") as spool:
        spool.write(b"\xff\xff\xff\xff\x10\x00")  # half a message
    assert live_report(tail).data["rows"] == 400
    shelf = Shelf(tmp_path)
    assert shelf.cards()[0]["live"]
    writer.close()


def test_a_run_that_ends_becomes_an_ordinary_one(tmp_path: Path) -> None:
    rows = [row(i, i / 50, (0.1, 0.12)) for i in range(200)]
    shelf = Shelf(tmp_path)
    with RunWriter(tmp_path / "run", Manifest(source="test", slo="ttft<=200ms")) as writer:
        writer.append(batch(rows))
        assert shelf.report(shelf.find("run")).verdict == "live"
    assert shelf.report(shelf.find("run")).verdict == "good"


def test_now_is_small_whole_and_gone_at_the_end(tmp_path: Path) -> None:
    write_now(tmp_path, Now(1.5, 10, 3))
    now = read_now(tmp_path)
    assert now is not None
    assert (now.seconds, now.due, now.in_flight) == (1.5, 10, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["now.json"]
    (tmp_path / "now.json").write_text("{")
    assert read_now(tmp_path) is None
    forget_now(tmp_path)
    forget_now(tmp_path)
    assert not list(tmp_path.iterdir())
    write_now(tmp_path / "nowhere", Now(1.0, 1, 1))


def test_a_run_that_changes_is_read_again(tmp_path: Path) -> None:
    steady_run(200, slo="ttft<=300ms").save(tmp_path / "run")
    shelf = Shelf(tmp_path)
    assert shelf.subject(shelf.find("run"), None).score.requests == 200
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    (tmp_path / "run").rmdir()
    steady_run(300, slo="ttft<=300ms").save(tmp_path / "run")
    assert shelf.subject(shelf.find("run"), None).score.requests == 300


def test_damaged_things_are_in_the_list_with_what_is_wrong(tmp_path: Path) -> None:
    steady_run(200, slo="ttft<=1s").save(tmp_path / "damaged")
    (tmp_path / "damaged" / "requests.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "frontier.json").write_text("{}")
    shelf = Shelf(tmp_path)
    cards = shelf.cards()
    while any(card.get("pending") for card in cards):
        cards = shelf.cards()
    told = {card["name"]: card["headline"] for card in cards}
    assert "damaged or cut short" in told["damaged"]
    assert "frontier.json" in told["empty"]


def test_a_run_without_an_slo_waits_for_one(tmp_path: Path) -> None:
    for name, slo in (("imported", None), ("other", "ttft<=300ms")):
        steady_run(slo=slo, model="a model").save(tmp_path / name)
    with serving(tmp_path) as server:
        cards = server.shelf.cards()
        while any(card.get("pending") for card in cards):
            cards = server.shelf.cards()
        assert [card["verdict"] for card in cards] == ["unscored", "good"]
        assert cards[0]["model"] == "a model"
        for path in ("/show?what=imported", "/compare?a=imported&b=other"):
            status, _, text = ask(server, path)
            assert status == 200
            assert "imported has no SLO of its own: give one, such as ttft&lt;=500ms" in text
            assert 'id="gates" size="38" value=""' in text
        status, _, text = ask(server, "/api/score?what=imported")
        assert (status, "has no SLO of its own" in text) == (400, True)
        assert ask(server, f"/show?what=imported&slo={quote('ttft<=300ms')}")[2].count("data-gate=") == 1
        assert "change, A to B" in ask(server, "/compare?a=other&b=imported")[2]


def test_bad_input_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a folder"):
        ViewServer(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="cannot be listened on"):
        ViewServer(tmp_path, host="203.0.113.7")
    with serving(tmp_path) as taken, pytest.raises(SpecError, match="cannot be listened on"):
        ViewServer(tmp_path, port=taken.server_address[1])
    done = CliRunner().invoke(cli, ["view", str(tmp_path / "nowhere")])
    assert "is not a folder" in str(done.exception)


def test_a_run_begun_anew_in_the_same_folder_is_followed_from_its_start(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    rows = [row(i, i / 50, (0.1, 0.12)) for i in range(300)]
    for year, count in (("2025", 300), ("2026", 20)):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        writer = RunWriter(folder, Manifest(source="test", slo="ttft<=1s", started_at=f"{year}-01-01T00:00:00+00:00"))
        writer.append(batch(rows[:count]))
        write_now(folder, Now(6.0, count, 0))
        assert shelf.report(shelf.find("run")).data["rows"] == count
        writer.close()
