"""The map of metrics speaks of what there is."""

import dataclasses

from openloop.importers import IMPORTERS
from openloop.report.metric_map import METRICS, TOOLS
from openloop.score import Score


def test_every_metric_is_a_key_of_the_score_once() -> None:
    keys = [metric.key for metric in METRICS]
    assert len(keys) == len(set(keys))
    assert set(keys) <= {field.name for field in dataclasses.fields(Score)}


def test_every_tool_that_can_be_imported_is_on_the_map() -> None:
    assert set(TOOLS) == (set(IMPORTERS) - {"hdr"}) | {"wrk2"}
    assert {tool for metric in METRICS for tool in metric.theirs} == set(TOOLS)
