from pathlib import Path

import pytest

from openloop.errors import SpecError
from openloop.spec import Strict, convert, read_yaml, suggest


class Inner(Strict, frozen=True):
    colour: str = "red"


class Outer(Strict, frozen=True):
    size: int = 1
    inner: Inner | None = None
    many: dict[str, Inner] | None = None
    row: str | list[Inner] = ""


def test_a_misspelt_key_is_named_and_the_right_one_suggested() -> None:
    with pytest.raises(SpecError, match="here: unknown key 'sise'; did you mean 'size'?"):
        convert({"sise": 2}, Outer, "here")


@pytest.mark.parametrize(
    "value", [{"inner": {"color": "blue"}}, {"many": {"a": {"color": "blue"}}}, {"row": [{}, {"color": "blue"}]}]
)
def test_a_misspelt_key_deep_inside_is_compared_with_what_belongs_there(value: object) -> None:
    with pytest.raises(SpecError, match="unknown key 'color' in '.+'; did you mean 'colour'?"):
        convert(value, Outer, "here")


def test_a_value_of_the_wrong_type_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match="Expected `int`, got `str` at `size`"):
        convert({"size": "large"}, Outer, "here")


def test_without_anything_close_all_that_is_known_is_listed() -> None:
    assert suggest("zzz", ["ttft", "tpot"]) == "; known are ttft, tpot"


def test_broken_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("a: 1\nb: [1, 2\nc: 3\n")
    with pytest.raises(SpecError, match="broken.yaml, line 3 is not YAML"):
        read_yaml(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nowhere.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_the_key_on_is_a_word_and_50e9_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("scale: {on: queue, off: yes}\nbandwidth: 50e9\n")
    assert read_yaml(path) == {"scale": {"on": "queue", "off": True}, "bandwidth": 50e9}
