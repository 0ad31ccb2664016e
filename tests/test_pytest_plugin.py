"""A team's tests fail when too few requests are accepted."""

import subprocess
import sys
from pathlib import Path

import pytest

import openloop
from tests.runs import steady_run

TESTS = """
def test_enough(goodput_gate):
    assert goodput_gate("good", "ttft<=1s", goodput=15).requests == 400

def test_share(goodput_gate):
    goodput_gate("good", "ttft<=100ms")

def test_strict(goodput_gate):
    goodput_gate("good", "ttft<=200ms", require=0.999)

def test_rate(goodput_gate):
    goodput_gate("good", "ttft<=1s", require="1%", goodput=1000)

def test_invalid(goodput_gate):
    goodput_gate("bad", "ttft<=1s")

def test_invalid_allowed(goodput_gate):
    goodput_gate("bad", "ttft<=1s", allow_invalid=True)

def test_not_a_share(goodput_gate):
    goodput_gate("good", "ttft<=1s", require=99)

def test_no_share(goodput_gate):
    goodput_gate("good", "ttft<=1s", require=None)

def test_a_rate_in_words(goodput_gate):
    goodput_gate("good", "ttft<=1s", goodput="15/s")

def test_nothing_there(goodput_gate):
    goodput_gate("absent", "ttft<=1s")
"""


def test_the_gate_opens_for_enough_and_says_what_stopped_the_others(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(openloop.__file__).parent.parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    steady_run().save(pytester.path / "good")
    steady_run(offered_rps=50.0).save(pytester.path / "bad")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "openloop.pytest_plugin", "--junitxml=junit.xml", "-W", "error")
    result.assert_outcomes(passed=3, failed=7)
    result.stdout.fnmatch_lines(
        [
            "99.0% must be accepted, *% were",
            "* missed ttft",
            "99.90% must be accepted, 99.75% were",
            "goodput must be 1,000/s, it is 20.5/s",
            "the run is not valid: *where the manifest promises 50",
            "*'99' is not a share between 0% and 100%; write it as 99% or 0.99",
            "*'None' is not a *",
            "*absent does not exist",
            "*= goodput =*",
            "test_enough: 100.0% of 400 requests accepted, 20.5/s (ttft<=1s)",
            "test_invalid: 100.0% of 400 requests accepted, 20.5/s (ttft<=1s), NOT VALID",
        ]
    )
    assert 'name="openloop.attainment" value="1.0"' in (pytester.path / "junit.xml").read_text()


TWICE = """
def test_two(goodput_gate):
    goodput_gate("good", "ttft<=1s")
    goodput_gate("good", "ttft<=2s")
"""


def test_gates_in_other_processes_are_listed_and_two_in_a_test_are_told_apart(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(openloop.__file__).parent.parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    steady_run().save(pytester.path / "good")
    pytester.makepyfile(TWICE)
    plugins = ("-p", "openloop.pytest_plugin", "-p", "xdist.plugin", "-n", "1", "--junitxml=junit.xml")
    result = pytester.runpytest_subprocess(*plugins)
    result.assert_outcomes(passed=1)
    accepted = "test_two: 100.0% of 400 requests accepted, 20.5/s"
    result.stdout.fnmatch_lines(["*= goodput =*", f"{accepted} (ttft<=1s)", f"{accepted} (ttft<=2s)"])
    written = (pytester.path / "junit.xml").read_text()
    for name in ("openloop.attainment", "openloop.attainment.2"):
        assert written.count(f'name="{name}"') == 1


def test_every_session_of_pytest_starts_as_quickly_as_before() -> None:
    code = "import sys, openloop.pytest_plugin; assert not {'numpy', 'pyarrow', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
