"""Presets give back the steps that they come from, and say where every number does."""

import pytest

from openloop.sim.steps import GPUS, MEASURED, MODELS, StepTime, explain, preset


@pytest.mark.parametrize("key", MEASURED, ids=str)
def test_measured_steps_are_reproduced(key: tuple[str, str, int]) -> None:
    found, seen = preset(*key).step, MEASURED[key]
    assert 1e3 * found.prefill(2048) == pytest.approx(seen.prefill, rel=1e-6)
    assert 1e3 * found.decode(1, 1024) == pytest.approx(seen.one, rel=1e-6)
    assert 1e3 * found.decode(128, 1024) == pytest.approx(seen.most, rel=1e-6)
    assert 1e3 * found.decode(32, 1024) == pytest.approx(seen.many, rel=0.07)  # on the line between the two


def test_a_data_sheet_comes_near_to_what_was_measured_elsewhere() -> None:
    """The linear operators of a 7B model on an A100 take 9.3 ms for a token, and 133 ms for 2,048."""
    found = preset("7b", "a100").step
    assert 1e3 * found.floor == pytest.approx(9.3, rel=0.1)
    assert 1e3 * found.token * 2048 == pytest.approx(133, rel=0.1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_every_pair_has_a_preset_that_is_explained(model: str, gpu: str) -> None:
    found = preset(model, gpu, 8)
    assert min(found.step.floor, found.step.token, found.step.context, found.step.attention, found.step.sequence) > 0
    told = "\n".join(explain(found))
    assert all(f"{name} = " in told for name in ("floor", "token", "context", "attention", "sequence"))
    assert "memory for" in told


def test_the_formula_is_as_it_is_written() -> None:
    step = StepTime(floor=0.01, token=1e-4, context=1e-7, attention=1e-9, sequence=1e-5)
    assert step.decode(200, 1000) == pytest.approx(0.02 + 200 * 1000 * 1e-7 + 200e-5)
    assert step.prefill(500, 100) == pytest.approx(0.05 + 1e-9 * 500 * (100 + 250) + 1e-5)
    assert step.scaled(0.5).prefill(500, 100) == pytest.approx(step.prefill(500, 100) / 2)
