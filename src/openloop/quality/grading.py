"""Grades for a run that is over: its texts through the gates, and into its table."""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec

from openloop.errors import RunError
from openloop.quality.case import Case, Grade
from openloop.quality.gates import Gating, read_gating
from openloop.quality.pool import Pool, jobs_for
from openloop.records import GRADES, PARTS, Labels, Run, SideWriter, is_url, open_run, relabel

FLUSH_S = 1.0
FLUSH_ROWS = 1000
RARE_SHARE = 0.01  # of prompts, in which a name is rare
NUMBERS = re.compile(r"\d[\d,.]*")
AROUND = ".,;:!?()[]{}\"'`*"
JOINED = ["request_id", "attempt", "status", "workload_class", "finish_reason", "output_tokens"]

Key = tuple[int, int]  # request and attempt
Grades = dict[str, Any]  # a row of grades.parquet


@dataclass(frozen=True)
class Grading:
    """What a grading came to. `open` are those that could not be judged, by why."""

    gate: str
    texts: int
    graded: int  # this time; the others were before
    passed: int
    failed: int
    open: dict[str, int]
    cost: float
    agreement: float | None  # of a judge's replies, with the majority of them
    reasons: dict[str, int] = field(default_factory=dict)  # of failures


def grade_run(
    path: str | Path,
    gates: Any,
    *,
    jobs: int | None = None,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Grading:
    """Fill the quality columns of the run in a folder from its texts.

    What these gates have judged before stands, unless `again`; what they left open is tried anew. Interrupted, it goes
    on where it was.
    """
    if is_url(path):
        raise RunError(
            f"{path} is a URL, and grades are written beside a run here: openloop import {path} -o FOLDER copies it"
        )
    gating, run, folder = read_gating(gates), open_run(path), Path(path)
    if run.missing:
        raise RunError(f"{folder} cannot be graded: {run.missing[0]}")
    if run.manifest.nodes:
        raise RunError(
            f"{folder} is in parts, by machine; grade each of them: openloop grade {folder / PARTS / '0'} ..."
        )
    cases, mark = dict(_cases(run)), gating.fingerprint
    before = {} if again else {key: row for key, row in _graded(folder).items() if row["gate"] == mark and key in cases}
    known = {key: row for key, row in before.items() if row["quality"] is not None}
    todo = {key: case for key, case in cases.items() if key not in known and gating.of(case.workload_class)}
    spent = {key: row["review_cost"] or 0.0 for key, row in before.items() if key not in known}
    there = {_key(row) for row in _spooled(folder) if row["gate"] == mark}  # of a grading that did not get to its end
    writer, rows = GRADES.writer(folder), known
    if todo or there:
        held = [row for key, row in known.items() if key not in there]  # what is written is to hold all of it
        rows = known | _grade_all(writer, held, gating, todo, spent, mark, jobs or jobs_for(gating), progress)
    if todo or there or run.manifest.quality_gate != str(gating):
        labels = labels_of(rows, {key: case.prompt for key, case in cases.items()}, run.manifest.quality_gate, gating)
        relabel(folder, run.batches(), labels, msgspec.structs.replace(run.manifest, quality_gate=str(gating)))
        writer.finish()  # after the table has them: until then they are those of a grading without an end
    return summary(gating, len(cases), len(todo), rows.values())


def labels_of(
    rows: Mapping[Key, Grades], prompts: Mapping[Key, str], gate_before: str | None, gating: Gating
) -> Labels:
    """What is filled into the table: grades, and the slices that prompts belong to."""
    found = dict(zip(prompts, slices_of(list(prompts.values())), strict=True))
    named = [
        {**row, "slices": "+".join([*found.get(key, ()), *filter(None, [row["slices"]])]) or None}
        for key, row in rows.items()
    ]
    return Labels(GRADES.of(named), keep=gate_before in (None, str(gating)))


def _cases(run: Run) -> Iterator[tuple[Key, Case]]:
    """Answers that were completed and kept."""
    texts, note = run.texts()
    if texts is None:
        raise RunError(note or f"{run.path} has no texts.parquet: outputs are kept by run --keep-texts or --gate")
    kept = texts.to_pydict()
    places = {key: place for place, key in enumerate(zip(kept["request_id"], kept["attempt"], strict=True))}
    for batch in run.batches(JOINED):
        for row in batch.to_pylist():
            key = (row["request_id"], row["attempt"])
            if row["status"] == "ok" and key in places:
                place = places[key]
                known = {name: kept[name][place] for name in ("reference", "context")}
                told = {name: row[name] for name in ("finish_reason", "output_tokens", "workload_class")}
                yield key, Case(kept["text"][place] or "", kept["prompt"][place] or "", **known, **told)


def _graded(folder: Path) -> dict[Key, Grades]:
    """Grades that are there: of a grading that ended, and of one that was interrupted."""
    table, _ = GRADES.read(folder)
    ended = [] if table is None else table.to_pylist()
    return {_key(row): row for row in [*ended, *_spooled(folder)]}


def _spooled(folder: Path) -> list[Grades]:
    found: list[Grades] = GRADES.read_spool(folder)[0].to_pylist() if (folder / GRADES.spool).exists() else []
    return found


def _key(row: Grades) -> Key:
    return row["request_id"], row["attempt"]


def _grade_all(
    writer: SideWriter,
    held: list[Grades],
    gating: Gating,
    todo: Mapping[Key, Case],
    spent: Mapping[Key, float],
    mark: str,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> dict[Key, Grades]:
    """Grade, and write down every second what is known, after what is `held` already."""
    found: dict[Key, Grades] = {}
    writer.resume()
    pool = Pool(gating, min(jobs, len(todo)))
    flushed = time.monotonic()
    try:
        for key, case in todo.items():
            pool.submit(key, case)
        while pool.pending:
            for at, grade in pool.finished(0.5):
                key = cast(Key, at)
                found[key] = grade_row(key, replace(grade, cost=grade.cost + spent.get(key, 0.0)), mark)
                held.append(found[key])
            if held and (len(held) >= FLUSH_ROWS or time.monotonic() - flushed > FLUSH_S):
                writer.append(GRADES.of(held))
                held, flushed = [], time.monotonic()
                if progress:
                    progress(len(found), len(todo))
    finally:
        pool.close()
        try:
            if held:
                writer.append(GRADES.of(held))
        finally:
            writer.close()
    return found


def grade_row(key: Key, grade: Grade, mark: str) -> Grades:
    """A row of grades.parquet."""
    return {
        "request_id": key[0],
        "attempt": key[1],
        "quality": grade.passed,
        "quality_score": grade.score,
        "review_cost": grade.cost or None,
        "slices": "+".join(grade.slices) or None,
        "why": grade.why,
        "agreed": grade.votes[0],
        "votes": grade.votes[1],
        "gate": mark,
    }


def summary(gating: Gating, texts: int, graded: int, rows: Collection[Grades]) -> Grading:
    agreed, votes = (sum(row[name] or 0 for row in rows) for name in ("agreed", "votes"))
    return Grading(
        str(gating),
        texts,
        graded,
        sum(row["quality"] is True for row in rows),
        sum(row["quality"] is False for row in rows),
        dict(Counter(row["why"] or "not said" for row in rows if row["quality"] is None)),
        sum(row["review_cost"] or 0.0 for row in rows),
        agreed / votes if votes else None,
        dict(Counter(row["why"] or "not said" for row in rows if row["quality"] is False).most_common(10)),
    )


def _numeric(prompts: Sequence[str]) -> list[bool]:
    """Two numbers or more."""
    return [len(NUMBERS.findall(prompt)) >= 2 for prompt in prompts]


def _rare(prompts: Sequence[str]) -> list[bool]:
    """A name that hardly any other prompt has."""
    names = [_names(prompt) for prompt in prompts]
    counts = Counter(name for each in names for name in each)
    most = max(RARE_SHARE * len(prompts), 1)
    return [any(counts[name] <= most for name in each) for each in names]


def _names(prompt: str) -> set[str]:
    """Words with a capital that begin no sentence, and words of letters and digits."""
    found = set()
    for before, word in pairwise([".", *prompt.split()]):
        bare = word.strip(AROUND)
        named = bare[:1].isupper() and len(bare) > 1 and before[-1] not in ".!?:"
        if named or (any(map(str.isdigit, bare)) and any(map(str.isalpha, bare))):
            found.add(bare)
    return found


def slices_of(prompts: Sequence[str]) -> list[tuple[str, ...]]:
    """Kinds of prompts whose quality is looked at apart, because their failures hide in an average: by name, those that
    each prompt belongs to."""
    found = {"numeric": _numeric(prompts), "rare": _rare(prompts)}
    return [tuple(name for name, members in found.items() if members[place]) for place in range(len(prompts))]
