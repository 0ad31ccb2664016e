"""The table as it is, a batch at a time."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from openloop.records import SCHEMA, Run

__all__ = ["write_arrow", "write_csv", "write_jsonl"]

FLAT = pa.schema(
    [pa.field(each.name, pa.string() if pa.types.is_list(each.type) else each.type) for each in SCHEMA],
)


def write_csv(run: Run, path: Path) -> None:
    with pa.csv.CSVWriter(str(path), FLAT) as writer:
        for batch in run.batches():
            columns = [_flat(column) for column in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=FLAT))


def _flat(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def write_jsonl(run: Run, path: Path) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for batch in run.batches():
            for row in batch.to_pylist():
                file.write(encoder.encode({name: value for name, value in row.items() if value is not None}) + b"\n")


def write_arrow(run: Run, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for batch in run.batches():
            writer.write_batch(batch.cast(SCHEMA))
