"""The demo shows what it promises."""

from pathlib import Path

import pytest

import openloop
from openloop.demo import RATES, demo
from openloop.errors import RunError


def test_goodput_collapses_over_real_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo(tmp_path / "demo", seconds=2.0)
    shown = capsys.readouterr().out
    scores = [openloop.score(tmp_path / "demo" / name) for name in RATES]
    assert all(name in shown for name in RATES)
    assert "offered   completed   goodput" in shown
    assert scores[0].attainment == 1.0
    assert scores[-1].attainment < scores[0].attainment
    assert (tmp_path / "demo" / "collapse.png").stat().st_size > 10_000
    with pytest.raises(RunError, match="is there already"):
        demo(tmp_path / "demo")
