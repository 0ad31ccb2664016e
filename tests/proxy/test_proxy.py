"""A proxy between clients and replicas: what passes, what is decided, what is kept."""

import asyncio
import gc
import json
import resource
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from openloop.errors import SpecError
from openloop.proxy import ledger, line, read_proxy
from openloop.proxy.attempt import Attempt
from openloop.proxy.fleet import Fleet
from openloop.proxy.hearing import Hearing
from openloop.proxy.ledger import Flight, Ledger, Meters, _append
from openloop.records import Run
from openloop.routing import replay
from openloop.score import score
from openloop.slo import read_slo
from tests.proxy.fakes import (
    CHAT,
    DONE,
    Fake,
    breaks,
    closed,
    fails_and_hangs,
    fails_later,
    hangs,
    last,
    refuses,
    three_tokens,
    token,
    until,
    world,
)

WHOLE = token("one") + token("two") + token("three") + last(3) + DONE


def rows(run: Run) -> list[dict[str, Any]]:
    return [row for batch in run.batches() for row in batch.to_pylist()]


def test_a_stream_passes_as_it_comes_and_is_a_row(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens, slo="ttft<=10s") as w:
            names: dict[str, Any] = {
                "x_workload_class": "chat",
                "x_session_id": "s1",
                "x_tenant": "t",
                "Authorization": "Bearer hush",
            }
            async with w.post("the secret prompt", **names) as reply:
                seen = await reply.content.readany()
                assert seen == token("one")  # while the replica waits with the rest
                w.fakes[0].go.set()
                assert seen + await reply.read() == WHOLE
                assert reply.headers["X-Openloop-Replica"] == "a"
            assert w.fakes[0].asked[0]["Authorization"] == "Bearer hush"
            return await w.run()

    run = asyncio.run(main())
    (row,) = rows(run)
    assert (row["status"], row["http_status"], row["finish_reason"]) == ("ok", 200, "stop")
    assert (row["replica"], row["workload_class"], row["tenant"]) == ("a", "chat", "t")
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (7, 4, 3)
    assert len(row["event_ns"]) == 3
    assert row["merged_events"] <= 1
    assert row["scheduled_ns"] <= row["sent_ns"] <= row["event_ns"][0] < row["event_ns"][1] <= row["ended_ns"]
    assert row["session_id"] is not None
    assert run.manifest.source == "proxy"
    assert '"run":null' in (run.manifest.engine_flags or "")
    assert str(tmp_path) not in (run.manifest.engine_flags or "")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert b"secret" not in kept
    assert b"hush" not in kept


@pytest.mark.parametrize("keys", [{}, {"retry": "1"}])
def test_a_stream_that_does_not_say_that_it_is_one_is_one(keys: dict[str, str], tmp_path: Path) -> None:
    async def unnamed(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=WHOLE, content_type="text/plain")

    async def main() -> Run:
        async with world(tmp_path, unnamed, **keys) as w:
            assert await w.ask() == (200, WHOLE)
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["finish_reason"], len(row["event_ns"])) == ("ok", "stop", 3)


def test_a_stream_that_nobody_asked_for_is_an_error(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            assert await w.ask(stream=False) == (200, WHOLE)
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"]) == ("error", "a request for no stream was answered with one")


def test_a_stream_to_an_older_client_ends_with_its_connection(tmp_path: Path) -> None:
    async def main() -> bytes:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
            body = b'{"stream": true, "messages": []}'
            head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            async with asyncio.timeout(10):
                got = await reader.read(-1)
            await closed(writer)
            return got

    assert asyncio.run(main()).endswith(WHOLE)


def test_a_limit_that_is_no_number_costs_no_rows(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            for limit in (True, 1.5, -1, 2**40, "x", 8):
                async with w.session.post(w.url + CHAT, json={"max_tokens": limit, "stream": True}) as reply:
                    assert await reply.read() == WHOLE
            return await w.run()

    assert [row["requested_tokens"] for row in rows(asyncio.run(main()))] == [None] * 5 + [8]


def test_a_client_that_goes_before_anybody_was_asked_is_a_row(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens, hedge="1s") as w:
            asked = asyncio.Event()

            async def name(*_: object) -> None:
                asked.set()
                await asyncio.sleep(3600)

            w.proxy.caches.name = name  # type: ignore[method-assign, assignment]
            task = asyncio.create_task(w.ask())
            await asked.wait()
            task.cancel()
            await until(lambda: w.proxy.ledger.in_flight == 0)
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"], row["sent_ns"]) == ("cancelled", "the client went away", None)


@pytest.mark.parametrize("now", [30.0, 100.0, 100.5, 100.999])
def test_rates_are_over_the_time_that_was_counted(now: float) -> None:
    meters = Meters([])
    row = {"workload_class": None, "replica": "a", "status": "ok", "output_tokens": 4}
    for tenth in range(int(10 * now)):
        meters.count(tenth / 10, [(row, True)])
    page = meters.page(now, Fleet(read_proxy({"replicas": ["http://127.0.0.1:1"]}), 0, None, print), 0, 0)
    told = {name: float(value) for name, value in (each.rsplit(" ", 1) for each in page.splitlines() if each[0] != "#")}
    assert told['openloop_goodput_rps{class=""}'] == pytest.approx(10.0, rel=0.002)


def test_an_answer_without_end_is_passed_on_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openloop.proxy.hearing.MOST_EVENTS", 3)
    hearing = Hearing(streamed=True)
    for number in range(10):
        hearing.feed(token("one"), number)
    found = hearing.close()
    assert (found.status, len(found.event_ns)) == ("error", 3)
    assert found.error == "the answer has more than 3 events, and is not read any further"


def test_an_answer_at_once_passes_too(tmp_path: Path) -> None:
    said = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}

    async def whole(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(said)

    async def main() -> Run:
        async with world(tmp_path, whole) as w:
            async with w.post(stream=False) as reply:
                assert await reply.json() == said
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["output_tokens"], row["event_tokens"], row["event_ns"]) == ("ok", 2, None, [])


@pytest.mark.parametrize("policy", ["round-robin", "power-of-two", "prefix-aware", "sticky"])
def test_the_log_of_decisions_replays_with_identical_choices(policy: str, tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with world(tmp_path, three_tokens, three_tokens, three_tokens, routing=policy, slo="ttft<=20s") as w:
            for fake in w.fakes:
                fake.go.set()
            asks = [w.ask(f"{'abc'[n % 3] * 600} {n}", x_session_id=f"s{n % 5}") for n in range(24)]
            await asyncio.gather(*asks[:16])
            w.proxy.fleet.drain({"a": False, "b": True, "c": False})
            await asyncio.gather(*asks[16:])
            return [row["replica"] for row in sorted(rows(await w.run()), key=lambda row: int(row["request_id"]))]

    went = asyncio.run(main())
    assert None not in went
    assert "b" not in went[16:]
    for python in (False, True):
        found = replay(tmp_path / "run" / "decisions.jsonl", python=python)
        assert (found.decisions, found.elsewhere) == (24, [])


@pytest.mark.parametrize(
    ("admission", "passed"), [("in-flight:most=2", 2), ("queue:most=1", 2), ("bucket:rate=0.001,burst=3", 3)]
)
def test_admission_sheds_what_is_too_much(admission: str, passed: int, tmp_path: Path) -> None:
    """Those that have their first token wait no more, so a queue of one lets a second one in."""

    async def main() -> Run:
        async with world(tmp_path, three_tokens, admission=admission) as w:
            asking = [asyncio.create_task(w.ask()) for _ in range(1)]
            await until(lambda: w.proxy.fleet.replicas[0].waiting == 0 and w.proxy.fleet.replicas[0].requests == 1)
            if admission.startswith("queue"):
                w.fakes[0].handler = hangs
            asking += [asyncio.create_task(w.ask()) for _ in range(1)]
            await until(lambda: w.proxy.fleet.replicas[0].requests == 2)
            asking += [asyncio.create_task(w.ask()) for _ in range(3)]
            await until(lambda: w.proxy.ledger.ended >= 5 - passed)
            w.fakes[0].go.set()
            if admission.startswith("queue"):
                asking[1].cancel()
            found = await asyncio.gather(*asking, return_exceptions=True)
            statuses = [each[0] for each in found if not isinstance(each, BaseException)]
            assert statuses.count(429) == 5 - passed
            await until(lambda: w.proxy.ledger.in_flight == 0)
            return await w.run()

    found = [row["status"] for row in rows(asyncio.run(main()))]
    assert found.count("shed") == 5 - passed


def test_a_stream_that_begins_with_an_error_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> Run:
        how = {"routing": "round-robin", "retry": "retry:most=1,base=1ms", "timeout": "60s"}
        async with world(tmp_path, fails_and_hangs, three_tokens, **how) as w:
            w.fakes[1].go.set()
            assert await w.ask() == (200, WHOLE)
            await until(lambda: w.fakes[0].left == 1)
            return await w.run()

    assert [row["status"] for row in rows(asyncio.run(main()))] == ["error", "ok"]


def test_a_refusal_in_pieces_is_passed_on_whole(tmp_path: Path) -> None:
    async def in_pieces(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(status=400)
        await response.prepare(request)
        await response.write(b"too ")
        await asyncio.sleep(0.05)
        await response.write(b"long" * 50_000)
        return response

    async def main() -> tuple[int, bytes]:
        async with world(tmp_path, in_pieces) as w:
            return await w.ask()

    assert asyncio.run(main()) == (400, b"too " + b"long" * 50_000)


def test_a_retry_goes_elsewhere_and_the_client_sees_one_answer(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, refuses, three_tokens, routing="round-robin", retry="retry:most=2,base=1ms") as w:
            w.fakes[1].go.set()
            assert await w.ask() == (200, WHOLE)
            return await w.run()

    first, second = rows(asyncio.run(main()))
    assert (first["kind"], first["status"], first["http_status"], first["replica"]) == ("first", "shed", 503, "a")
    assert (second["kind"], second["status"], second["replica"], second["attempt"]) == ("retry", "ok", "b", 1)
    assert first["error"] == "status 503"  # and not what the replica quotes
    assert first["sent_ns"] < first["first_any_ns"] <= first["ended_ns"]
    assert second["scheduled_ns"] == first["scheduled_ns"] < second["sent_ns"]


def test_nothing_is_retried_after_the_first_token(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, breaks, three_tokens, routing="round-robin", retry="2") as w:
            with pytest.raises(aiohttp.ClientPayloadError):
                await w.ask()
            assert not w.fakes[1].asked
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], len(row["event_ns"])) == ("error", 1)
    assert "cut" in row["error"]


def test_an_attempt_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens, timeout="200ms") as w:
            with pytest.raises(aiohttp.ClientPayloadError):
                await w.ask()
            w.fakes[0].handler = hangs
            assert (await w.ask(x_session_id="\udcff"))[0] == 504
            await until(lambda: w.fakes[0].left == 2)
            return await w.run()

    assert [row["status"] for row in rows(asyncio.run(main()))] == ["timeout", "timeout"]


def test_a_refusal_that_stays_one_is_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, refuses, retry="retry:most=1,base=1ms") as w:
            status, body = await w.ask()
            assert (status, b"busy" in body) == (503, True)
            assert len(w.fakes[0].asked) == 2

    asyncio.run(main())


def test_a_copy_wins_where_the_first_is_late_and_the_late_one_is_cancelled(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, hangs, three_tokens, routing="round-robin", hedge="20ms") as w:
            w.fakes[1].go.set()
            assert await w.ask() == (200, WHOLE)
            await until(lambda: w.fakes[0].left == 1)
            assert [each.requests for each in w.proxy.fleet.replicas] == [0, 0]
            return await w.run()

    first, copy = rows(asyncio.run(main()))
    assert (first["kind"], first["status"], first["replica"]) == ("first", "cancelled", "a")
    assert (copy["kind"], copy["status"], copy["replica"]) == ("hedge", "ok", "b")


def test_a_copy_that_answers_after_the_first_has_failed_leaves_that_a_failure(tmp_path: Path) -> None:
    async def answers_later(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        await fake.go.wait()
        return await three_tokens(fake, request)

    async def main() -> Run:
        async with world(tmp_path, fails_later, answers_later, routing="round-robin", hedge="5ms") as w:
            asking = asyncio.create_task(w.ask())
            await until(lambda: bool(w.fakes[1].asked))
            w.fakes[0].go.set()
            await asyncio.sleep(0.1)
            w.fakes[1].go.set()
            assert await asking == (200, WHOLE)
            return await w.run()

    first, copy = rows(asyncio.run(main()))
    assert (first["kind"], first["status"], first["error"]) == ("first", "error", "an error in the stream")
    assert (copy["kind"], copy["status"]) == ("hedge", "ok")


@pytest.mark.parametrize("how", [{}, {"hedge": "5ms"}])
@pytest.mark.parametrize("handler", [three_tokens, hangs])
def test_a_client_that_goes_is_gone_for_the_replica_too(
    how: dict[str, str], handler: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    async def main() -> Run:
        async with world(tmp_path, handler, handler, **how) as w:
            asking = asyncio.create_task(w.ask())
            await until(lambda: any(fake.asked for fake in w.fakes))
            asking.cancel()
            await until(lambda: w.proxy.ledger.in_flight == 0)
            await until(lambda: sum(fake.left for fake in w.fakes) == sum(len(fake.asked) for fake in w.fakes))
            assert [each.requests for each in w.proxy.fleet.replicas] == [0, 0]
            return await w.run()

    assert {row["status"] for row in rows(asyncio.run(main()))} == {"cancelled"}


def test_a_client_that_goes_because_of_an_error_leaves_that_a_failure(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, fails_and_hangs) as w:
            async with w.post() as reply:
                assert b"out of memory" in await reply.content.readany()
                reply.close()
            await until(lambda: w.proxy.ledger.in_flight == 0)
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"]) == ("error", "an error in the stream")


def test_a_client_that_goes_while_a_copy_runs_leaves_a_failed_first_a_failure(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, fails_later, hangs, routing="round-robin", hedge="5ms") as w:
            asking = asyncio.create_task(w.ask())
            await until(lambda: bool(w.fakes[1].asked))
            w.fakes[0].go.set()
            await asyncio.sleep(0.1)
            asking.cancel()
            await until(lambda: w.proxy.ledger.in_flight == 0)
            return await w.run()

    first, copy = rows(asyncio.run(main()))
    assert (first["status"], first["error"]) == ("error", "an error in the stream")
    assert (copy["status"], copy["error"]) == ("cancelled", "the client went away")


def test_a_client_that_is_gone_when_its_answer_begins_is_no_defect_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def relay(request: web.BaseRequest, attempt: Attempt) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            monkeypatch.setattr(w.proxy, "_relay", relay)
            with pytest.raises(aiohttp.ClientError):
                await w.ask()
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"]) == ("cancelled", "the client went away")
    assert "Traceback" not in caplog.text


def test_a_client_that_is_gone_before_there_is_a_task_for_it_is_gone_for_the_replica_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            begin = w.proxy.begin

            def begin_and_go(request: web.BaseRequest) -> Any:
                errand = begin(request)
                assert request.transport is not None
                request.transport.abort()
                return errand

            monkeypatch.setattr(w.proxy, "begin", begin_and_go)
            with pytest.raises(aiohttp.ClientError):
                await w.ask()
            await until(lambda: w.proxy.ledger.in_flight == 0)
            assert w.proxy.fleet.replicas[0].requests == 0
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"]) == ("cancelled", "the client went away")


def test_a_policy_that_fails_costs_its_request_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ArithmeticError

    async def main() -> None:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            with monkeypatch.context() as patch:
                patch.setattr(w.proxy.fleet, "send", fail)
                assert (await w.ask())[0] == 500
            assert w.proxy.ledger.in_flight == 0
            assert await w.ask() == (200, WHOLE)

    asyncio.run(main())


def test_connections_to_replicas_are_used_again_unless_they_have_rested_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "KEPT_S", 3600.0)
    seen: list[asyncio.Transport] = []

    async def answers(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        seen.append(request.transport)
        return web.json_response({})

    async def main() -> None:
        async with world(tmp_path, answers) as w:
            await w.ask(stream=False)
            monkeypatch.setattr(line, "KEPT_S", 0.01)
            await w.ask(stream=False)
            await until(seen[1].is_closing)
            await w.ask(stream=False)
            assert seen[0] is seen[1] is not seen[2]

    asyncio.run(main())


def test_a_replica_that_is_not_well_leaves_and_comes_back(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens, three_tokens, health_every="20ms", routing="round-robin") as w:
            for fake in w.fakes:
                fake.go.set()
            w.fakes[0].well = False
            await until(lambda: not w.proxy.fleet.open[0])
            for _ in range(3):
                await w.ask()
            assert not w.fakes[0].asked
            assert 'openloop_replica_well{replica="a"} 0' in await w.metrics()
            w.fakes[0].well = True
            await until(lambda: w.proxy.fleet.open[0])
            for _ in range(2):
                await w.ask()
            assert w.fakes[0].asked
            w.fakes[0].well = w.fakes[1].well = False
            await until(lambda: not any(each.well for each in w.proxy.fleet.replicas))
            assert (await w.ask())[0] == 200  # where none is well, it may be the proxy that is not
            return await w.run()

    run = asyncio.run(main())
    assert [event.kind for event in run.manifest.events][:2] == ["failure", "recovery"]
    assert rows(run)[-1]["status"] == "ok"


def test_who_cannot_be_reached_is_passed_over_and_then_left_out(tmp_path: Path) -> None:
    async def main() -> Run:
        nobody = [{"url": "http://127.0.0.1:9", "name": "nobody"}]
        async with world(tmp_path, three_tokens, extra_replicas=nobody, routing="round-robin", health=None) as w:
            w.fakes[0].go.set()
            assert [(await w.ask())[0] for _ in range(8)] == [200] * 8
            with pytest.raises(SpecError, match="by a new start"):
                w.proxy.fleet.drain({"a": True})
            assert not w.proxy.fleet.replicas[0].draining
            w.proxy.fleet.drain({"a": True, "nobody": False})
            assert (await w.ask())[0] == 502
            w.proxy.fleet.drain({"a": True, "nobody": True})
            assert (await w.ask())[0] == 503
            return await w.run()

    found = [(row["replica"], row["kind"], row["status"]) for row in rows(asyncio.run(main()))]
    assert found.count(("nobody", "first", "error")) == 3
    assert found.count(("a", "retry", "ok")) == 2
    assert found.count(("a", "first", "ok")) == 6


def test_who_was_left_out_is_tried_again_where_nobody_asks_whether_it_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openloop.proxy.fleet.AGAIN_S", 0.05)

    async def main() -> None:
        async with world(tmp_path, three_tokens, three_tokens, health=None) as w:
            for _ in range(2):
                w.proxy.fleet.note(w.proxy.fleet.replicas[0], False)
            assert w.proxy.fleet.open == [False, True]
            await until(lambda: w.proxy.fleet.open[0])

    asyncio.run(main())


def test_a_policy_of_ones_own_that_fails_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ArithmeticError("boom")

    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            with monkeypatch.context() as patch:
                patch.setattr(w.proxy.fleet.router, "route", fail)
                assert (await w.ask())[0] == 429
            return await w.run()

    (row,) = rows(asyncio.run(main()))
    assert (row["status"], row["error"]) == ("shed", "the routing policy failed: ArithmeticError: boom")


def test_what_is_kept_of_requests_does_not_grow_with_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, three_tokens, breaks, hedge="10s", routing="round-robin") as w:
            w.fakes[0].go.set()
            for _ in range(3):
                found = await asyncio.gather(*(w.ask("x" * 600) for _ in range(60)), return_exceptions=True)
                assert len([each for each in found if isinstance(each, Exception)]) == 30
                await until(lambda: w.proxy.ledger.in_flight == 0)
                await w.proxy.ledger.flush()

            def kept() -> int:
                gc.collect()
                return sum(isinstance(each, Flight | Attempt | Hearing) for each in gc.get_objects())

            await until(lambda: kept() <= 60)  # with the errors of the last connections; there were 540 in all
            assert not w.proxy.fleet.router._sent

    asyncio.run(main())


def test_a_log_that_does_not_fit_ends_with_a_whole_line(tmp_path: Path) -> None:
    path, limits = tmp_path / "log", resource.getrlimit(resource.RLIMIT_FSIZE)
    _append(path, b"first\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            _append(path, b"second\n" * 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    _append(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_attainment_and_goodput_come_first_and_are_the_scorers(tmp_path: Path) -> None:
    slo = {"default": "ttft<=10s", "classes": {"chat": "ttft<=20ms", "other": "e2e<=10s"}}

    async def slow(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(0.05 if request.headers.get("x-slow") else 0.0)
        return await three_tokens(fake, request)

    async def main() -> tuple[str, Run]:
        async with world(tmp_path, slow, slow, slo=slo, routing="round-robin") as w:
            for fake in w.fakes:
                fake.go.set()
            for _ in range(3):
                await w.ask(x_workload_class="chat")
            await w.ask(x_workload_class="chat", x_slow="1")
            await w.ask(x_workload_class="nobody knows")
            await w.ask()
            await until(lambda: w.proxy.ledger.ended == 6)  # a client has its answer a moment before it is a row
            return await w.metrics(), await w.run()

    page, run = asyncio.run(main())
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert [line.partition("{")[0] for line in lines[:2]] == ["openloop_attainment", "openloop_attainment"]
    told = dict(line.rsplit(" ", 1) for line in lines)
    found = score(run, read_slo(slo), by=("class",))
    assert float(told['openloop_attainment{class="chat"}']) == found.by["class"]["chat"].attainment
    assert float(told['openloop_attainment{class="chat"}']) < 1
    assert "nobody knows" not in page
    order = [line.partition("{")[0] for line in lines]
    assert order.index("openloop_goodput_rps") < order.index("openloop_replica_attainment")
    assert float(told['openloop_requests_total{class="chat",status="ok"}']) == 4


def test_what_is_in_flight_is_served_to_its_end_and_the_rest_is_cut_off(tmp_path: Path) -> None:
    async def main() -> Run:
        async with world(tmp_path, three_tokens, drain="20s") as w:
            served, cut = asyncio.create_task(w.ask()), None
            await until(lambda: w.proxy.fleet.replicas[0].requests == 1)
            draining = asyncio.create_task(w.proxy.drain())
            await until(lambda: w.proxy.draining)
            assert (await w.ask())[0] == 503
            async with w.session.get(w.url + "/health") as reply:
                assert reply.status == 503
            w.fakes[0].go.set()
            assert await served == (200, WHOLE)
            await draining
            w.proxy.draining = False
            w.fakes[0].handler = hangs
            cut = asyncio.create_task(w.ask())
            await until(lambda: w.proxy.fleet.replicas[0].requests == 1)
            run = await w.run()
            with pytest.raises(aiohttp.ClientError):
                await cut
            return run

    found = [(row["status"], row["error"]) for row in rows(asyncio.run(main()))]
    assert found == [("shed", "the proxy is draining"), ("ok", None), ("error", "the proxy was stopped")]


def test_rows_that_are_being_written_when_it_stops_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, begun, go = Ledger._store, threading.Event(), threading.Event()

    def store_late(self: Ledger, ended: Any, decisions: Any) -> Any:
        if ended:
            begun.set()
            go.wait(20)
        return store(self, ended, decisions)

    monkeypatch.setattr(Ledger, "_store", store_late)

    async def main() -> Run:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            assert (await w.ask())[0] == 200
            await until(begun.is_set)
            asyncio.get_running_loop().call_later(0.3, go.set)
            return await w.run()

    assert len(rows(asyncio.run(main()))) == 1


def test_a_request_that_cannot_be_stored_costs_no_other_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "EVERY_S", 60.0)

    async def main() -> tuple[int, int, Run]:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            for label in ("a", "b", "c"):
                assert (await w.ask(x_tenant=label))[0] == 200
            await until(lambda: w.proxy.ledger.ended == 3)
            w.proxy.ledger._ended[1].tenant = 7  # type: ignore[assignment]
            run = await w.run()
            return w.proxy.ledger.rows, w.proxy.ledger.lost, run

    found, lost, run = asyncio.run(main())
    assert (found, lost) == (3, 1)
    assert [row["tenant"] for row in rows(run)] == ["a", "c"]


def test_whatever_goes_wrong_while_rows_are_stored_is_told_and_counted(tmp_path: Path) -> None:
    told: list[str] = []

    def judge(batch: Any) -> Any:
        if batch.num_rows and batch.column("tenant")[0].is_valid:
            raise ZeroDivisionError("nobody expects it")
        return np.zeros(0, np.int64), np.zeros(0, bool)

    async def main() -> Ledger:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            kept = w.proxy.ledger
            kept._judge, kept._tell = judge, told.append
            assert (await w.ask(x_tenant="a"))[0] == 200
            await until(lambda: kept.lost == 1)
            assert (await w.ask())[0] == 200
            assert len(rows(await w.run())) == 2
            return kept

    assert asyncio.run(main()).lost == 1
    assert told == ["rows are lost: nobody expects it"]


@pytest.mark.parametrize(("answer", "status"), [({}, "error"), ({"data": [{"embedding": [0.1]}]}, "ok")])
def test_a_whole_answer_that_holds_nothing_is_an_error(answer: Any, status: str) -> None:
    hearing = Hearing(streamed=False)
    hearing.feed(json.dumps(answer).encode(), 1)
    assert hearing.close().status == status
