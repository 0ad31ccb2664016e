"""Which importer a file is for."""

import csv
from collections.abc import Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Final

from openloop.errors import OpenloopError, RunError
from openloop.importers.foreign import ENCODING
from openloop.records import MANIFEST_FILE, Run, locate, open_run
from openloop.spec import one_line, suggest

# Each is a module of this room, an underscore for a hyphen.
TOOLS = (
    *("vllm", "sglang", "aiperf", "guidellm", "inference-perf", "genai-bench", "veeksha", "etalon", "llmperf"),
    *("loadgen", "kneepoint", "vegeta", "k6", "locust", "hey", "hdr", "otel"),
)
IMPORTERS: Final[Mapping[str, ModuleType]] = {
    name: import_module(f"openloop.importers.{name.replace('-', '_')}") for name in TOOLS
}

LONGEST_FIELD = 1 << 30  # of CSV: some hold whole answers
HEAD = 1 << 16  # bytes that are enough to know a file by


def open_any(path: str | Path, *, tool: str | None = None, part: int | None = None) -> Run:
    """The run in a folder, or in a file of another tool; here, or at a URL."""
    there = locate(path)
    return read_foreign(there, tool, part) if there.exists() and not there.is_dir() else open_run(path)


def read_foreign(path: Path, tool: str | None = None, part: int | None = None) -> Run:
    """The run in a file of another tool, known by its content unless it is said; the `part`th, if there are several."""
    name = tool or tool_of(path)
    if name is None and (path.parent / MANIFEST_FILE).exists():
        raise RunError(f"{path} is a file; give the folder it is in")
    if name is None:
        raise RunError(f"{path} is neither a run nor a file of a known tool: {', '.join(IMPORTERS)}")
    if name not in IMPORTERS:
        raise RunError(f"there is no importer for {name!r}{suggest(name, IMPORTERS)}")
    usual = csv.field_size_limit(LONGEST_FIELD)
    try:
        found: list[Run] = list(islice(IMPORTERS[name].read(path), part))
        for run in found[-1:]:
            run.validate()
    except (
        *(OpenloopError, OSError, LookupError, ArithmeticError, ValueError, TypeError, AttributeError),
        *(RecursionError, csv.Error),
    ) as error:
        raise RunError(f"{path} cannot be read as a file of {name}: {_sentence(error)}") from None
    finally:
        csv.field_size_limit(usual)
    if not found:
        raise RunError(f"{path} holds no whole run: it was cut short, or nothing was written to it")
    if (part or 1) > len(found):
        raise RunError(f"{path} holds {len(found)} runs; there is no part {part}")
    if part is None and len(found) > 1:
        raise RunError(
            f"{path} holds {len(found)} runs: import the one you want, openloop import {path} --part 1 -o FOLDER"
        )
    return found[-1]


def tool_of(path: Path) -> str | None:
    """Whose file this is, by its content; None: no tool's that is known."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD).decode(ENCODING, "replace")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    return next((name for name, importer in IMPORTERS.items() if importer.looks_like(head)), None)


def _sentence(error: Exception) -> str:
    said = one_line(error)
    if isinstance(error, KeyError):
        return f"it has no {said}"
    return said if isinstance(error, OpenloopError) else f"{type(error).__name__} {said}"
