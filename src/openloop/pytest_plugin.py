"""A plugin for pytest: a team's tests fail when too few requests are accepted.

    def test_goodput(goodput_gate):
        goodput_gate("run/", "ttft<=500ms, tpot<=40ms", require="99%")

What was held against what, and how it came out, is listed at the end of the session.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from openloop.units import format_rate, format_share, parse_rate, parse_share

if TYPE_CHECKING:
    from openloop.score import Score

GoodputGate = Callable[..., "Score"]

_LINE = "openloop.gate"  # travels with a test's properties, from other processes too


@pytest.fixture
def goodput_gate(request: pytest.FixtureRequest) -> GoodputGate:
    """Score a run (a folder, a file of another tool, or a Run) and fail the test if it is not good enough.

    `require` is the share that must be accepted of what the SLO counts, `goodput` how many requests per second. A run
    that is not valid fails too, unless `allow_invalid`: its numbers cannot be believed. Returns the score.
    """

    def gate(
        run: Any,
        slo: Any = None,
        *,
        require: str | float = "99%",
        goodput: str | float | None = None,
        allow_invalid: bool = False,
    ) -> "Score":
        from openloop.score import score

        share, rate = parse_share(str(require)), 0.0 if goodput is None else parse_rate(str(goodput))
        found = score(run, slo)
        line = (
            f"{request.node.name}: {format_share(found.attainment)} of {found.requests:,} requests accepted, "
            f"{format_rate(found.goodput_rps)} ({found.slo}){'' if found.valid else ', NOT VALID'}"
        )
        told = request.node.user_properties  # as record_property does, which warns of JUnit's xunit2
        before = sum(name.startswith(_LINE) for name, _ in told)
        again = f".{before + 1}" if before else ""
        told.append((_LINE + again, line))
        told += [(f"openloop.{name}{again}", getattr(found, name)) for name in ("attainment", "goodput_rps", "valid")]
        wrong = [] if allow_invalid else [f"the run is not valid: {reason}" for reason in found.reasons]
        if not found.unit_attainment >= share:
            wrong.append(f"{format_share(share)} must be accepted, {format_share(found.unit_attainment)} were")
        if not found.goodput_rps >= rate:
            wrong.append(f"goodput must be {format_rate(rate)}, it is {format_rate(found.goodput_rps)}")
        if wrong:
            missed = [f"{each.failed:,} missed {name}" for name, each in found.gates.items() if each.failed]
            pytest.fail("\n".join([line, *wrong, *missed]), pytrace=False)
        return found

    return gate


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = (each for some in terminalreporter.stats.values() for each in some)
    over = (each for each in reports if getattr(each, "when", None) == "teardown")
    lines = [text for each in over for name, text in each.user_properties if name.startswith(_LINE)]
    if lines:
        terminalreporter.section("goodput")
        for line in lines:
            terminalreporter.write_line(line)
