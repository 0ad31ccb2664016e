"""The words of a run: kept beside its rows, and graded by processes that come after everybody else."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from openloop.load.rows import Row
from openloop.quality import Case, Gating, Grade, Pool, jobs_for
from openloop.quality.grading import Grades, Key, grade_row, labels_of
from openloop.records import GRADES, TEXTS, Labels


class Texts:
    """texts.parquet and grades.parquet of a run that goes on."""

    def __init__(self, folder: Path, gating: Gating | None) -> None:
        self._folder = folder
        self._gating = gating
        self._mark = gating.fingerprint if gating else ""
        self._pool = Pool(gating, jobs_for(gating), idly=True) if gating else None
        self._texts, self._grades = TEXTS.writer(folder), GRADES.writer(folder)
        self._said: list[tuple[object, ...]] = []  # rows of TEXTS
        self._fresh: list[Grades] = []
        self._rows: dict[Key, Grades] = {}
        self._prompts: dict[Key, str] = {}
        self.cost = 0.0  # of the grades so far

    def add(self, row: Row) -> None:
        """Keep what a row asked and was answered, and have it graded."""
        key, ask, outcome = (row.number, row.attempt), row.ask, row.outcome
        if ask is None or outcome.text is None:
            return
        known = ask.reference, ask.context
        self._said.append((*key, ask.text, outcome.text, *known))
        if self._pool and self.waits_for(row):
            self._prompts[key] = ask.text
            told = outcome.finish_reason, outcome.output_tokens
            self._pool.submit(key, Case(outcome.text, ask.text, *known, *told, ask.workload_class))

    def waits_for(self, row: Row) -> bool:
        """Whether a grade will come."""
        gates = self._gating.of(row.ask.workload_class) if self._gating and row.ask else ()
        return bool(gates) and row.outcome.status == "ok" and row.outcome.text is not None

    def graded(self, timeout_s: float = 0.0) -> Iterator[tuple[Key, Grade]]:
        for at, grade in self._pool.finished(timeout_s) if self._pool else ():
            key = cast(Key, at)
            self.cost += grade.cost
            self._rows[key] = grade_row(key, grade, self._mark)
            self._fresh.append(self._rows[key])
            yield key, grade

    def flush(self) -> None:
        if self._said:
            self._texts.append(TEXTS.of(self._said))
            self._said = []
        if self._fresh:
            self._grades.append(GRADES.of(self._fresh))
            self._fresh = []

    def finish(self, hurried: Callable[[float], bool], notes: list[str]) -> Labels | None:
        """Wait for the last grades, unless somebody is in a hurry; then `openloop grade` goes on where they end."""
        began = flushed = time.monotonic()
        while self._pool and self._pool.pending and not hurried(time.monotonic() - began):
            for _ in self.graded(0.2):
                pass
            if time.monotonic() - flushed > 1.0:
                self.flush()
                flushed = time.monotonic()
        if self._pool and self._pool.pending:
            notes.append(f"{self._pool.pending:,} outputs were not graded, for the run was interrupted: openloop grade")
        open_ = Counter(row["why"] for row in self._rows.values() if row["quality"] is None)
        notes += [f"{count:,} outputs could not be judged: {why}" for why, count in open_.most_common(3)]
        self.flush()
        self._texts.finish()
        self._grades.finish()
        return labels_of(self._rows, self._prompts, None, self._gating) if self._gating else None

    def close(self) -> None:
        if self._pool:
            self._pool.close()
        self._texts.close()
        self._grades.close()
