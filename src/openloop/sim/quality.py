"""Labels for modelled answers: most are as good as the model is, and a tail fails more often."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from openloop.arrays import Bools, Floats, Ints
from openloop.records import ints
from openloop.seeds import chances
from openloop.terms import NUMBER, SHARE, Term, param, read_term

LATE_TURN = 4  # turns count from 0
SLICES = ("numeric", "rare", "numeric+rare")


@dataclass(frozen=True)
class QualityModel(Term):
    """An answer fails with the chance `fail`. In the tail it fails with `tail` times `factor` instead, where that is
    more: in a share of requests that ask for something `rare`, in a share that is `numeric`, and from the fifth turn
    on. `factor` is what quantization does to the tail."""

    name = "quality"
    fail: float = param(SHARE, 0.02)
    tail: float = param(SHARE, 0.02)
    rare: float = param(SHARE, 0.02)
    numeric: float = param(SHARE, 0.05)
    factor: float = param(NUMBER, 1.0)

    def sort(self, late: Bools, first: Floats, second: Floats) -> tuple[Ints, Floats]:
        """Of each request the slices that it belongs to (1: numeric, 2: rare, 3: both), and the chance that its answer
        fails; `late`: it is a late turn; and two numbers between 0 and 1, by chance."""
        rare, numeric = first < self.rare, second < self.numeric
        in_tail = max(self.fail, min(self.tail * self.factor, 1.0))
        return numeric + 2 * rare, np.where(rare | numeric | late, in_tail, self.fail)


def read_quality(text: str) -> QualityModel:
    found: QualityModel = read_term(text, {"quality": QualityModel}, "model of quality")
    return found


def labelled(batch: pa.RecordBatch, model: QualityModel, seed: int) -> pa.RecordBatch:
    """The same rows, with a label on each that completed, and the slices that it belongs to; that of a request is the
    same whenever it is answered, and by whom."""
    request = ints(batch, "request_id")
    drawn = [chances(seed, f"quality {name}", request) for name in ("rare", "numeric", "good")]
    slices, chance = model.sort(ints(batch, "turn") >= LATE_TURN, drawn[0], drawn[1])
    good = drawn[2] >= chance
    ok = np.array(batch.column("status").to_pylist()) == "ok"
    names = np.array(["", *SLICES])[slices]
    columns = {
        "quality": pa.array(good, mask=~ok),
        "quality_score": pa.array(good.astype(np.float64), mask=~ok),
        "slices": pa.array(names, mask=names == ""),
    }
    for name, values in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    return batch
