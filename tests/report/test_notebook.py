"""Runs, scores and charts show themselves in a notebook."""

import xml.etree.ElementTree as ET

from openloop.report.chart import Chart
from openloop.score import score
from tests.runs import row, run_of, steady_run


def test_a_score_shows_its_tables_and_a_chart() -> None:
    found = score(steady_run(), "ttft<=500ms")
    page = found._repr_html_()
    assert page.startswith("<pre")
    assert "VALID" in page
    assert f"{100 * found.attainment:.1f}%" in page
    svg = ET.fromstring(page[page.index("<svg") :])
    words = "".join(svg.itertext())
    assert "Latency by percentile" in words
    assert {"ttft", "tpot", "e2e"} <= set(words.split())
    assert "not valid" not in words


def test_numbers_that_cannot_be_believed_are_struck_out_there_too() -> None:
    page = score(run_of([row(i, float(i), [0.1, 0.2]) for i in range(9)]), "ttft<=500ms")._repr_html_()
    assert "INVALID: only 9 requests" in page
    assert "line-through" in page
    assert "of a run that is not valid" in page


def test_a_run_without_tokens_has_no_chart_of_them() -> None:
    assert "<svg" not in score(run_of([row(i, float(i), status="error") for i in range(9)]), "ttft<=1s")._repr_html_()


def test_a_run_shows_what_it_is_and_hides_no_markup_in_its_words() -> None:
    page = steady_run(model="<script>alert(1)</script>")._repr_html_()
    assert "400 rows" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_chart_is_drawn() -> None:
    chart = Chart("One", "x", "y")
    chart.line([0, 1], [1, 2], "line")
    assert "<svg" in chart._repr_svg_()
