import pytest

from openloop.records import TimedEvent
from openloop.report.terminal import show_score
from openloop.score import score
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
