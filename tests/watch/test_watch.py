"""Watching: burn rates by hand, a run followed as it is written, and what each source can and cannot show."""

import json
import math
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.cli import main
from openloop.errors import RunError, SpecError
from openloop.importers.foreign import Call
from openloop.importers.otel import run_of as run_of_spans
from openloop.load.prometheus import read_page
from openloop.records import Manifest, Now, Prices, Run, RunWriter, TimedEvent, make_batch, make_lists, write_now
from openloop.slo import read_slo
from openloop.watch import RULES, Settings, open_feed, parse_rules, watch
from openloop.watch.burn import Alarm, Alert, BurnRule, burn_rate
from openloop.watch.feeds import FinishedFeed, RunFeed, SpanFeed
from openloop.watch.frame import Frame, SecondCounts, columns, disruptions
from openloop.watch.outlets import MetricsServer, Webhook, metrics_page
from openloop.watch.pages import PageFeed, within
from tests.runs import batch, row, run_of, write_run


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A command in this process: what it printed, if it exits as it should."""

    def run(*args: str | Path, code: int = 0) -> Any:
        monkeypatch.setattr("sys.argv", ["openloop", *map(str, args)])
        with pytest.raises(SystemExit) as done:
            main()
        printed = capsys.readouterr()
        assert done.value.code == code, printed
        return printed

    return run


def counted(long: tuple[float, float], short: tuple[float, float]) -> dict[str, Callable[[float], tuple[float, float]]]:
    return {"goodput": lambda back: long if back == 3600 else short}


def test_burn_rates_by_hand() -> None:
    assert burn_rate(1000, 990, 0.99) == pytest.approx(1.0)  # one in a hundred may fail, and does
    assert burn_rate(1000, 856, 0.99) == pytest.approx(14.4)
    assert burn_rate(500, 250, 0.999) == pytest.approx(500.0)
    assert burn_rate(0, 0, 0.99) is None
    # What each default rule has used of a month's budget when its long window is full.
    assert [rule.factor * rule.long_s / (30 * 86400) for rule in RULES] == pytest.approx([0.02, 0.05, 0.10])


def test_an_alert_needs_both_windows_and_ends_with_the_short_one() -> None:
    alarm = Alarm([BurnRule(14.4, 3600, 300)], 0.99)
    assert not list(alarm.look(1, counted((1000, 856), (100, 99))))  # it was bad, and is over
    assert not list(alarm.look(2, counted((1000, 900), (100, 50))))  # it is bad, and new: 10 times over the hour
    assert not list(alarm.look(3, counted((1000, 857), (100, 80))))  # 14.3
    assert not list(alarm.look(4, counted((1000, 0), (9, 0))))  # nine requests say nothing
    (began,) = alarm.look(5, counted((1000, 856), (1000, 856)))  # 14.4 and 14.4
    assert (began.signal, began.since_s) == ("goodput", 5)
    assert began.burn == pytest.approx(14.4)
    assert not list(alarm.look(6, counted((1000, 500), (100, 50))))
    (ended,) = alarm.look(7, counted((1000, 500), (100, 99)))
    assert (ended.since_s, ended.until_s) == (5, 7)
    assert not alarm.on


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("14.4", "'14.4' is no burn rule; write factor:long/short"),
        ("2:5m/1h", "the short window is at least a second and no longer than the long one"),
        ("0:1h/5m", "always reached"),
        ("x:1h/5m", "'x'"),
    ],
)
def test_rules_that_are_none(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("'", ".")):
        parse_rules(text)


def test_rules_that_cannot_fire_are_left_out_or_refused() -> None:
    frames, _ = replay(chatbot(1), attain=0.9)
    assert {burn.rule.factor for burn in frames[-1].burns} == {6, 1}
    why = "with 90% to attain nothing burns faster than 10 times, so rule 14.4:1h/5m never fires"
    assert [note.partition(";")[0] for note in frames[-1].notes] == [why]
    assert Alarm(parse_rules("100:1h/5m"), 0.99).rules  # all fail
    with pytest.raises(SpecError, match="nothing burns faster than 2 times"):
        Alarm(parse_rules("14.4:1h/5m"), 0.5)
    with pytest.raises(SpecError, match="leaves no budget"):
        Alarm(RULES, 1.0)
    assert parse_rules(", ".join(map(str, RULES))) == RULES


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 9), min_size=1, max_size=8)), max_size=6))
def test_a_ledger_adds_up_what_was_written_last(writes: list[tuple[int, list[int]]]) -> None:
    ledger, naive = SecondCounts(["n"]), dict[int, int]()
    for second, counts in writes:
        ledger.write(second, {"n": np.array(counts, float)})
        naive = {at: count for at, count in naive.items() if at < second}
        naive |= {second + i: count for i, count in enumerate(counts)}
    for start, end in ((0, 50), (3, 17), (10, 11), (20, 5)):
        assert ledger.total("n", start, end) == sum(naive.get(at, 0) for at in range(start, end))


def test_a_ledger_forgets_what_is_older_than_it_must_keep() -> None:
    ledger = SecondCounts(["n"], keep_s=10)
    for second in range(100):
        ledger.add(second, {"n": 1.0})
    assert 10 <= ledger.end - ledger.first <= 21
    assert ledger.total("n", 90, 100) == 10
    assert ledger.total("n", 0, 100) == ledger.end - ledger.first


def test_what_a_disruption_cost_by_hand() -> None:
    """100 s at 10 a second, all accepted but for 20 s from 50 on, when half are; 36 per hour and a cent each."""
    ledger = SecondCounts(columns(["goodput"]))
    for second in range(100):
        good = 5.0 if 50 <= second < 70 else 10.0
        ledger.add(second, {"ended": 10, "spent": 0.1, "goodput.of": 10, "goodput.low": good, "goodput.high": good})
    deploy, inside = disruptions(ledger, 100, [("deploy", None, 50, 70), ("alert", "ttft", 55, 60)], 36.0, priced=True)
    assert (deploy.ended, deploy.accepted, deploy.attainment, deploy.steady_attainment) == (200, 100, 0.5, 1.0)
    assert deploy.lost == pytest.approx(100)
    assert deploy.cost == pytest.approx(20 * 0.01 + 20 * 0.1)  # 36 per hour is a cent a second
    assert deploy.cost_per_accepted == pytest.approx(0.022)
    assert deploy.steady_cost_per_accepted == pytest.approx(0.011)
    assert deploy.extra_cost == pytest.approx(2.2 - 100 * 0.011)
    assert inside.lost == pytest.approx(25)


def test_a_disruption_that_is_forgotten_costs_nothing_more() -> None:
    ledger = SecondCounts(columns(["goodput"]), keep_s=40)
    for second in range(100):
        good = 5.0 if 70 <= second < 80 else 10.0
        ledger.add(second, {"ended": 10, "goodput.of": 10, "goodput.low": good, "goodput.high": good})
    assert 10 < ledger.first < 70
    stretches = [("deploy", None, 0.0, 10.0), ("deploy", None, 5.0, ledger.first + 10.0), ("deploy", None, 70.0, 80.0)]
    half, late = disruptions(ledger, 100, stretches, 36.0, priced=True)
    assert half.ended == 100  # in the ten seconds that are still known
    assert half.cost == pytest.approx(0.1)
    assert late.steady_cost_per_accepted == pytest.approx(0.001)


def test_judges_and_reviewers_are_in_what_a_disruption_costs() -> None:
    """From 60 to 120 s there are 300 requests: a cent each for a judge, half a unit for each third, which is bad."""
    rows = [row(i, due=i / 5, tokens=[0.1], quality=i % 3 > 0, review_cost=0.01) for i in range(900)]
    event, prices = TimedEvent(at_ns=60 * 10**9, kind="deploy"), Prices(per_human_review=0.5)
    run = run_of(rows, window_ns=(0, 180 * 10**9), prices=prices, events=(event,))
    assert replay(run, "ttft<=1s")[0][-1].disruptions[0].cost == pytest.approx(3 + 50)


def chatbot(minutes: int = 10, rate: int = 20) -> Run:
    """Tokens flow as ever, and from half time on first tokens come late: 98% in time, then 41%."""
    requests = minutes * 60 * rate
    due, place = np.arange(requests) / rate, np.arange(requests) % 100
    late = np.where(due < minutes * 30, place >= 98, place >= 41)
    tokens = due[:, None] + np.where(late, 2.0, 0.3)[:, None] + np.arange(30) * 0.02
    tokens[:, 1:] += np.where(np.arange(requests) % 4 == 3, 0.2, 0.0)[:, None]  # replica 3 stalls once
    columns = {
        "request_id": np.arange(requests),
        "scheduled_ns": (due * 1e9).astype(np.int64),
        "sent_ns": (due * 1e9).astype(np.int64),
        "ended_ns": (tokens[:, -1] * 1e9).astype(np.int64) + 1,
        "event_ns": make_lists("event_ns", (tokens * 1e9).astype(np.int64).ravel(), np.full(requests, 30)),
        "replica": [f"r{i % 4}" for i in range(requests)],
    }
    event = TimedEvent(at_ns=minutes * 30 * 10**9, kind="limit raised")
    manifest = Manifest(source="test", slo="ttft<=500ms, tpot<=40ms", events=(event,), prices=Prices(per_hour=36.0))
    return Run.of(manifest, [make_batch(columns)])


def replay(run: Run, slo: str | None = None, **how: Any) -> tuple[list[Frame], list[Alert]]:
    settings = Settings(**{"speed": 1.0, "every_s": 10.0, **how})
    feed = FinishedFeed("test", run, read_slo(slo or str(run.manifest.slo)), None)
    found = list(watch(feed, settings, wait=lambda _: None))
    return [frame for frame, _ in found], [alert for _, changed in found for alert in changed]


def test_the_chatbot_that_passed_throughput_and_failed_its_users() -> None:
    frames, alerts = replay(chatbot(), rules=parse_rules("14.4:2m/20s"))
    before, after = frames[28], frames[40]
    assert before.tokens_per_s == pytest.approx(after.tokens_per_s, rel=0.02)
    assert before.throughput_rps == pytest.approx(after.throughput_rps, rel=0.02)
    assert before.gates["ttft"].attainment == pytest.approx(0.98, abs=0.005)
    assert after.gates["ttft"].attainment == pytest.approx(0.41, abs=0.005)
    assert before.gates["tpot"].attainment == after.gates["tpot"].attainment == 1.0
    assert after.goodput_rps == pytest.approx(0.41 * 20, rel=0.02)
    assert {alert.signal for alert in alerts} == {"goodput", "ttft"}
    assert all(300 < alert.since_s <= 340 for alert in alerts)
    (raised, alert) = frames[-1].disruptions
    assert (raised.kind, raised.start_s, raised.end_s, alert.kind) == ("limit raised", 300, 360, "alert")
    assert raised.lost == pytest.approx(0.57 * 1200, rel=0.1)
    steady = raised.steady_cost_per_accepted
    assert steady == pytest.approx(0.01 / (20 * 0.98), rel=0.05)
    assert raised.extra_cost == pytest.approx(0.6 - raised.accepted * (steady or 0), rel=0.01)


def test_a_straggler_is_flagged_and_tails_are_by_replica() -> None:
    frames, _ = replay(chatbot(2), "ttft<=5s")
    found = {each.replica: each for each in frames[-1].replicas}
    assert list(found) == ["r0", "r1", "r2", "r3"]
    assert not found["r0"].straggler
    slow = [each.replica for each in frames[5].replicas if "tpot" in each.straggler]
    assert slow == []  # 0.2 s over 30 tokens is 27 ms a token beside 20: not 1.5 times
    rows = [row(i, i / 30, (0.1, 0.2 if i % 3 else 0.5), replica=f"r{i % 3}") for i in range(600)]
    frames, _ = replay(Run.of(Manifest(source="test"), [batch(rows)]), "ttft<=1s")
    worst = {each.replica: each.straggler for each in frames[-1].replicas}
    assert worst["r0"]["tpot"] == pytest.approx(4.0)
    assert not worst["r1"]
    assert not worst["r2"]


def test_all_figures_of_a_frame_are_of_the_same_seconds() -> None:
    frames, _ = replay(chatbot(1), every_s=1.7, window_s=4.5)
    for frame in frames:
        assert sum(each.ended for each in frame.replicas) == frame.ended
        assert sum(each.ended * each.attainment for each in frame.replicas) == pytest.approx(
            frame.goodput_rps * frame.window_s
        )
        assert frame.at_s == int(frame.at_s)
    assert frames[5].window_s == 5
    assert frames[5].throughput_rps == pytest.approx(20, rel=0.05)


def test_a_run_followed_as_it_is_written_counts_what_a_replay_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = []
    for i in range(1200):
        failed = i % 7 == 0
        first = row(i, i / 20, () if failed else (float(rng.uniform(0.1, 0.4)), 0.6), ended=0.6, replica="a")
        rows.append(first | ({"status": "error", "error": "refused"} if failed else {}))
        if i % 14 == 0:  # half of those who failed try again, and are answered ten batches later
            rows.append(row(i, i / 20, (2.0, 2.1), sent=1.5, attempt=1, kind="retry", replica="b"))
    rows.sort(key=lambda each: each["ended_ns"])
    objectives = read_slo("ttft<=300ms, tpot<=400ms, retries<=0")
    folder = tmp_path / "run"
    writer = RunWriter(folder, Manifest(source="proxy"))
    feed = RunFeed(folder, objectives, None, keep_s=10_000, held_s=5.0)
    feed.read()
    assert feed.ledger.end == 0
    for at in range(0, len(rows), 25):
        writer.append(batch(rows[at : at + 25]))
        write_now(folder, Now(at / 20, at, 3))
        feed.read()
    assert feed.tail.run.num_rows < 200
    assert feed.traffic(0, 1e9)[1] == 3
    assert not feed.over
    last = feed.clock()
    writer.finish()
    for _ in range(2):
        feed.read()
    assert feed.over
    assert feed.clock() <= last + 3
    whole = FinishedFeed("run", Run.of(Manifest(source="proxy"), [batch(rows)]), objectives, None)
    for column in columns(feed.signals):
        for start, end in ((0, 100), (7, 23), (50, 60)):
            assert feed.ledger.total(column, start, end) == whole.ledger.total(column, start, end), column


@pytest.mark.parametrize(("source", "accepted"), [("load", 0), ("import", 20)])
def test_an_answer_of_ours_without_token_times_misses_gates_on_them(source: Any, accepted: int) -> None:
    rows = [row(i, i / 10, (), ended=0.5, output_tokens=5) for i in range(20)]
    feed = FinishedFeed("run", Run.of(Manifest(source=source), [batch(rows)]), read_slo("ttft<=1s, e2e<=2s"), None)
    assert feed.ledger.total("goodput.low", 0, 100) == accepted


def test_a_run_that_goes_on_is_watched_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, Manifest(source="load", slo="ttft<=1s, quality"))
    rows = [row(i, i / 10, (0.1, 0.2)) for i in range(100)]
    parts = iter([rows[:40], rows[40:80], rows[80:]])

    def wait(_: float) -> None:
        part = next(parts, None)
        if part is None:
            if not (folder / "requests.parquet").exists():
                writer.finish()
            return
        writer.append(batch(part))
        write_now(folder, Now(4.0, 40, 1))

    settings = Settings()
    frames = [frame for frame, _ in watch(open_feed(folder, None, None, settings), settings, wait)]
    assert frames[0].attainment is None
    assert frames[-1].ended == 100
    assert frames[-1].attainment == 1.0
    assert frames[-1].gates["quality"].attainment is None
    assert "no row tells quality: it is not judged, and goodput is without it" in frames[-1].notes


def test_a_run_begun_anew_in_the_same_folder_is_watched_from_its_start(tmp_path: Path) -> None:
    folder, settings, told = tmp_path / "run", Settings(), []
    rows = [row(i, i / 10, (2.0 if i < 100 else 0.1, 2.2)) for i in range(300)]
    writers = [RunWriter(folder, Manifest(source="load", slo="ttft<=1s", started_at="2025-01-01T00:00:00+00:00"))]
    writers[0].append(batch(rows[:200]))
    write_now(folder, Now(30.0, 200, 0))

    def wait(_: float) -> None:
        if len(writers) == 1:
            writers[0].close()
            shutil.rmtree(folder)
            facts = Manifest(source="load", slo="ttft<=1s", started_at="2026-01-01T00:00:00+00:00")
            writers.append(RunWriter(folder, facts))
            writers[1].append(batch([row(i, i / 10, (0.1, 0.2)) for i in range(20)]))
            write_now(folder, Now(3.0, 20, 0))
        elif not (folder / "requests.parquet").exists():
            writers[1].finish()

    for frame, changed in watch(open_feed(folder, None, None, settings), settings, wait):
        told.append((frame.ended, frame.attainment, [alert.until_s for alert in changed]))
    assert told[0][:2] == (200, 0.5)
    assert told[0][2] == [None] * len(told[0][2]) != []
    assert told[-1][:2] == (20, 1.0)
    assert sum(len(changed) for *_, changed in told) == 2 * len(told[0][2])  # each ended as well
    assert frame.at_s < 5
    assert frame.at is not None
    assert frame.at.startswith("2026-01-01T00:00:0")


def spans(calls: list[tuple[float, float, float]]) -> str:
    def span(start: float, first: float, end: float) -> dict[str, Any]:
        attributes = {"gen_ai.response.time_to_first_chunk": first}
        told = [{"key": key, "value": {"doubleValue": value}} for key, value in attributes.items()]
        told += [{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "11"}}]
        base = 1_760_000_000_000_000_000
        times = {"startTimeUnixNano": str(base + int(start * 1e9)), "endTimeUnixNano": str(base + int(end * 1e9))}
        return {"name": "chat", "kind": 3, "attributes": told, **times}

    return "".join(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(*each)]}]}]}) + "\n" for each in calls)


def test_spans_are_followed_as_they_are_written_and_say_what_they_cannot_show(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    calls = [(i / 2, 0.2 if i % 4 else 0.9, i / 2 + 1) for i in range(80)]
    path.write_text(spans(calls[:40]))
    settings = Settings()
    feed = open_feed(path, "ttft<=500ms, tpot<=70ms, tbt<=1s", None, settings)
    assert isinstance(feed, SpanFeed)
    feed.read()
    whole = spans(calls[40:])
    with path.open("a") as file:
        file.write('{"resourceSpans": 3}\nnonsense\n' + whole[:1000])
        file.flush()
        feed.read()
        file.write(whole[1000:])
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 80
    assert feed.ledger.total("ttft.low", 0, 1e9) == 60
    assert feed.ledger.total("tpot.low", 0, 1e9) == 20  # 80 ms a token after 0.2 s, and 10 ms after 0.9 s
    assert any("when they were due" in limit for limit in feed.limits)
    assert any("tbt" in note for note in feed.notes)
    assert "2 lines or spans could not be used" in feed.notes


def test_calls_told_by_who_answered_and_then_by_who_asked_count_once(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    told = spans([(i / 2, 0.2, i / 2 + 1) for i in range(40)])
    path.write_text(told.replace('"kind": 3', '"kind": 2'))
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 40
    with path.open("a") as file:
        file.write(told)
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 40


@pytest.mark.parametrize(
    "bad",
    [
        spans([(10.0, -0.1, 9.9)]),  # of two clocks
        spans([(10.0, 1.5, 11.0)]),
        spans([(10.0, -0.1, 11.0)]),
        spans([(10.0, 0.2, 11.0)]).replace('"11"', '"99999999999"'),
        spans([(10.0, 0.2, 11.0)]).replace("0.2", '"Infinity"'),
        spans([(10.0, 0.2, 11.0)]).replace('"176000001', '"000000001'),  # 1970: a clock that was never set
        spans([(10.0, 0.2, 11.0)]).replace('"1760000011', '"3760000011'),
        "[" * 100_000 + "\n",
    ],
)
def test_a_span_that_cannot_be_does_not_end_a_watch(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "spans.jsonl"
    good = spans([(i / 2, 0.2, i / 2 + 1) for i in range(40)])
    path.write_text(good + bad + good)
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 80
    assert feed.notes == ("1 lines or spans could not be used",)


def test_a_span_of_a_clock_that_was_never_set_may_be_the_first(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(spans([(10.0, 0.2, 11.0)]).replace('"176000001', '"000000001'))
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    with path.open("a") as file:
        file.write(spans([(i / 2, 0.2, i / 2 + 1) for i in range(40)]))
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 40


def test_half_a_letter_costs_no_spans(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    good = spans([(10.0, 0.2, 11.0)])
    path.write_text(good.replace('"resourceSpans"', '"cut": "\\ud83d", "resourceSpans"'))
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 1


def test_many_bad_spans_are_sorted_out_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def run_of_calls(found: Sequence[Call], start_ns: int) -> Run:
        made.append(len(found))
        return run_of_spans(found, start_ns)

    monkeypatch.setattr("openloop.watch.feeds.run_of", run_of_calls)
    path = tmp_path / "spans.jsonl"
    path.write_text(spans([(i / 2, 0.2 if i % 3 else -0.2, i / 2 + 1) for i in range(60)]))
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    assert made == [40]
    assert feed.notes == ("20 lines or spans could not be used",)


def test_a_run_of_years_is_refused_before_its_seconds_are_counted() -> None:
    years = run_of([row(0, 0.0, (0.1,)), row(1, 1.1e7, (0.1,))])
    with pytest.raises(RunError, match="is one of its times wrong"):
        FinishedFeed("run", years, read_slo("ttft<=1s"), None)


def test_a_pause_of_months_does_not_end_a_watch_of_spans(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(spans([(0.0, 0.2, 1.0), (1.0, 0.2, 2.0)]))
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    later = 1.1e7
    with path.open("a") as file:
        file.write(spans([(later, 0.2, later + 1.0), (later + 5, 0.9, later + 6.0)]))
    feed.read()
    assert feed.ledger.total("ended", later, 1e9) == 2
    assert feed.ledger.total("ttft.low", later, 1e9) == 1
    assert feed.ledger.end - feed.ledger.first < 1e6


def test_a_file_of_spans_may_be_empty_torn_or_begun_anew(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = tmp_path / "spans.jsonl"
    path.touch()
    feed = open_feed(path, "ttft<=500ms", None, Settings())
    feed.read()
    assert 0.0 <= feed.clock() < 60
    path.write_text(spans([(0.0, 0.2, 1.0)]) + '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "chat"}]}]}]}\n')
    feed.read()
    path.rename(tmp_path / "spans.1")
    path.write_text(spans([(n / 2, 0.2, n / 2 + 1.0) for n in range(4, 40)]))  # longer than what was read of the first
    feed.read()
    assert feed.ledger.total("ended", 0, 1e9) == 37
    assert feed.notes == ("1 lines or spans could not be used",)
    whole = (tmp_path / "spans.1").read_text() + path.read_text()
    path.write_text(whole + whole.splitlines()[0][:80])
    frame = json.loads(call("watch", path, "--slo", "ttft<=500ms", "--once", "--window", "1h", "--json").out)
    assert (frame["ended"], frame["attainment"], frame["at_s"]) == (37, 1.0, 21)
    assert frame["notes"] == ["2 lines or spans could not be used"]


def test_spans_count_from_when_they_could_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(time=lambda: 1_760_000_000 + now[0], monotonic=lambda: 50 + now[0])
    monkeypatch.setattr("openloop.watch.feeds.time", clock)
    settings = Settings(every_s=3.0, rules=(BurnRule(10, 60, 10),))
    for seen_s in (0.0, 20.0):  # nothing is there at first, or what ended in 20 s, the first of which began long ago
        path, now[0] = tmp_path / f"{seen_s}.jsonl", seen_s
        calls = [(end - 0.3 - 30 * (end < 1), 0.1, end) for end in (0.05 + n / 10 for n in range(400))]
        path.touch()

        def write(seconds: float, path: Path = path, calls: list[tuple[float, float, float]] = calls) -> None:
            now[0] += seconds
            path.write_text(spans([call for call in calls if call[2] <= now[0]]))

        write(0.0)
        moments = watch(open_feed(path, "e2e<=200ms", None, settings), settings, wait=write)
        told = [next(moments) for _ in range(5)]
        for i, (frame, _) in enumerate(told):
            at_s = max(seen_s + 3 * i - 1, 0)  # what ended just now may not be written yet
            assert frame.at_s == pytest.approx(frame.window_s, abs=1e-6)
            assert at_s - 1 <= frame.at_s <= at_s
            assert frame.throughput_rps == pytest.approx(10.0 if at_s else 0.0, rel=0.06)
            assert frame.at is None or frame.at.startswith("2025-10-09T08:53:")
        alerts = [alert for _, changed in told for alert in changed]
        assert {round(alert.since_s) for alert in alerts} <= ({1, 2} if seen_s == 0 else {18, 19})
        assert alerts


def test_a_clock_that_is_set_does_not_move_what_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="proxy", slo="ttft<=1s"))
    write_now(tmp_path / "run", Now(50.0, 40, 1))
    path = tmp_path / "spans.jsonl"
    path.write_text(spans([(0.0, 0.2, 1.0)]))
    feeds = [open_feed(each, "ttft<=1s", None, Settings()) for each in (tmp_path / "run", path)]
    for feed in feeds:
        feed.read()
    before, real = [feed.clock() for feed in feeds], time.time
    for step in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda by=step: real() + by)
        for feed, was in zip(feeds, before, strict=True):
            feed.read()
            assert was <= feed.clock() < was + 60
    writer.finish()


@contextmanager
def site(answer: Callable[[str, bytes], tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def exposition(ttft: list[int], e2e: list[int], ok: int, failed: int) -> str:
    def histogram(name: str, counts: list[int]) -> str:
        edges = ["0.1", "0.5", "1.0", "+Inf"]
        return "".join(f'vllm:{name}_bucket{{engine="0",le="{e}"}} {c}\n' for e, c in zip(edges, counts, strict=True))

    ended = "".join(
        f'vllm:request_success_total{{engine="0",finished_reason="{why}"}} {count}\n'
        for why, count in (("stop", ok), ("abort", failed))
    )
    return histogram("time_to_first_token_seconds", ttft) + histogram("e2e_request_latency_seconds", e2e) + ended


def test_within_is_exact_at_an_edge_and_bounded_between() -> None:
    buckets = {0.1: 10.0, 0.5: 60.0, 1.0: 90.0, math.inf: 100.0}
    assert within(buckets, 0.5) == (60, 60)
    assert within(buckets, 0.7) == (60, 90)
    assert within(buckets, 0.05) == (0, 10)
    assert within(buckets, 5.0) == (90, 100)


def test_histograms_bound_attainment_and_a_restart_is_marked() -> None:
    pages = [
        exposition([0, 10, 10, 10], [0, 0, 10, 10], 10, 0),
        exposition([20, 90, 100, 110], [0, 40, 100, 110], 105, 5),  # 80 of 100 within 0.5 s; 30 to 90 within 0.7 s
        exposition([1, 2, 2, 2], [0, 0, 2, 2], 2, 0) + "process_start_time_seconds 100\n",
        exposition([1, 5, 5, 5], [0, 0, 5, 5], 5, 0) + "process_start_time_seconds 200\n",
        "up 1\n",
    ]
    asked: list[str] = []

    def answer(path: str, _: bytes) -> tuple[int, str]:
        asked.append(path)
        return (200, pages.pop(0)) if pages else (503, "")

    with site(answer) as url:
        settings = Settings()
        feed = open_feed(f"{url}/metrics", "ttft<=500ms, e2e<=700ms, quality", None, settings)
        assert isinstance(feed, PageFeed)
        moments = watch(feed, settings, wait=lambda _: None)
        first, _ = next(moments)
        assert first.ended == 0  # what was counted before nobody watched
        second, _ = next(moments)
        assert second.ended == 100
        ttft, e2e = second.gates["ttft"], second.gates["e2e"]
        assert (ttft.attainment, ttft.at_most) == (0.8, 0.8)
        assert (e2e.attainment, e2e.at_most) == (0.4, 0.9)
        assert second.gates["success"].attainment == 0.95
        # At least 1 - (0.05 + 0.2 + 0.6) met all three, and at most as many as met the hardest.
        assert second.attainment == pytest.approx(0.15)
        assert second.attainment_at_most == pytest.approx(0.8)
        assert second.tails["ttft"].p50_s == 0.5
        assert second.tails["ttft"].p95_s == math.inf
        assert any("quality" in note for note in second.notes)
        assert any("only bounded" in limit for limit in second.limits)
        third, _ = next(moments)
        assert [mark.kind for mark in third.events] == ["restart"]
        assert third.ended == 102
        assert third.tails["ttft"].requests == 2
        fourth, _ = next(moments)  # it was started again, and has counted more than before
        assert [mark.kind for mark in fourth.events] == ["restart"] * 2
        assert fourth.ended == 107
        assert "no latency histogram" in next(moments)[0].notes[0]  # it is starting, maybe
        assert "status 503" in next(moments)[0].notes[0]
    assert set(asked) == {"/metrics"}


def test_a_run_of_which_nothing_ended_does_not_pass(tmp_path: Path, call: Callable[..., Any]) -> None:
    rows = [row(i, due=i / 10, status="censored") for i in range(50)]
    write_run(tmp_path / "run", rows, slo="ttft<=1s", stopped_ns=10**10)
    done = call("watch", tmp_path / "run", "--once", "--json", code=1)
    assert "nothing was judged" in done.err
    assert any("50 requests were in flight at its end" in note for note in json.loads(done.out)["notes"])


def test_a_page_looked_at_once_tells_the_servers_life(call: Callable[..., Any]) -> None:
    page = exposition([0, 8, 10, 10], [0, 0, 10, 10], 10, 0) + f"process_start_time_seconds {time.time() - 1e6}\n"
    with site(lambda *_: (200, page)) as url:
        done = call("watch", f"{url}/metrics", "--slo", "ttft<=500ms", "--once", "--json", code=1)
        frame = json.loads(done.out.splitlines()[-1])
        assert frame["ended"] == 10
        assert frame["gates"]["ttft"]["attainment"] == 0.8
        assert frame["goodput_rps"] == pytest.approx(8e-6, rel=0.01)  # of a million seconds
        assert frame["alerts"]  # 20 times what one in a hundred allows
    undated = page.partition("process_start")[0]
    for unknown in ("", "process_start_time_seconds NaN\n"):
        with site(lambda *_, text=undated + unknown: (200, text)) as url:
            done = call("watch", f"{url}/metrics", "--slo", "ttft<=500ms", "--once", "--json", code=1)
            frame = json.loads(done.out.splitlines()[-1])
            assert (frame["ended"], frame["attainment"], frame["goodput_rps"], frame["window_s"]) == (
                10,
                0.8,
                None,
                None,
            )
            assert "nothing per second is known" in frame["notes"][0]
            shown = call("watch", f"{url}/metrics", "--slo", "ttft<=500ms", "--once", code=1).out
            assert "goodput - of throughput - (attainment 80.0%), over all of it" in shown
    for odd in ("vllm:num_requests_running abc\n", 'vllm:time_to_first_token_seconds_bucket{le="x"} 3\n'):
        with site(lambda *_, text=page + odd: (200, text)) as url:
            assert "cannot be read" in call("watch", f"{url}/metrics", "--slo", "ttft<=1s", "--once", code=2).err
    with site(lambda *_: (200, "up 1\n")) as url:
        assert "no latency histogram" in call("watch", f"{url}/metrics", "--slo", "ttft<=1s", code=2).err
    assert "cannot be read" in call("watch", f"{url}/metrics", "--slo", "ttft<=1s", "--once", code=2).err


def test_a_webhook_that_is_down_stops_nothing_and_its_secret_is_not_told(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    chatbot(2).save(tmp_path / "run")
    rules = ("--burn", "10:1m/10s")
    with site(lambda *_: (200, "")) as url:
        pass
    done = call(
        "watch", tmp_path / "run", "--once", *rules, "--webhook", f"{url}/hook/s3cret?key=t0ken", "--json", code=1
    )
    assert json.loads(done.out.splitlines()[-1])["type"] == "frame"
    assert f"the webhook at {url.removeprefix('http://')} did not take 2 alerts" in done.err
    assert "s3cret" not in done.out + done.err
    assert "t0ken" not in done.out + done.err
    posted: list[dict[str, Any]] = []

    def take(_: str, body: bytes) -> tuple[int, str]:
        posted.append(json.loads(body))
        return 204, ""

    with site(take) as url:
        call("watch", tmp_path / "run", "--once", *rules, "--webhook", f"{url}/hook", code=1)
    assert {each["signal"] for each in posted} == {"goodput", "ttft"}
    assert {each["state"] for each in posted} == {"firing"}
    with pytest.raises(SpecError, match="the webhook is no address") as refused:
        Webhook("hooks.example/s3cret")
    assert "s3cret" not in str(refused.value)


def test_alerts_that_a_webhook_was_not_waited_for_are_told() -> None:
    ready = threading.Event()

    def hang(*_: object) -> tuple[int, str]:
        ready.wait(10)
        return 204, ""

    with site(hang) as url:
        hook = Webhook(url)
        for _ in range(2):
            hook.send(Alert("ttft", "10:1m/10s", 5.0, 20.0, 0.99), "run")
        hook.close(patience_s=0.0)
        assert hook.note == f"the webhook at {hook.host} did not take 2 alerts (it did not answer in time)"
        ready.set()
        hook.close()
        assert hook.note is None


def test_the_command_and_its_exit_codes(tmp_path: Path, call: Callable[..., Any]) -> None:
    chatbot(2).save(tmp_path / "run")
    rows = [row(i, i / 20, (0.1, 0.12)) for i in range(400)]
    write_run(tmp_path / "good", rows, slo="ttft<=1s")
    assert "goodput" in call("watch", tmp_path / "good", "--once").out
    shown = call("watch", tmp_path / "run", "--once", "--burn", "10:1m/10s", code=1).out
    assert "firing: ttft burns its budget" in shown
    assert "limit raised at 60.0 s" in shown
    lines = call("watch", tmp_path / "run", "--speed", "1e6", "--json", "--every", "30s").out.splitlines()
    assert [json.loads(each)["type"] for each in lines].count("frame") == 5
    done = call("watch", tmp_path / "run", "--speed", "1e6", "--burn", "10:1m/10s", "--fail-on-alert", code=1)
    assert "alerts began" in done.err
    for arguments, said in (
        (["nowhere", "--slo", "ttft<=1s"], "does not exist"),
        ([tmp_path / "good", "--burn", "nonsense"], "no burn rule"),
        ([tmp_path / "good", "--once", "--speed", "2"], "leave out --speed"),
        ([tmp_path / "good", "--attain", "100%"], "no budget"),
        ([tmp_path / "good", "--listen", "nowhere"], "nowhere to listen"),
        ([tmp_path / "good", "--listen", "946\N{SUPERSCRIPT TWO}"], "nowhere to listen"),
        ([tmp_path / "good", "--listen", "\N{ARABIC-INDIC DIGIT NINE}464"], "nowhere to listen"),
        ([tmp_path / "good", "--every", "1ms"], "a second or more"),
        (["http://127.0.0.1:9/metrics"], "no goodput without an SLO"),
    ):
        assert said in call("watch", *arguments, code=2).err


def test_metrics_are_a_page_that_prometheus_reads() -> None:
    frames, _ = replay(chatbot(2), rules=parse_rules("10:1m/10s"))
    text = metrics_page(frames[-1])
    assert text.startswith("# TYPE openloop_attainment gauge\n")
    page = read_page(text, {"openloop_attainment", "openloop_goodput_rps", "openloop_alert"})
    shares = {labels["gate"]: value for labels, value in page["openloop_attainment"]}
    assert shares["ttft"] == frames[-1].gates["ttft"].attainment
    assert page["openloop_goodput_rps"] == [({}, frames[-1].goodput_rps)]
    assert sum(value for _, value in page["openloop_alert"]) == 2
    with MetricsServer("0", token="sesame") as server:
        server.text = text
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(server.url)
        refused.value.close()
        asked = urllib.request.Request(server.url, headers={"Authorization": "Bearer sesame"})
        assert urllib.request.urlopen(asked).read().decode() == text
        assert server.server_address[0] == "127.0.0.1"
        server.shutdown()
