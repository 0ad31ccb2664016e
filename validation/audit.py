"""Whether requirements.lock holds just what is needed, and what advisories say of it and of what pyproject.toml allows.

    python -m validation.audit [--advisories FOLDER]

FOLDER is a checkout of pypa/advisory-database: there is no network in this. An advisory that names no fix is for all
versions since. Each finding is a line, and the exit code is 1 then.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HOME = Path(__file__).parent.parent


def needed(asked: Sequence[Requirement], seen: set[str]) -> set[str]:
    for each in asked:
        if (not each.marker or each.marker.evaluate({"extra": ""})) and canonicalize_name(each.name) not in seen:
            seen.add(canonicalize_name(each.name))
            needed([Requirement(line) for line in distribution(each.name).requires or ()], seen)
    return seen


def holds(entry: Mapping[str, Any], version: str) -> bool:
    found = version in map(str, entry.get("versions", ()))
    for span in entry.get("ranges", ()):
        inside = False
        for kind, at in (pair for event in span["events"] for pair in event.items() if span["type"] == "ECOSYSTEM"):
            if Version(version) > Version(at) or (Version(version) == Version(at) and kind != "last_affected"):
                inside = kind == "introduced"
        found = found or inside
    return found


def advised(folder: Path, asked: Sequence[Requirement]) -> Iterator[str]:
    """Advisories for a version that one of these allows; a pin allows one."""
    for each in asked:
        for file in sorted((folder / "vulns" / canonicalize_name(each.name)).glob("*.yaml")):
            advisory = yaml.safe_load(file.read_text())
            for entry in advisory["affected"] if "withdrawn" not in advisory else ():
                tried = [str(version) for version in entry.get("versions", ())] + [
                    part.version for part in each.specifier
                ]
                if any(version in each.specifier and holds(entry, version) for version in tried):
                    yield f"{each}: {advisory['id']}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", type=Path, metavar="FOLDER")
    folder = parser.parse_args(words).advisories
    lock = [Requirement(line) for line in (HOME / "requirements.lock").read_text().splitlines()]
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = {name: [*map(Requirement, lines)] for name, lines in project["optional-dependencies"].items()}
    direct = [Requirement(line) for line in project["dependencies"]]
    names = {canonicalize_name(pin.name) for pin in lock}
    found = {f"{name}: in the lock or needed, not both" for name in names ^ needed(direct + extras["dev"], set())}
    if folder and not (folder / "vulns").is_dir():
        sys.exit(f"{folder} has no folder vulns: name a checkout of pypa/advisory-database")
    found |= set(advised(folder, sum(extras.values(), lock + direct))) if folder else set()
    print(*sorted(found), f"{len(lock)} packages, {len(found)} findings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
