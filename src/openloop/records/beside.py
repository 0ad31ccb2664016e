"""Tables beside the records: what servers and GPUs said of themselves, a row per figure and moment; what was asked and
answered, where that is kept; and how each answer was judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openloop.records.tables import SideTable

SERVER: Final = SideTable(
    "server",
    pa.schema(
        [
            pa.field("time_ns", pa.int64(), nullable=False),
            pa.field("replica", pa.string(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
        ]
    ),
    "the server's figures",
    "server figures",
)

Reading = tuple[int, str, str, float]  # a row: time_ns, replica, name, value


@dataclass(frozen=True)
class Measure:
    kind: Literal["gauge", "share", "counter"]  # replicas add up, are averaged, or add up what they grew by
    meaning: str


MEASURES: Final[Mapping[str, Measure]] = {
    "queue": Measure("gauge", "requests that wait"),
    "running": Measure("gauge", "requests that are being computed"),
    "kv_use": Measure("share", "of the KV cache that is taken"),
    "preemptions": Measure("counter", "requests put back for want of KV cache"),
    "prefix_queries": Measure("counter", "prompt tokens looked up in the prefix cache"),
    "prefix_hits": Measure("counter", "of these, found"),
    "prefix_hit_rate": Measure("share", "the same as the server reckons it, where it counts no tokens"),
    "drafted": Measure("counter", "tokens proposed by a draft model"),
    "accepted": Measure("counter", "of these, accepted"),
    "draft_acceptance": Measure("share", "the same as the server reckons it, where it counts no tokens"),
    "prompt_tokens": Measure("counter", "tokens in prompts, cached ones included"),
    "output_tokens": Measure("counter", "tokens generated"),
    "finished": Measure("counter", "requests that ended, for whatever reason"),
    "gpu_use": Measure("share", "of the time in which the GPU computed something"),
    "gpu_memory_use": Measure("share", "of the GPU's memory that is taken"),
    "gpu_power_w": Measure("gauge", "watts that the GPU draws"),
}

_KEYS = [pa.field("request_id", pa.int64(), nullable=False), pa.field("attempt", pa.int32(), nullable=False)]

TEXTS: Final = SideTable(
    "texts",
    pa.schema([*_KEYS, *(pa.field(name, pa.large_string()) for name in ("prompt", "text", "reference", "context"))]),
    "the texts",
    "texts",
)
GRADES: Final = SideTable(
    "grades",
    pa.schema(
        [
            *_KEYS,
            pa.field("quality", pa.bool_()),
            pa.field("quality_score", pa.float64()),
            pa.field("review_cost", pa.float64()),
            pa.field("slices", pa.string()),
            pa.field("why", pa.string()),
            pa.field("agreed", pa.int32()),  # replies of a judge that said the same
            pa.field("votes", pa.int32()),  # of so many that made sense
            pa.field("gate", pa.string(), nullable=False),  # a fingerprint of what judged it
        ]
    ),
    "the grades",
    "grades",
)
FILLED = ("quality", "quality_score", "review_cost", "slices")


class Labels:
    """Grades, to be filled into rows of the table by request and attempt.

    A row without one stays as it is (`keep`), or loses what it had.
    """

    def __init__(self, grades: pa.Table, *, keep: bool = True) -> None:
        self._keep = keep
        self._columns = {name: grades.column(name).combine_chunks() for name in FILLED}
        keys = zip(grades.column("request_id").to_pylist(), grades.column("attempt").to_pylist(), strict=True)
        self._place = {key: place for place, key in enumerate(keys)}

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = zip(batch.column("request_id").to_pylist(), batch.column("attempt").to_pylist(), strict=True)
        places = np.array([self._place.get(key, -1) for key in keys], np.int64)
        found, known = pa.array(places, mask=places < 0), pa.array(places >= 0)
        for name, column in self._columns.items():
            index = batch.schema.get_field_index(name)
            else_ = batch.column(name).cast(column.type) if self._keep else pa.scalar(None, column.type)
            filled = pc.if_else(known, column.take(found), else_)
            batch = batch.set_column(index, batch.schema.field(name), filled)
        return batch
