"""Labels for modelled answers: most are as good as the model is, and a tail fails more often."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from openloop.arrays import Bools, Floats, Ints
from openloop.records import Run, ints
from openloop.seeds import stream
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

    def draw(self, late: Bools, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Of each request the slices that it belongs to (1: numeric, 2: rare, 3: both), and the chance that its answer
        fails; `late`: it is a late turn."""
        rare, numeric = (rng.random(len(late)) < share for share in (self.rare, self.numeric))
        in_tail = max(self.fail, min(self.tail * self.factor, 1.0))
        return numeric + 2 * rare, np.where(rare | numeric | late, in_tail, self.fail)


def read_quality(text: str) -> QualityModel:
    found: QualityModel = read_term(text, {"quality": QualityModel}, "model of quality")
    return found


def label(run: Run, model: QualityModel, seed: int = 0) -> Run:
    """The run with a quality label on every completed attempt, and the slices that it belongs to."""
    rng = stream(seed, "quality")
    batches = [labelled(batch, model, rng) for batch in run.batches()]
    manifest = msgspec.structs.replace(run.manifest, quality_gate=str(model))
    return Run.of(manifest, batches, run.server())


def labelled(batch: pa.RecordBatch, model: QualityModel, rng: np.random.Generator) -> pa.RecordBatch:
    """The same rows with labels."""
    slices, chance = model.draw(ints(batch, "turn") >= LATE_TURN, rng)
    good = rng.random(batch.num_rows) >= chance
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
