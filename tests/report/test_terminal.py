import pytest

from openloop.records import SERVER, Reading, Run, TimedEvent
from openloop.report.terminal import inspection, show_inspection, show_score
from openloop.score import check, score
from tests.runs import row, run_of, steady_run

SLO = "ttft<=500ms, tpot<=40ms"


def shown(capsys: pytest.CaptureFixture[str], *args: object, **kwargs: object) -> str:
    show_score(score(*args, **kwargs))  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_a_valid_run_shows_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    run = steady_run()
    text = shown(capsys, run, SLO, by=["replica"], window_s=5.0)
    assert "VALID" in text
    assert "INVALID" not in text
    assert "~~" not in text
    found = score(run, SLO)
    assert f"{found.attainment * 100:.1f}%" in text
    assert f"{found.goodput_rps:.1f}/s" in text
    assert "by replica" in text
    assert "by time" in text


def test_each_replica_shows_what_its_cache_held(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(i, due=i / 20, tokens=[0.1], replica="ab"[i % 2], prompt_tokens=100, cached_tokens=[70, 40][i % 2])
        for i in range(400)
    ]
    lines = shown(capsys, run_of(rows), "ttft<=500ms", by=["replica"]).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("by replica"))
    assert "cached" in lines[place]
    assert ["70.0%" in lines[place + 1], "40.0%" in lines[place + 2]] == [True, True]


def test_an_invalid_run_has_its_numbers_struck_out_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, run_of([row(i, due=i / 10, tokens=[0.1]) for i in range(10)]), SLO)
    assert "INVALID: only 10 requests were due" in text
    assert "~~10.0/s~~" in text
    goodput = next(line for line in text.splitlines() if line.startswith("goodput"))
    assert all(word.startswith("~~") or word.endswith("~~") or word == "to" for word in goodput.split()[1:])


def test_no_number_is_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, steady_run(), "conversational", by=["replica", "turn"], window_s=1.0)
    assert "…" not in text
    assert "nan" not in text


def test_more_failures_than_a_percentile_allows_is_shown_as_never(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(i, due=i / 20, tokens=[0.1] if i % 3 else [], status="ok" if i % 3 else "error") for i in range(300)]
    assert "never" in shown(capsys, run_of(rows), SLO)


@pytest.mark.parametrize(("requests", "few"), [(50, True), (300, False)])
def test_percentiles_seen_otherwise_rest_on_as_many_values(
    requests: int, few: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(
        capsys, run_of([row(i, due=i / 20, tokens=[0.1]) for i in range(requests)]), "ttft<=500ms"
    ).splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("latency seen otherwise"))
    assert ("*" in lines[place + 1]) == few


def test_text_from_a_run_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(i, due=i / 20, tokens=[0.1], replica="\x1b[2Jevil") for i in range(200)]
    text = shown(capsys, run_of(rows, notes=("\x1b]0;title\x07",)), SLO, by=["replica"])
    assert "\x1b" not in text
    assert "evil" in text


def test_long_names_are_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    event = TimedEvent(at_ns=10**9, kind="deploy " * 60)
    text = shown(capsys, steady_run(events=(event,)), SLO)
    assert "deploy " * 60 in text
    assert "…" not in text


FIGURES: list[Reading] = [
    (second * 10**9, "a", name, value + second)
    for second in range(10)
    for name, value in (("queue", 1.0), ("preemptions", 7.0), ("running", 0.0))
]


def with_server(run: Run) -> Run:
    return Run.of(run.manifest, list(run.batches()), SERVER.of([*FIGURES, (10**9, "a", "kv_use", 0.25)]))


def test_the_servers_figures_are_told_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, with_server(steady_run(window_ns=(0, 20 * 10**9))), SLO).splitlines()
    told = [" ".join(line.split()) for line in lines if " at the server" in line or line.startswith("its ")]
    assert told == [
        "waiting at the server, mean 5.5",
        "waiting at the server, peak 10",
        "running at the server, mean 4.5",
        "running at the server, peak 9",
        "its KV cache, mean 25.0%",
        "its KV cache, peak 25.0%",
        "its preemptions 9",
    ]
    assert "server" not in shown(capsys, steady_run(), SLO)


def test_an_inspection_says_what_was_read_of_whom(capsys: pytest.CaptureFixture[str]) -> None:
    run = with_server(steady_run())
    show_inspection(inspection(run, check(run), 1))
    told = "server figures: 31 readings of kv_use, preemptions, queue, running, from a"
    assert told in capsys.readouterr().out.splitlines()
    names = ["kv_use", "preemptions", "queue", "running"]
    assert inspection(run, check(run), 1)["server"] == {"rows": 31, "replicas": ["a"], "names": names}
    assert inspection(steady_run(), check(steady_run()), 1)["server"] is None
