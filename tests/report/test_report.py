"""Reports say what the scorer says, in every form, whatever the run is called."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from openloop import __version__
from openloop.cli import cli
from openloop.compare.decide import compare
from openloop.errors import RunError, SpecError
from openloop.frontier.folder import read_asked
from openloop.records import Manifest, Run, TimedEvent
from openloop.report.chart import draw_figure
from openloop.report.curve import STEPS, frontier_headline, frontier_report, read_frontier_subject
from openloop.report.figures import DRAWN, LARGEST, tail_places, token_times
from openloop.report.html import page
from openloop.report.markdown import markdown
from openloop.report.marks import Axis, Bars, Curve, Figure, Panel, Rule, names_figure
from openloop.report.page import Number, Report, Table, show
from openloop.report.plot import show_report, text_plot
from openloop.report.read import read_comparison, read_report
from openloop.report.run import read_run_subject, run_report
from openloop.report.scales import AxisScale, tick, x_scale, y_scale
from openloop.report.svg import NARROW, WIDE, svg
from openloop.report.terminal import show_score
from openloop.score import score
from tests.reports import HOSTILE, SLO, fleet_run, hostile_run, look_up, write_frontier
from tests.runs import batch, row, run_of, steady_run


@pytest.fixture(scope="module")
def fleet() -> Report:
    return run_report(read_run_subject(fleet_run()))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frontier(tmp_path_factory.mktemp("sweep") / "frontier")


class Told(HTMLParser):
    """Every number of a page that says where it comes from, and the tags there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: list[tuple[str, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("data-key"):
            self.numbers.append((str(found["data-key"]), str(found.get("value", found.get("data-value")))))


def check_numbers(report: Report) -> int:
    told = Told(page(report)).numbers
    for key, value in told:
        wanted = look_up(report.data, key)
        assert (value == "" and wanted is None) or float(value) == pytest.approx(wanted, rel=1e-12), key
    return len(told)


def test_every_number_of_a_run_is_the_scorers(fleet: Report) -> None:
    assert check_numbers(fleet) > 150
    alone = score(fleet_run(), SLO, by=("replica", "class")).to_dict()
    assert fleet.data == alone


def test_every_number_of_a_frontier_is_the_scorers(sweep: Path) -> None:
    report = frontier_report(read_frontier_subject(sweep))
    assert check_numbers(report) > 150
    assert report.data["knee"]["rate"] == pytest.approx(7.0, abs=1.0)
    assert "keeps its promise up to" in report.headline
    keys = [figure.key for figure in report.figures]
    assert keys[:3] == ["frontier", "tails", "cost"]
    points, further = (part for part in report.sections[0].parts if isinstance(part, Table))
    assert len(further.rows) == len(points.rows)
    assert {"errors", "busy", "cost per accepted"} <= set(further.header)
    assert not {"passes quality", "cached"} & set(further.header)  # which no point tells
    assert "timeline" in keys
    assert "tokens-worst" in keys
    parts: dict[str, Any] = {section.key: section.parts for section in report.sections}
    assert {"audit", "point-money", "point-leaks"} <= parts.keys()
    assert ("interval", report.data["knee"]["sentence"], "") in parts["audit"][0].rows
    again = dict(parts["reproduce"][0].rows)
    assert again["seed"] == str(read_asked(sweep).seed)
    assert again["openloop"] == __version__


BY_CLASS = "default: ttft<=1s; chat: ttft<=150ms, tpot<=40ms"
BY_SESSION = "default: {gates: 'ttft<=300ms', unit: session, smooth: {alpha: 7}}"
VLLM = Path(__file__).parents[1] / "importers" / "files" / "vllm.json"


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        ("run", []),
        ("run", ["--slo", "ttft<=200ms", "--request", "17"]),
        ("run", ["--slo", BY_CLASS]),
        ("run", ["--slo", "slo.yaml"]),
        (str(VLLM), ["--slo", "ttft<=500ms, e2e<=2s"]),
        ("front", ["--point", "2"]),
        ("front", ["--slo", "tpot<=35ms"]),
    ],
)
def test_the_command_in_a_report_makes_it_again(
    what: str, flags: list[str], sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slo.yaml").write_text(BY_SESSION)
    Path("front").symlink_to(sweep)
    if what == "run":
        fleet_run(slo={"default": {"gates": "ttft<=1s", "smooth": {"alpha": 9}}}).save("run")
    CliRunner().invoke(cli, ["report", what, *flags, "-o", "first.html"])
    first = Path("first.html").read_text()
    command = unescape(re.findall(r"<td>this report</td><td>(.*?)</td>", first)[0])
    CliRunner().invoke(cli, [*shlex.split(command)[1:], "-o", "second.html"])
    assert Path("second.html").read_text() == first


def test_a_run_without_a_seed_does_not_promise_the_same_requests() -> None:
    def lead(**facts: Any) -> str:
        sections = run_report(read_run_subject(fleet_run(300, **facts))).sections
        return next(section.lead for section in sections if section.key == "reproduce")

    assert "same seed" in lead()
    assert "cannot be asked again" in lead(seed=None, command=None)


def test_an_slo_by_session_tells_how_many_were_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Sessions of four turns; every tenth has a slow one."""
    rows = [row(i, i / 20, (0.9 if i % 40 == 3 else 0.1, 0.95), session_id=i // 4, turn=i % 4) for i in range(2000)]
    slo = {"default": {"gates": "ttft<=500ms", "unit": "session"}}
    report = run_report(read_run_subject(run_of(rows, slo=slo)))
    check_numbers(report)
    assert "90.0% of 500 sessions were accepted: 4.5/s." in report.sentences
    found, about = {name: (found, about) for name, found, about in report.numbers}["accepted sessions"]
    assert (found.value, found.key, about) == (0.9, "units.all.attainment", "of 500; 4.5/s")
    show_score(score(run_of(rows, slo=slo)))
    told = capsys.readouterr().out
    assert told.count("accepted sessions") == 1
    assert "90.0% of 500; 97.5% of 2,000 turns" in told


def test_words_about_a_run_are_true_of_it(fleet: Report) -> None:
    def note(report: Report) -> str:
        return next(figure.note for figure in report.figures if figure.key == "timeline")

    few = run_report(read_run_subject(fleet_run(300, names=("r0", "r1"))))
    assert few.data["completed"] < 300
    assert f"Dots are all {few.data['completed']:,} completed requests." in note(few)
    assert f"Of {fleet.data['completed']:,} completed requests, the slowest" in note(fleet)
    for count, named, told in (
        (13, 13, ""),
        (30, 20, "Of 30 events the first 20 are named."),
        (300, 20, "first 200 are marked"),
    ):
        events = tuple(TimedEvent(at_ns=10**9 * i // 30, kind=f"event {i}") for i in range(count))
        busy = run_report(read_run_subject(fleet_run(300, events=events)))
        figure = next(figure for figure in busy.figures if figure.key == "timeline")
        assert sum(mark.name.startswith("event") for mark in figure.panels[0].marks) == named
        assert told in figure.note
        assert ("events" in figure.note) == bool(told)
    assert "stands out was not judged: that takes 3 replicas" in page(few)
    assert "r2 stands out" in page(fleet)
    (panel,) = next(figure for figure in fleet.figures if figure.key == "replicas").panels
    assert {mark.name: mark.color for mark in panel.marks} == STEPS  # as in the tails of a frontier
    rows = [row(i, i / 20, (0.1, 0.2), replica=f"r{i % 3}") for i in range(200)]
    alike = Run.of(Manifest(source="test", slo="ttft<=1s"), [batch(rows)])
    assert "No replica stands out." in page(run_report(read_run_subject(alike)))


def test_where_nothing_is_accepted_nothing_is_cheapest(sweep: Path) -> None:
    frontier = read_frontier_subject(sweep, "ttft<=1us").frontier
    _, sentences = frontier_headline(frontier)
    assert frontier.cheapest is None
    assert "Nothing was accepted at any rate." in sentences
    assert not any("infinite" in each or "highest" in each for each in sentences)


def test_another_slo_is_another_frontier(sweep: Path) -> None:
    easy, hard = (read_report(sweep, slo).data["knee"] for slo in ("tpot<=60ms", "tpot<=35ms"))
    assert (easy["rate"] or easy["above"]) > (hard["rate"] or hard["below"])


def test_a_rate_beyond_the_knee_is_too_much_and_no_negative_room(sweep: Path) -> None:
    subject = read_frontier_subject(sweep)
    busy = replace(subject, frontier=replace(subject.frontier, current=60.0, headroom=-0.53))
    assert "Of today's 60.0/s, 53.0% are too much." in frontier_report(busy).sentences


def test_where_nothing_was_measured_at_todays_rate_there_is_no_negative_room(sweep: Path) -> None:
    found = read_frontier_subject(sweep).frontier
    beyond = replace(found.knee, rate=None, interval=None, above=5.0)
    for today, told in ((4.0, "there is room for 25.0% more, or beyond that"), (50.0, "is not known")):
        asked = replace(found, knee=beyond, current=today, headroom=None, headroom_interval=None)
        (sentence,) = [each for each in frontier_headline(asked)[1] if "today" in each]
        assert told in sentence


def test_a_point_of_a_frontier_can_be_chosen(sweep: Path) -> None:
    chosen = read_frontier_subject(sweep, point=2.0)
    assert chosen.point is not None
    assert chosen.point.rate == 2.0
    with pytest.raises(SpecError, match=r"no point at 3/s; it has 2, 5, 7, 9, 12"):
        read_frontier_subject(sweep, point=3.0)


def test_two_are_shown_beside_each_other_against_one_slo(sweep: Path, tmp_path: Path) -> None:
    fleet_run().save(tmp_path / "old")
    fleet_run(seed=2, slo="ttft<=1s").save(tmp_path / "new")
    report = read_comparison(tmp_path / "old", tmp_path / "new")
    assert check_numbers(report) > 25
    assert report.data["b"] == score(tmp_path / "new", SLO, by=("replica", "class")).to_dict()
    told = compare(tmp_path / "old", tmp_path / "new", SLO)
    assert report.headline.lower() == told.sentence.lower()
    assert report.data["comparison"] == told.to_dict()
    assert report.figures[0].key == "changes"
    signs = {str(cell)[0] for part in report.sections[0].parts if isinstance(part, Table) for _, cell, *_ in part.rows}
    assert signs <= set("+-0")
    assert "+" in signs
    differing = next(section for section in report.sections if section.key == "differences").parts[0]
    assert isinstance(differing, Table)
    assert [row[0] for row in differing.rows] == list(told.warnings)
    assert check_numbers(read_comparison(sweep, sweep, "tpot<=50ms")) > 20
    with pytest.raises(RunError, match="are a run and a frontier"):
        read_comparison(tmp_path / "old", sweep)


def test_a_page_is_one_file_that_asks_nobody_for_anything(fleet: Report) -> None:
    text = page(fleet)
    assert len(text) < 2_000_000
    told = Told(text)
    for tag, attrs in told.tags:
        assert tag not in ("iframe", "object", "embed", "img")
        assert not attrs.get("src")
        if attrs.get("href"):
            assert str(attrs["href"]).startswith(("#", "data:,"))
    assert "@import" not in text
    assert not re.search(r"url\(|https?://(?!www\.w3\.org/2000/svg)", text)


def test_a_large_run_makes_a_small_page() -> None:
    text = page(run_report(read_run_subject(steady_run(60_000, slo="ttft<=200ms, tpot<=25ms"))))
    assert len(text) < 600_000
    assert "points of each line are drawn" in text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    report = run_report(read_run_subject(hostile_run()))
    check_numbers(report)
    text = page(report)
    told = Told(text)
    assert not [tag for tag, _ in told.tags if tag == "img"]
    assert not [attrs for _, attrs in told.tags if any(name.startswith("on") for name in attrs)]
    assert len([tag for tag, _ in told.tags if tag == "script"]) == text.count("<script") == text.count("</script>")
    for figure in report.figures:
        draw_figure(figure, tmp_path / f"{figure.key}.svg")
    written = markdown(report)
    assert "<img" not in written
    assert "](javascript" not in written


def test_a_name_does_not_turn_round_what_stands_behind_it(tmp_path: Path) -> None:
    fleet_run(300, model="\u202em\u2067").save(tmp_path / "a\u202eb")
    text = page(read_report(tmp_path / "a\u202eb"))
    assert "<strong>a\ufffdb</strong> test · \ufffdm\ufffd" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)


def test_markdown_tells_the_verdict_and_small_tables(fleet: Report) -> None:
    text = markdown(fleet)
    assert fleet.headline in text
    assert text.count("<details>") == text.count("</details>") > 3
    for line in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        assert line.count("|") == line.replace("\\|", "").count("|")


def test_an_invalid_run_is_struck_out_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_report(read_run_subject(run_of([row(i, i / 10, (0.1,)) for i in range(20)], slo="ttft<=1s")))
    assert report.verdict == "invalid"
    assert "Not valid: only 20 requests" in report.sentences[0]
    assert '<main class="invalid">' in page(report)
    assert "~~" in markdown(report)
    show_report(report)
    told = capsys.readouterr().out
    assert "NOT VALID" in told
    assert "~~10.0/s~~" in told


@pytest.mark.parametrize(
    "rows",
    [
        [row(0)],
        [row(i, i / 50, None, status="error") for i in range(200)],
        [row(i, i / 50, (0.1,)) for i in range(200)],
        [row(i, i / 50, (), ended=0.2) for i in range(200)],
        [row(i, 1.0, (0.1, 0.2)) for i in range(200)],
        [row(i, i / 50, None, sent=None, status="dropped") for i in range(200)],
        [row(i, i / 50, (0.0, 0.0)) for i in range(200)],
    ],
    ids=["one", "all failed", "one token", "no tokens", "at once", "never sent", "in no time"],
)
def test_a_strange_run_has_a_report_too(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    report = run_report(read_run_subject(run_of(rows, slo="ttft<=1s, tpot<=50ms, e2e<=2s")))
    check_numbers(report)
    markdown(report)
    show_report(report)
    for figure in report.figures:
        draw_figure(figure, tmp_path / f"{figure.key}.png")
        assert "nan" not in svg(figure, WIDE)


def test_a_run_in_which_all_failed_says_why() -> None:
    why = "no connection: connection refused"
    rows = [row(i, i / 50, None, status="error", error="reset" if i % 10 == 0 else why) for i in range(200)]
    rows += [row(i, i / 50, None, status="cancelled", error="a copy", attempt=1, kind="hedge") for i in range(200)]
    report = run_report(read_run_subject(run_of(rows, slo="ttft<=1s")))
    assert f"180 attempts failed with: {why}." in report.sentences
    parts: dict[str, Any] = {section.key: section.parts for section in report.sections}
    assert [(error, found.value) for error, found in parts["gates"][-1].rows] == [(why, 180), ("reset", 20)]
    assert "latency" not in parts
    assert [len(figure.panels) for figure in report.figures if figure.key == "timeline"] == [2]
    assert all(part.rows for each in parts.values() for part in each if isinstance(part, Table))
    assert not re.search(r"1e-\d+", "".join(svg(figure, WIDE) for figure in report.figures))


def test_the_shaded_time_of_a_request_is_its_user_idle_latency() -> None:
    """A reader of 20 tokens/s: first token due at 50 ms; waits 150 ms for it, and 300 ms for the third."""
    rows = [row(i, i / 10, (0.05, 0.1, 0.15)) for i in range(150)]
    rows[70] = row(70, 7.0, (0.2, 0.25, 0.6, 0.61))
    report = run_report(read_run_subject(run_of(rows, slo="ttft<=1s")))
    worst = next(figure for figure in report.figures if figure.key == "tokens-worst")
    assert worst.title == "The worst request (number 70)"
    assert "its reader waited 450 ms in all" in worst.note
    band = next(mark for mark in worst.panels[0].marks if isinstance(mark, Curve) and mark.style == "area")
    spans = band.x.reshape(-1, 4)
    np.testing.assert_allclose(spans[:, 2] - spans[:, 0], [0.15, 0.3])
    np.testing.assert_allclose(spans[:, 2], [0.2, 0.6])


def test_any_request_can_be_shown_by_its_number() -> None:
    subject = read_run_subject(fleet_run(), request=17)
    assert "tokens-chosen" in [figure.key for figure in run_report(subject).figures]
    with pytest.raises(SpecError, match="has no request 5000"):
        read_run_subject(fleet_run(), request=5000)


def test_token_times_count_several_tokens_in_one_event() -> None:
    rows = [row(0, 0.0, (0.1,)), row(1, 0.0, (0.1, 0.3), event_tokens=[2, 1])]
    run = Run.of(Manifest(source="test"), [batch(rows[:1]), batch(rows[1:])])
    assert [each.tolist() for each in token_times(run, [1, 0])] == [[10**8, 10**8, 3 * 10**8], [10**8]]


@given(st.integers(1, 2_000_000))
def test_the_largest_values_are_always_drawn(n: int) -> None:
    places = tail_places(n)
    assert len(places) <= DRAWN + LARGEST
    assert (np.diff(places) > 0).all()
    assert set(range(max(n - LARGEST, 0), n)) <= set(places.tolist())
    assert places[0] == 0


def test_lines_by_percentile_end_where_the_requests_do() -> None:
    rows = [row(i, i / 10, (0.05, 0.1), sent=0.02) for i in range(150)]
    report = run_report(read_run_subject(run_of(rows, slo="ttft<=1s")))
    [panel] = next(figure for figure in report.figures if figure.key == "distribution").panels
    lines = [mark for mark in panel.marks if isinstance(mark, Curve) and mark.style != "dots"]
    assert {line.style for line in lines} == {"line", "dashed"}
    assert all(line.x.max() == 1 - 0.5 / 150 for line in lines)


finite = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=20), st.sampled_from(["linear", "log"]))
def test_a_scale_holds_its_values_and_orders_its_ticks(values: list[float], kind: Any) -> None:
    curve = Curve("c", np.arange(len(values), dtype=float), np.array(values), "blue")
    scale = y_scale(Panel(Axis("", "number", kind), [curve]))
    inside = [value for value in values if kind == "linear" or value > 0]
    assert all(-1e-9 <= float(scale(value)) <= 1 + 1e-9 for value in inside)
    ticks = scale.ticks(6)
    assert 0 < len(ticks) <= 13
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= float(scale(tick)) <= 1 + 1e-6 for tick in ticks)


def test_amounts_along_an_axis_keep_their_zeros() -> None:
    for value, text in (
        (0.0, "0"),
        (0.0005, "0.0005"),
        (2.0, "2"),
        (100.0, "100"),
        (2000.0, "2,000"),
        (1e6, "1,000,000"),
    ):
        assert tick(value, Axis("", "money")) == text


def places(drawn: str) -> dict[str, tuple[float, float]]:
    """Where each text stands."""
    found = re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)"[^>]*>([^<]*)', drawn)
    return {unescape(text): (float(x), float(y)) for x, y, text in found}


def test_hours_along_a_logarithmic_axis_are_whole() -> None:
    axis = Axis("", "seconds", "log")
    told = ["20 s", "50 s", "60 s", "2 min", "5 min", "10 min", "20 min", "50 min", "60 min", "2 h", "5 h", "10 h"]
    assert [tick(value, axis) for value in AxisScale(axis, 20.0, 40_000.0).ticks(12)] == told
    assert [tick(value, axis) for value in AxisScale(axis, 2_000.0, 20_000.0).ticks(6)] == [
        "50 min",
        "60 min",
        "2 h",
        "5 h",
    ]


def test_long_names_are_told_from_where_they_differ() -> None:
    names = [f"http://10.0.0.{i}:8000" for i in (1, 2, 13)]
    figure = names_figure("x", "t", Axis("", "count"), names, [Bars("b", np.zeros(3), np.ones(3), "red")])
    assert {"…1:8000", "…2:8000", "…13:8000"} <= places(svg(figure, NARROW)).keys()
    assert set(names) <= places(svg(figure, WIDE)).keys()


def test_names_of_bounds_that_are_close_stand_beside_each_other() -> None:
    line = Curve("c", np.array([0.0, 1.0]), np.array([0.0, 100.0]), "blue")
    rules = [Rule(at, f"bound {at:g}", "y") for at in (50.0, 51.0, 52.0, 90.0)]
    found = places(svg(Figure("f", "t", Axis("x", "number"), [Panel(Axis("y", "number"), [line, *rules])]), WIDE))
    x = [found[rule.name][0] for rule in rules]
    assert x[0] - x[1] > 6 * len("bound 50")
    assert x[1] - x[2] > 6 * len("bound 50")
    assert x[3] == x[0]


def test_values_along_x_do_not_cover_each_other() -> None:
    axis = Axis("", "seconds", low=0.0, high=0.3)
    line = Curve("c", np.array([0.0, 0.3]), np.array([0.0, 0.7]), "blue")
    found = places(svg(Figure("f", "t", axis, [Panel(Axis("y", "seconds"), [line])]), NARROW))
    assert found["250 ms"][0] + 6.4 * len("300 ms") + 6 < found.get("300 ms", (np.inf, 0))[0]


@pytest.mark.parametrize(("current", "marked"), [(4.0, True), (15.0, True), (40.0, False)])
def test_todays_rate_is_marked_inside_of_the_figure(current: float, marked: bool, sweep: Path) -> None:
    subject = read_frontier_subject(sweep)
    subject = replace(subject, frontier=replace(subject.frontier, current=current))
    figure = frontier_report(subject).figures[0]
    rules = [mark for mark in figure.panels[0].marks if isinstance(mark, Rule)]
    assert [rule.at for rule in rules] == [current] * marked
    assert x_scale(figure.x, figure.panels).high >= current * marked


def test_an_event_outside_of_what_is_drawn_is_not_marked() -> None:
    events = tuple(TimedEvent(at_ns=at * 10**9, kind=f"at {at}") for at in (1, 500))
    report = run_report(read_run_subject(fleet_run(100, events=events)))
    figure = next(each for each in report.figures if each.key == "timeline")
    assert [mark.name for mark in figure.panels[0].marks if isinstance(mark, Rule)] == ["at 1"]


def test_dollars_in_names_are_no_formula(tmp_path: Path) -> None:
    bars = Bars("needed", np.zeros(1), np.ones(1), "blue")
    draw_figure(names_figure("x", "$y$", Axis("$", "count"), [r"$\q$"], [bars]), tmp_path / "x.svg")
    assert r"$\q$" in (tmp_path / "x.svg").read_text()


def test_the_tail_axis_stretches_every_nine_alike() -> None:
    scale = AxisScale(Axis("", "share", "tail"), 0.0, 0.9999)
    places = [float(scale(share)) for share in (0.9, 0.99, 0.999, 0.9999)]
    np.testing.assert_allclose(np.diff(places), 0.25)
    assert scale.ticks(9) == pytest.approx([0, 0.5, 0.9, 0.99, 0.999, 0.9999])
    assert scale.ticks(5) == pytest.approx([0.5, 0.9, 0.99, 0.999, 0.9999])


def test_marks_are_drawn_where_their_values_are() -> None:
    curve = Curve("c", np.array([0.0, 10.0]), np.array([0.0, 100.0]), "blue", keys=["a", "b"])
    figure = Figure("f", "t", Axis("x", "number"), [Panel(Axis("y", "number"), [curve])])
    text = svg(figure, WIDE)
    left, top, width, height = map(float, re.findall(r'data-box="(.*?)"', text)[0].split())
    dots = [tuple(map(float, each)) for each in re.findall(r'cx="(.*?)" cy="(.*?)"', text)]
    np.testing.assert_allclose(dots, [(left, top + height), (left + width, top)], atol=0.06)
    assert x_scale(figure.x, figure.panels).high == 10.0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_names_of_events_stand_below_the_title_of_their_axis(width: int) -> None:
    rules = [Rule(at, "failure", "x", "purple") for at in (0.0, 1.0, 2.0)]
    curve = Curve("c", np.array([0.0, 10.0]), np.array([1.0, 2.0]), "blue")
    panel = Panel(Axis("requests due per second", "rate", low=0.0), [*rules, curve], 90)
    drawn = svg(Figure("f", "t", Axis("time", "seconds"), [panel]), width)
    lines = {kind: re.findall(rf'y="([0-9.]+)" class="{kind}"', drawn) for kind in ("title", "middle name")}
    assert len(lines["middle name"]) == 3
    assert min(map(float, lines["middle name"])) >= float(lines["title"][0]) + 14  # a line


def test_a_terminal_gets_a_plot_and_a_file_the_numbers(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = frontier_report(read_frontier_subject(sweep))
    drawn = text_plot(report.figures[0]).plain
    assert "━ completed in the window" in drawn
    assert "[=] knee" in drawn
    assert any(0x2800 < ord(letter) < 0x2900 for letter in drawn)
    show_report(report)
    told = capsys.readouterr().out
    assert report.headline in told
    assert report.figures[0].title not in told


def test_names_of_folders_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by what a terminal obeys, nor by what the library that prints takes for its own marks."""
    hostile, one = tmp_path / "a\x1b[31m[blue]é", tmp_path / "one"
    run_of([row(i, i / 50, (), ended=0.2) for i in range(200)], slo="ttft<=1s").save(hostile)
    run_of([row(0)]).save(one)
    report = read_comparison(hostile, one)
    show_report(report)
    told = capsys.readouterr().out
    shown = "a\N{REPLACEMENT CHARACTER}[31m[blue]é"
    assert f"━ {shown}   ━ one" in text_plot(report.figures[0]).plain  # below the plot
    assert f"  {shown}  " in told  # above a column
    assert "\x1b" not in told


def test_values_are_shown_as_people_write_them() -> None:
    assert [show(*each) for each in ((None, "rate"), (float("inf"), "money"), (0.25, "share"), (1.5, "seconds"))] == [
        "-",
        "infinite",
        "25.0%",
        "1.50 s",
    ]
    assert str(Number(12, "count", mark="*")) == "12*"


def test_the_command_writes_every_form(tmp_path: Path) -> None:
    fleet_run().save(tmp_path / "run")
    out = tmp_path / "out"
    call = ["report", str(tmp_path / "run"), "-o", str(out / "r.html"), "--md", str(out / "r.md")]
    done = CliRunner().invoke(cli, [*call, "--png", str(out / "png"), "--svg", str(out / "svg")])
    assert done.exit_code in (0, 1), done.output
    assert (out / "r.html").read_text().startswith("<!doctype html>")
    assert (out / "r.md").read_text().startswith("### ")
    drawn = sorted(path.stem for path in (out / "png").iterdir())
    assert drawn == sorted(path.stem for path in (out / "svg").iterdir())
    assert {"distribution", "gates", "timeline", "tokens-worst", "tokens-median", "replicas"} <= set(drawn)
    told = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "--json"])
    assert json.loads(told.stdout)["data"]["slo"] == SLO


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "is not a run"),
        (["run", "--point", "3"], "is no frontier"),
        (["run", "--request", "99999"], "has no request 99999"),
        (["run", "--slo", "nonsense"], "nonsense"),
        (["run", "-o", "/dev/null/report.html"], "cannot be written"),
        (["run", "-o", "report.md"], "report.md: -o writes a .html file; for others give --md FILE"),
    ],
)
def test_bad_input_is_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet_run(300).save("run")
    done = CliRunner().invoke(cli, ["report", *arguments])
    assert done.exit_code != 0
    assert sentence in str(done.exception)


def test_a_report_without_a_browser_says_that_paper_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("OPENLOOP_BROWSER", raising=False)
    fleet_run(300).save(tmp_path / "run")
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "--pdf", str(tmp_path / "r.pdf")])
    assert "a PDF needs Chromium" in str(done.exception)


def test_sections_without_data_are_left_out() -> None:
    report = run_report(read_run_subject(run_of([row(i, i / 50, (), ended=0.1) for i in range(200)], slo="e2e<=1s")))
    keys = [section.key for section in report.sections]
    assert not {"tokens", "smooth", "replicas", "classes", "money", "disruptions"} & set(keys)
    tables = [part for section in report.sections for part in section.parts if isinstance(part, Table)]
    assert tables
    assert HOSTILE not in page(report)
