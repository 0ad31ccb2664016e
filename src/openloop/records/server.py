"""server.parquet: what servers and GPUs said of themselves during a run, a row per figure and moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

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
