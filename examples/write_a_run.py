"""Write a run in batches, stop in the middle as a crash would, and see what is left of it."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import openloop as ol


def batch(first: int, n: int) -> pa.RecordBatch:
    """Requests due every 50 ms, each answered with 5 tokens from 120 ms on, 30 ms apart."""
    due = (first + np.arange(n)) * 50_000_000
    tokens = due[:, None] + 120_000_000 + 30_000_000 * np.arange(5)
    return ol.make_batch(
        {
            "request_id": first + np.arange(n),
            "scheduled_ns": due,
            "sent_ns": due + 40_000,
            "ended_ns": tokens[:, -1] + 500_000,
            "event_ns": ol.make_lists("event_ns", tokens.ravel(), np.full(n, 5)),
            "prompt_tokens": np.full(n, 300),
            "replica": ["a" if i % 2 else "b" for i in range(n)],
        }
    )


def show(folder: Path) -> None:
    run = ol.open_run(folder)
    score = ol.score(run, "ttft<=200ms")
    print(f"  {run.num_rows} rows, goodput {score.goodput_rps:.1f}/s, valid: {score.valid}")
    for sentence in score.reasons:
        print(f"  {sentence}")


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        print("a run that was closed")
        with ol.RunWriter(Path(home, "closed"), ol.Manifest(source="example", arrivals_cv=0.0)) as writer:
            for first in range(0, 400, 100):
                writer.append(batch(first, 100))
        show(Path(home, "closed"))

        print("a run that was interrupted")
        writer = ol.RunWriter(Path(home, "interrupted"), ol.Manifest(source="example", window_ns=(0, 20 * 10**9)))
        writer.append(batch(0, 100))
        writer.append(batch(100, 100))
        writer.close()
        with Path(home, "interrupted", "requests.arrows").open("ab") as spool:
            spool.write(batch(200, 100).serialize()[:1000])  # a message that was half written
        show(Path(home, "interrupted"))

        print("a row that cannot be")
        try:
            writer = ol.RunWriter(Path(home, "wrong"), ol.Manifest(source="example"))
            writer.append(ol.make_batch({"request_id": [7], "scheduled_ns": [5], "sent_ns": [9], "ended_ns": [8]}))
        except ol.OpenloopError as error:
            print(f"  {error}")
        finally:
            writer.close()


if __name__ == "__main__":
    main()
