"""What the audit of dependencies makes of advisories."""

from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from validation import audit

EVENTS = [{"introduced": "0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"last_affected": "2.3"}]


@pytest.mark.parametrize(
    ("version", "held"),
    [("0.1", True), ("1.4.9", True), ("1.5", False), ("1.10", False), ("2.0", True), ("2.3", True), ("2.3.1", False)],
)
def test_an_advisory_holds_from_where_it_begins_to_where_it_is_fixed(version: str, held: bool) -> None:
    entry = {"ranges": [{"type": "ECOSYSTEM", "events": EVENTS}, {"type": "GIT", "events": [{"introduced": "0"}]}]}
    assert audit.holds(entry, version) is held
    assert audit.holds(entry | {"versions": [version]}, version)


def test_pins_and_bounds_are_found_in_a_folder_of_advisories(tmp_path: Path) -> None:
    def write(number: int, entry: dict[str, object], **more: str) -> None:
        file = tmp_path / "vulns" / "some-thing" / f"PYSEC-2026-{number}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump({"id": file.stem, "affected": [{"package": {"name": "x"}} | entry]} | more))

    fixed = {
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1.2"}, {"fixed": "1.5"}]}],
        "versions": ["1.4"],
    }
    write(1, fixed)
    write(2, {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "3.0"}]}], "versions": ["3.0"]})
    write(3, {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {}]}]}, withdrawn="2026-06-09")
    asked = ["Some_Thing==1.4", "some.thing==1.5", "some-thing>=1.0", "some-thing>=1.5,<3", "some-thing", "other>=1"]
    assert list(audit.advised(tmp_path, [Requirement(line) for line in asked])) == [
        "Some_Thing==1.4: PYSEC-2026-1",
        "some-thing>=1.0: PYSEC-2026-1",
        "some-thing>=1.0: PYSEC-2026-2",
        "some-thing: PYSEC-2026-1",
        "some-thing: PYSEC-2026-2",
    ]
    with pytest.raises(SystemExit, match="no folder vulns"):
        audit.main(["--advisories", str(tmp_path / "vulns")])
