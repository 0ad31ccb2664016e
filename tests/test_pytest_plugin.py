"""A team's tests fail when too few requests are accepted."""

import subprocess
import sys
from pathlib import Path

import pytest

import openloop
from tests.runs import steady_run

GATE = """
def test_goodput(goodput_gate):
    assert goodput_gate({run!r}, {slo!r}, {options}).requests == 400
"""


@pytest.fixture
def gate(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(slo: str, options: str = "", run: openloop.Run | None = None) -> pytest.RunResult:
        (run or steady_run()).save(tmp_path / "run")
        pytester.makepyfile(GATE.format(run=str(tmp_path / "run"), slo=slo, options=options))
        return pytester.runpytest_inprocess("-p", "openloop.pytest_plugin", "--junitxml=junit.xml")

    return run


def test_enough_accepted_requests_pass_and_are_told(gate: object, pytester: pytest.Pytester) -> None:
    result = gate("ttft<=1s", "goodput=15")  # type: ignore[operator]
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= goodput =*", "test_goodput: 100.0% of 400 requests accepted, *(ttft<=1s)"])
    assert 'name="openloop.attainment" value="1.0"' in (pytester.path / "junit.xml").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "99.0% must be accepted, * were"),
        ("require=0.999", "99.90% must be accepted, * were"),
        ('require="1%", goodput=1000', "goodput must be 1,000/s, it is *"),
    ],
)
def test_too_few_fail_with_what_stopped_them(gate: object, options: str, sentence: str) -> None:
    result = gate("ttft<=100ms", options)  # type: ignore[operator]
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([sentence, "* missed ttft"])


@pytest.mark.parametrize(("options", "outcome"), [("", "failed"), ("allow_invalid=True", "passed")])
def test_a_run_that_is_not_valid_fails_unless_it_may(gate: object, options: str, outcome: str) -> None:
    result = gate("ttft<=1s", options, steady_run(offered_rps=50.0))  # type: ignore[operator]
    result.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        result.stdout.fnmatch_lines(["the run is not valid: *where the manifest promises 50"])


def test_every_session_of_pytest_starts_as_quickly_as_before() -> None:
    code = "import sys, openloop.pytest_plugin; assert not {'numpy', 'pyarrow', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
