"""Each gate accepts what it should, refuses what it should, and says nothing where it cannot know."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import SpecError
from openloop.quality import QUALITY_GATES, Case, Grade, read_gating, read_quality_gate
from openloop.quality.case import joint_grade
from openloop.quality.gates import Contains, Regex
from openloop.quality.grading import slices_of
from openloop.terms import read_term

SCHEMA = {"type": "object", "required": ["total"], "properties": {"total": {"type": "number", "minimum": 0}}}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "broken.json").write_text('{"type": "no such type"}')
    (tmp_path / "mine.py").write_text(
        "def short(case):\n    return len(case.text) < 5\n"
        "def score(case):\n    return float(case.text)\n"
        "def silent(case):\n    return None\n"
    )
    (tmp_path / "prompt.txt").write_text("Is {answer} right? {nonsense}")
    return tmp_path


def passed(gate: str, text: str, **more: object) -> bool | None:
    return read_quality_gate(gate).check(Case(text, **more)).passed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gate", "good", "bad"),
    [
        ("contains:text=refund", "your refund is due", "your money"),
        ("contains:text=Refund,case=no", "a REFUND", "a fund"),
        ("contains:'yes, (of course)'", "oh yes, (of course)!", "yes"),
        (r"regex:^\d+$", "42", "42a"),
        (r"regex:pattern='\d{2,3}',whole=yes", "123", "1234"),
        ("exact:text=Paris", "Paris", "paris"),
        ("match:'The Paris.'", " paris ", "Rome"),
        ("json", '{"a": [1]}', "{'a': 1}"),
        ("json", "null", "NaN"),
        ("json:fenced=yes", '```json\n{"a": 1}\n```', "```\nno\n```"),
        ("number:value=1000,tolerance=1%", "so it is 1,005.", "so it is 1,011"),
        ("number:value=-2.5,absolute=0.1", "x = -2.45", "x = 2.5"),
        ("number:value=7", "6 or 7", "7 or 6"),
        ("length:least=2,most=3", "two words", "one"),
        ("length:most=4,unit=characters", "four", "fives"),
    ],
)
def test_it_tells_good_from_bad(gate: str, good: str, bad: str) -> None:
    assert passed(gate, good) is True
    assert passed(gate, bad) is False
    assert str(read_quality_gate(str(read_quality_gate(gate)))) == str(read_quality_gate(gate))


def test_references_contexts_and_reasons_of_a_request_count() -> None:
    assert passed("exact", "Paris", reference="Paris") is True
    assert passed("match", "the Paris!", reference="paris") is True
    assert passed("number:tolerance=1%", "about 99.5", reference="the answer is 100") is True
    assert passed("length:most=5,unit=tokens", "x", output_tokens=6) is False
    assert passed("finish:stop+tool_calls", "x", finish_reason="stop") is True
    assert passed("finish", "x", finish_reason="length") is False
    context = "The invoice of March was paid on 14.03.2024 by Kowalski."
    assert passed("grounded:least=75%", "Kowalski paid the invoice on 14.03.2024.", context=context) is True
    assert passed("grounded:least=75%", "Smith refused delivery on 15.04.2024.", context=context) is False
    assert passed("grounded", "Kowalski paid", prompt=context) is True


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("-4", -4), ("it is -4.", -4), ("(-4)", -4), ("x=-4", -4), ("\\boxed{-4}", -4), ("**+4**", 4), ("-.5", -0.5)],
        *[("GPT-4", 4), ("a boeing 737-800", 800), ("10-20", 20), ("2024-01-15", 15), ("7 - 3", 3), ("5%-10%", 10)],
        *[("1,234", 1234), ("-1,234,567.5", -1234567.5), ("3,4", 4), ("1,2345", 2345), ("12345,678", 678), ("4,", 4)],
        *[
            ("\u22124", -4),
            ("2e-3", 0.002),
            ("12.5%", 12.5),
            ("<answer>-4</answer>", -4),
            ("####-4", -4),
            ("x→-4", -4),
            ("€-4", -4),
        ],
    ],
)
def test_the_last_number_of_a_text(text: str, number: float) -> None:
    assert passed(f"number:{number}", text) is True
    assert passed(f"number:{number}", f"3 {text}") is True


@pytest.mark.parametrize("gate", ["exact", "match", "number", "length:most=5,unit=tokens", "finish", "grounded"])
def test_what_cannot_be_known_is_left_open(gate: str) -> None:
    grade = read_quality_gate(gate).check(Case("42 it is"))
    assert grade.passed is None
    assert grade.score is None
    assert grade.why


def test_json_is_held_against_a_schema(files: Path) -> None:
    gate = f"schema:path={files}/schema.json"
    assert passed(gate, '{"total": 3}') is True
    grade = read_quality_gate(gate).check(Case('{"total": -3}'))
    assert (grade.passed, grade.score) == (False, 0.0)
    assert "at $.total" in str(grade.why)
    assert passed(gate, "no json") is False


def test_a_function_of_the_users_decides(files: Path) -> None:
    assert passed(f"python:{files}/mine.py:short", "abc") is True
    assert passed(f"python:{files}/mine.py:short", "abcdef") is False
    assert passed(f"python:{files}/mine.py:score,least=0.8", "0.9") is True
    assert read_quality_gate(f"python:{files}/mine.py:score,least=0.8").check(Case("0.7")).score == 0.7
    assert passed(f"python:{files}/mine.py:score", "7") is None
    assert passed(f"python:{files}/mine.py:silent", "7") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contain:text=a", "unknown quality gate 'contain'; did you mean 'contains'?"),
        ("contains", "text is missing"),
        ("number:abc", "'abc' is not a number"),
        ("number:-nan", "'nan' is not a number"),
        ("contains:text='a", "has a quote that does not end"),
        ("regex:pattern='(a'", "is no regular expression"),
        ("length:most=5,unit=pages", "unit is 'pages'; it is words, characters or tokens"),
        ("schema:path=nowhere.json", "nowhere.json cannot be read"),
        ("schema:path={files}/broken.json", "is no JSON Schema"),
        ("python:nowhere.py:f", "cannot be loaded"),
        ("judge:url=localhost", "'localhost' is no URL"),
        ("judge:url=http://a,prompt={files}/prompt.txt", "a place {nonsense} that nothing fills"),
        ("judge:url=http://a,timeout=0s", "it must be more than 0"),
        ("number:tolerance=200%", "not a share"),
    ],
)
def test_a_gate_that_cannot_work_is_one_sentence(files: Path, text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_quality_gate(text.replace("{files}", str(files)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(), st.booleans())
def test_any_text_can_be_looked_for(text: str, whole: bool) -> None:
    for gate in (Contains(text, whole), Regex(text, whole)):
        assert read_term(str(gate), QUALITY_GATES, "quality gate") == gate


def test_all_must_pass_and_one_that_is_open_leaves_it_open() -> None:
    good, bad, silent = Grade(True, 0.9, 1.0), Grade(False, 0.1, 2.0, "no"), Grade(None, None, 4.0, "who knows")
    assert joint_grade([good, good]).passed is True
    assert joint_grade([good, bad, silent]).passed is False
    assert joint_grade([good, bad]).score == 0.1
    assert joint_grade([good, silent]).passed is None
    assert joint_grade([good, silent]).score is None
    assert joint_grade([good, silent, bad]).cost == 7.0
    assert joint_grade([good, bad, silent]).cost == 3.0  # who comes after a failure is not asked
    assert joint_grade([good, silent]).why == "who knows"


def test_gates_differ_by_class(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(
        "default: ['length:most=3']\nclasses:\n  extract: [json, 'contains:text=total']\n  free: []\n"
        "slices: {refunds: 'contains:refund'}\n"
    )
    gating = read_gating(path)
    assert joint_grade(gate.check(Case("one two three four")) for gate in gating.of(None)).passed is False
    assert joint_grade(gate.check(Case('{"total": 1}')) for gate in gating.of("extract")).passed is True
    assert gating.of("free") == ()
    assert str(gating) == "default: length:most=3; extract: json and contains:text=total; free: "
    assert read_gating(path).fingerprint == gating.fingerprint
    path.write_text("default: ['length:most=4']\n")
    assert read_gating(path).fingerprint != gating.fingerprint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default: [jsn]", "unknown quality gate 'jsn'; did you mean 'json'?"),
        ("gates: [json]", "unknown key 'gates'"),
        ("{}", "it names no gate"),
        ("[]", "it names no gate"),
        ("default: json", "Expected `array | null`"),
        ("default: [json]\nslices: {a+b: json}", "'a+b' is no name of a slice"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_gating(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_schema_that_changes_is_another_gate(files: Path) -> None:
    before = read_gating(f"schema:path={files}/schema.json").fingerprint
    (files / "schema.json").write_text("{}")
    assert read_gating(f"schema:path={files}/schema.json").fingerprint != before


def test_prompts_fall_into_slices() -> None:
    many = [f"What is the weather in Paris today, number {i}?" for i in range(200)]
    names = slices_of(
        [*many, "What does Zyxwvut AG owe?", "Add 17 and 25.", "Nothing here. Really", "Order QX-2291B now"]
    )
    assert set(names[:200]) == {()}
    assert names[200:] == [("rare",), ("numeric",), (), ("rare",)]


def test_the_file_in_the_docs_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "quality.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "invoice.json").write_text("{}")
    (tmp_path / "gates.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    assert set(read_gating("gates.yaml").classes) == {"extraction", "rag"}
