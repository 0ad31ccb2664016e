"""Token deadlines: when is a stall a stall? (Smooth-goodput paper, sections 1, 3 and 4.)

Two answers, each with a stall of one second. The first has delivered ten tokens before it, the second two. The longest
time between tokens is the same; what a reader notices is not.
"""

import numpy as np

import openloop as ol
from openloop.slo import CustomDeadlines, Deadlines, Smooth, TokenDeadlines
from openloop.slo.deadlines import end_to_end, lateness, reading, reading_from_first, ttft_and_tbt

ANSWERS = {
    "ten tokens, stall": np.array([0.3] * 10 + [1.3, 1.35, 1.4]),
    "two tokens, stall": np.array([0.3] * 2 + [1.3, 1.35, 1.4]),
}


def patient_at_first(
    i: np.ndarray[tuple[int], np.dtype[np.int64]],
    first: np.ndarray[tuple[int], np.dtype[np.float64]],
    previous: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A schedule of your own: a second for the first token, then a pace that quickens."""
    return 1.0 + 0.3 * np.sqrt(i - 1)


SCHEDULES: dict[str, Deadlines] = {
    "TTFT 500 ms, TBT 200 ms (eq. 2)": ttft_and_tbt(0.5, 0.2),
    "end to end 2 s (eq. 3)": end_to_end(2.0),
    "reading 5 tok/s from arrival (eq. 4)": reading(5.0),
    "reading 8 tok/s from the first token": reading_from_first(8.0),
    "a function of your own": CustomDeadlines(patient_at_first),
}


def main() -> None:
    for name, times in ANSWERS.items():
        print(f"{name}: longest gap {np.diff(times).max():.2f} s")
        for schedule, deadlines in SCHEDULES.items():
            late = lateness(deadlines, times)
            print(f"  {schedule:40} {'late by' if late > 0 else 'spare  '} {abs(late):5.2f} s")
        smooth = Smooth(alpha=5.0, deadlines=reading_from_first(8.0))
        idle = max(lateness(smooth.deadlines, times), 0.0)
        worth = smooth.benefit(np.array([float(len(times))]), np.array([idle]))[0]
        print(f"  smooth goodput: {len(times)} tokens, idle {idle:.2f} s, benefit {worth:.2f} tokens")

    rows = {
        "request_id": [0, 1],
        "scheduled_ns": [0, 0],
        "sent_ns": [0, 0],
        "ended_ns": [1_400_000_000, 1_400_000_000],
        "event_ns": [np.round(times * 1e9).astype(np.int64) for times in ANSWERS.values()],
    }
    run = ol.Run.of(ol.Manifest(source="example"), [ol.make_batch(rows)])
    print("\nthe same, scored as a run of two requests")
    for schedule, deadlines in SCHEDULES.items():
        score = ol.score(run, ol.SLO((TokenDeadlines(deadlines),)))
        print(f"  {schedule:40} {score.accepted} of {score.requests} accepted")


if __name__ == "__main__":
    main()
