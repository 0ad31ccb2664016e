"""Charts hold what they were given, as text that can be read and searched."""

import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from openloop.errors import SpecError, StorageError
from openloop.report.chart import Chart, _draw, draw_figure
from openloop.report.marks import Axis, Bars, Curve, Figure, Panel, names_figure


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()).strip() for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def chart() -> Chart:
    chart = Chart("Goodput collapses", "Offered load (requests/s)", "Requests per second")
    chart.line([1, 2, 3], [1, 2, 3], "throughput", color="orange")
    chart.line([1, 2, 3], [1, 2, 0], "goodput", band=([0.9, 1.9, 0], [1.1, 2.1, 0.1]))
    chart.mark_x(2.5, "capacity")
    chart.mark_x(2.4, "SLO breached")
    chart.mark_y(2.8, "limit", color="red")
    return chart


def test_an_svg_says_what_it_shows(chart: Chart) -> None:
    found = texts(chart.svg())
    for label in ("Goodput collapses", "Offered load (requests/s)", "Requests per second"):
        assert label in found
    for label in ("throughput", "goodput", "capacity", "SLO breached", "limit"):
        assert found.count(label) == 1


def test_the_same_chart_is_the_same_file(chart: Chart) -> None:
    first = chart.svg()
    assert chart.svg() == first


def test_it_is_saved_as_svg_and_png(chart: Chart, tmp_path: Path) -> None:
    chart.save(tmp_path / "deep" / "chart.svg")
    chart.save(tmp_path / "deep" / "chart.png")
    assert texts((tmp_path / "deep" / "chart.svg").read_text())
    assert (tmp_path / "deep" / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_labels_of_lines_that_end_together_are_apart() -> None:
    chart = Chart("", "x", "y")
    for name in ("a line", "another", "a third"):
        chart.line([0, 1], [0, 1], name)
    places = [
        float(each.get("x") or each.get("transform", "").split()[1])
        for each in ET.fromstring(chart.svg()).iter("{http://www.w3.org/2000/svg}text")
        if "".join(each.itertext()) in ("a line", "another", "a third")
    ]
    assert len(places) == 3
    assert np.diff(sorted(places)).min() > 40


def test_points_and_places_have_names() -> None:
    chart = Chart("", "x", "y")
    chart.points([0, 1], [1, 2], ["first", "second"])
    chart.ticks(["here", "there"])
    assert {"first", "second", "here", "there"} <= set(texts(chart.svg()))


def test_a_distribution_marks_its_percentiles_and_counts_what_it_leaves_out() -> None:
    chart = Chart("", "Latency (ms)", "Requests")
    chart.distribution(np.arange(1, 10_001) / 10)
    found = texts(chart.svg())
    for label in ("p50 500 ms", "p95 950 ms", "p99 990 ms", "n = 10,000, 10 beyond the right edge"):
        assert label in found


def test_a_logarithmic_axis_has_plain_numbers() -> None:
    chart = Chart("", "x", "y", log_y=True)
    chart.line([1, 2], [5, 5000], "wide")
    found = texts(chart.svg())
    assert "1,000" in found
    assert "10" in found


def test_shares_are_percentages() -> None:
    chart = Chart("", "x", "y", shares=True)
    chart.line([1, 2], [0, 1], "all")
    assert "100%" in texts(chart.svg())


def test_a_file_that_cannot_be_is_refused(chart: Chart, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a chart is saved as .svg or .png"):
        chart.save(tmp_path / "chart.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        chart.save(tmp_path / "file" / "chart.svg")


def test_long_names_leave_room_for_the_picture(tmp_path: Path) -> None:
    names = [f"https://{'x' * 120}-{i}.example.com" for i in range(3)]
    figure = names_figure("f", "t", Axis("", "count"), names, [Bars("b", np.zeros(3), np.ones(3), "red")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_figure(figure, tmp_path / "f.svg")
    assert {f"…{i}.example.com" for i in range(3)} <= set(texts((tmp_path / "f.svg").read_text()))


def test_the_legend_shows_a_line_whose_points_are_few_in_part() -> None:
    curve = Curve("goodput", np.arange(3.0), np.array([0.0, 1.0, 2.0]), "green", few=np.array([False, False, True]))
    figure = Figure("f", "t", Axis("x", "number"), [Panel(Axis("y", "number"), [curve])])
    axes = _draw(figure, 9.0).axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [line.get_linestyle() for line in legend.get_lines()] == ["-"]
    assert not any(line.get_clip_on() for line in axes.get_lines())  # some of it stands on the edge
