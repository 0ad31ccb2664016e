import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import SpecError
from openloop.slo import (
    E2E,
    GATES,
    PRESETS,
    SLO,
    TPOT,
    TTFT,
    Completion,
    Objectives,
    Smooth,
    parse_objectives,
    parse_slo,
    read_slo,
)
from openloop.slo.deadlines import ExponentialPenalty, reading_from_first
from openloop.slo.gates import ITL, Quality, Read, Retries

EVERYTHING = (
    "ttft<=500ms, tpot<=40ms, tbt<=200ms, itl_p95<=80ms, jitter<=1s, e2e<=10s, read>=20tok/s, quality, retries<=1"
)


def test_the_whole_language_is_understood() -> None:
    slo = parse_slo(EVERYTHING)
    assert slo.gates[0] == TTFT(0.5)
    assert slo.gates[3] == ITL(0.95, 0.08)
    assert slo.gates[6] == Read(20.0)
    assert slo.gates[7:] == (Quality(), Retries(1))


@pytest.mark.parametrize("name", GATES)
def test_every_gate_reads_its_own_example_and_writes_it_back(name: str) -> None:
    gate = parse_slo(GATES[name].example).gates[0]
    assert gate.name == name
    assert parse_slo(str(gate)).gates == (gate,)
    assert hash(gate) == hash(parse_slo(str(gate)).gates[0])


durations = st.integers(1, 10**13).map(lambda ns: ns / 1e9)


@given(ttft=durations, share=st.integers(1, 999).map(lambda n: n / 1000), itl=durations, speed=st.floats(0.001, 1e6))
def test_an_slo_reads_back_as_it_was_written(ttft: float, share: float, itl: float, speed: float) -> None:
    slo = SLO((TTFT(ttft), ITL(share, itl), Read(speed), Quality(0.5)))
    again = parse_slo(str(slo))
    assert str(again) == str(slo)
    assert again.gates[0] == slo.gates[0]
    assert again.gates[2:] == slo.gates[2:]


@pytest.mark.parametrize("text", ["ttft ≤ 500ms", " ttft<=0.5s ", "ttft<=500000us"])
def test_spelling_does_not_matter(text: str) -> None:
    assert parse_slo(text).gates == (TTFT(0.5),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the SLO is empty"),
        ("ttft<=500", r"SLO term 1, 'ttft<=500': '500' needs a unit; write it as 500ms"),
        ("ttft<=1s, tpott<=40ms", r"SLO term 2, 'tpott<=40ms': unknown gate 'tpott'; did you mean 'tpot'?"),
        ("ttft<500ms", r"SLO term 1, 'ttft<500ms': write it as ttft<=500ms"),
        ("ttft>=500ms", r"write it as ttft<=500ms"),
        ("ttft", r"SLO term 1, 'ttft': write it as ttft<=500ms"),
        ("ttft<=", r"write it as ttft<=500ms"),
        ("read>=20", r"'20' needs a unit; write it as 20tok/s"),
        ("read<=20tok/s", r"write it as read>=20tok/s"),
        ("retries<=1.5", r"SLO term 1, 'retries<=1.5': '1.5' is not a whole number"),
        ("ttft<=1s,, tpot<=1s", r"SLO term 2, '': expected a gate such as ttft<=500ms"),
        ("ttft<=1s, ttft<=2s", "the SLO names 'ttft' twice; keep one"),
        ("ttft_p99<=1s", r"a gate judges one request, so ttft takes no percentile.*--require 99%"),
        ("p99_ttft<=1s", r"a gate judges one request, so ttft takes no percentile"),
        ("itl_p0<=1s", r"unknown gate 'itl_p0'"),
        ("ttft<=-1s", r"'-1s' is negative"),
        ("500ms", r"expected a gate such as ttft<=500ms"),
        ("ttft<300ms", r"SLO term 1, 'ttft<300ms': write it as ttft<=300ms"),
        ("quality>0.5", r"write it as quality>=0.5"),
        ("ttft<=1s, rag", r"SLO term 2, 'rag': the preset 'rag' must come first"),
        ("read>=20tokens/sec", r"has the unknown unit 'tokens/sec'; write it as 20tok/s"),
        ("ttft<=1e11s", r"'1e11s' is longer than 1e.09 s"),
        ("e2e<=1e308h", r"is longer than"),
        ("read>=1e-11tok/s", r"is no reading speed"),
        ("read>=1tok/d", r"is no reading speed"),
        ("itl_p99.99999999<=1s", r"unknown gate 'itl_p99.99999999'"),
    ],
)
def test_an_error_points_at_the_term_and_says_how_to_write_it(text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        parse_slo(text)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_gates_a_unit_and_a_name_for_it(name: str) -> None:
    preset = parse_slo(name)
    assert preset == PRESETS[name]
    assert preset.gates
    assert preset.unit in ("request", "session", "row")
    assert Quality() in preset.gates


def test_the_presets_are_the_six_workload_classes_of_the_article() -> None:
    units = {name: preset.unit for name, preset in PRESETS.items()}
    assert units == {
        "conversational": "session",
        "agentic": "session",
        "rag": "request",
        "extraction": "row",
        "voice": "session",
        "batch": "row",
    }
    assert PRESETS["batch"].per_s == 3600
    assert any(isinstance(gate, Completion) for gate in PRESETS["batch"].gates)


def test_a_preset_can_be_changed_in_one_gate() -> None:
    slo = parse_slo("rag, ttft<=1s, e2e<=20s")
    assert slo.gates == (TTFT(1.0), *PRESETS["rag"].gates[1:], E2E(20.0))
    assert slo.unit_name == "grounded answer"


@pytest.mark.parametrize(
    "build",
    [
        lambda: TTFT(-1),
        lambda: TTFT(float("nan")),
        lambda: TTFT("500ms"),  # type: ignore[arg-type]
        lambda: ITL(95, 0.08),
        lambda: Read(0),
        lambda: Retries(-1),
        lambda: SLO((), per_s=0),
        lambda: Smooth(alpha=float("inf")),
        lambda: ExponentialPenalty(0.0),
    ],
)
def test_values_without_sense_are_refused_in_python_too(build: Callable[[], object]) -> None:
    with pytest.raises(SpecError, match="it is a number from"):
        build()


def test_gates_given_as_objects_must_differ() -> None:
    with pytest.raises(SpecError, match="names 'ttft' twice"):
        SLO((TTFT(1.0), TTFT(2.0)))


def test_yaml_gives_an_slo_per_class_with_a_default(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(
        """
        default: "ttft<=500ms, tpot<=40ms"
        classes:
          search: rag
          nightly:
            gates: "window<=4h"
            unit: row
            per: 1h
            smooth: {alpha: 2, read: 10tok/s, start: first token, penalty: exponential, scale: 3s}
        """
    )
    objectives = read_slo(str(path))
    assert objectives.of(None).gates == (TTFT(0.5), TPOT(0.04))
    assert objectives.of("anything else") == objectives.of(None)
    assert objectives.of("search") == PRESETS["rag"]
    nightly = objectives.of("nightly")
    assert (nightly.unit, nightly.per_s, nightly.smooth.alpha) == ("row", 3600.0, 2.0)
    assert nightly.smooth.deadlines == reading_from_first(10.0)
    assert nightly.smooth.penalty == ExponentialPenalty(3.0)
    assert read_slo(path) == objectives


def test_objectives_by_class_read_back_as_they_are_written() -> None:
    for mapping in (
        {"default": "ttft<=1s, tpot<=40ms", "classes": {"chat": "ttft<=300ms", "llama:8b": "e2e<=10s, quality"}},
        {"classes": {"chat": "ttft<=300ms"}},
        {"default": "ttft<=1s, tpot<=40ms"},
        {"default": "ttft<=1s", "classes": {"prompt>=1k": "ttft<=2s"}},
    ):
        objectives = read_slo(mapping)
        assert parse_objectives(str(objectives)) == read_slo(str(objectives)) == objectives
        lines = str(objectives).replace(", ", ",\n").replace("; ", ";\n") + "\n"
        assert read_slo(lines) == objectives
    for text, sentence in (
        ("ttft<=1s; chat: ttft<=2s", "'ttft<=1s' names no class of its own"),
        ("chat: ttft<=1s; chat: ttft<=2s", "'chat: ttft<=2s' names no class of its own"),
        ("chat: tftt<=1s", "class 'chat': SLO term 1, 'tftt<=1s'"),
        ("default: ttft<=1s\nchat: ttft<=2s", r"'default: ttft<=1s\nchat' names no class: a semicolon ends"),
        ("default: quality\nchat: ttft<=2s", r"'default: quality\nchat' names no class: a semicolon ends"),
        ("default: ttft<=1s, chat: ttft<=2s", "'default: ttft<=1s, chat' names no class: a semicolon ends"),
    ):
        with pytest.raises(SpecError, match=re.escape(sentence)):
            parse_objectives(text)


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ({"defualt": "ttft<=1s"}, "unknown key 'defualt'; did you mean 'default'?"),
        ({}, "it names no SLO"),
        ({"classes": {"chat": {"gate": "ttft<=1s"}}}, "class 'chat': unknown key 'gate'; did you mean 'gates'?"),
        ({"classes": {"chat": "ttft<=1"}}, "class 'chat': SLO term 1, 'ttft<=1'"),
        ({"default": {"gates": "ttft<=1s", "unit": "month"}}, "month"),
        ({"default": {"gates": "ttft<=1s", "smooth": {"penalty": "harsh"}}}, "default: unknown penalty 'harsh'"),
        ({"default": {"gates": "ttft<=1s", "smooth": {"scale": "1s"}}}, "the linear penalty takes no scale"),
    ],
)
def test_a_mapping_without_sense_is_refused(mapping: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        read_slo(mapping)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("classes:\n  c: ttft<=1s\n  c: ttft<=1us\n", "line 3 is not YAML: the key 'c' stands twice"),
        ("default: 2001-99-99\n", "cannot be understood: month must be in"),
        ("[" * 3000, "slo.yaml"),
        ("- a\n", "Expected `object`, got `array`"),
        ("default: 5\n", "default: Expected `object`, got `int`"),
        ("default: {gates: ttft<=1s, per: 0s}\n", "the time that goodput is counted per is 0.0"),
        ("default: {gates: ttft<=1s, smooth: {alpha: .nan}}\n", "default: alpha is nan"),
    ],
)
def test_a_file_without_sense_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "slo.yaml").write_text(text)
    with pytest.raises(SpecError, match=sentence) as refusal:
        read_slo(tmp_path / "slo.yaml")
    assert "\n" not in str(refusal.value)


def test_a_class_that_no_slo_covers_is_refused() -> None:
    objectives = Objectives(None, {"chat": parse_slo("ttft<=1s")})
    with pytest.raises(SpecError, match="says nothing about workload class 'batch'"):
        objectives.of("batch")
    with pytest.raises(SpecError, match="says nothing about requests without a class"):
        objectives.of(None)
