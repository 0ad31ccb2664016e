"""Speculative decoding at production batch sizes ("Goodput or it didn't happen").

The article: a draft model, tuned until 58% of its proposals were accepted instead of 47%, and 11 to 14 sequences at a
time gave about 0.92 times the throughput. It does not name the models. Here a 70B model on four H100s is helped by an
8B model on one of them that proposes three tokens a step, each accepted with the given chance if those before it are.
What a proposal costs is the ratio of their measured steps. Throughput is that of a replica that always has so many
sequences, with prompts of 500 tokens and answers of 300.

With these models the 0.92 comes from the time that the draft itself takes, which hardly depends on the number of
sequences; that checking proposals crowds out other work shows from about 50 sequences on. A draft that costs a tenth of
a step would have won (second table). In the model a step is as short as reading the weights until arithmetic takes
longer; real ones lengthen gradually, so in reality crowding begins with fewer sequences.
"""

import sys
from pathlib import Path

import numpy as np

from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.sim.steps import preset
from openloop.workload import Workload, read_source

TARGET = {"model": "70b", "gpu": "h100", "tp": 4}
CHAT = Workload.of(read_source("synthetic:prompt=500,output=300"))
CONTEXT = 650  # of a sequence, on average
DRAFTS = 3
SECONDS = 100.0
SIZES = [1, 2, 4, 8, 11, 14, 32, 48, 64, 96, 128]
ACCEPTANCE = [0.47, 0.58, 0.7, 0.8, 0.9]


def tokens_per_s(sequences: int, acceptance: float | None = None, cost: float = 0.0, drafts: int = DRAFTS) -> float:
    """Of a replica with more requests than it can take at once."""
    drafting = (
        None if acceptance is None else {"tokens": drafts, "acceptance": acceptance, "cost": f"{100 * cost:.2f}%"}
    )
    fleet = read_fleet({**TARGET, "max_sequences": sequences, "drafts": drafting})
    run = simulate_fleet(fleet, CHAT, Poisson(1.0 + sequences), SECONDS, seed=1)
    came = 0
    for batch in run.batches(["event_ns", "event_tokens"]):
        in_time = batch["event_ns"].flatten().to_numpy() < 1e9 * SECONDS
        tokens = batch["event_tokens"].flatten().to_numpy() if drafting else 1
        came += int(np.sum(in_time * tokens))
    return came / SECONDS


def draft_cost(sequences: int) -> float:
    """A step of the draft model, as a share of a step of the target by what sequences add to it."""
    target, draft = preset("70b", "h100", 4).step, preset("8b", "h100", 1).step
    return draft.decode(sequences, CONTEXT) / (target.floor + sequences * (target.token + target.sequence))


def main(folder: Path | None) -> None:
    cost = draft_cost(12)
    print(
        f"a proposal costs {cost:.0%} of a step; {DRAFTS} proposals make a step {1 + DRAFTS * cost:.2f} times as long"
    )
    plain = {size: tokens_per_s(size) for size in SIZES}
    gains = {a: [tokens_per_s(size, a, cost) / plain[size] for size in SIZES] for a in ACCEPTANCE}
    print("throughput against none, by sequences and acceptance")
    print("sequences  tokens/s  " + "  ".join(f"{a:>5.0%}" for a in ACCEPTANCE))
    for place, size in enumerate(SIZES):
        cells = "  ".join(f"{gains[a][place]:>5.2f}" for a in ACCEPTANCE)
        print(f"{size:>9} {plain[size]:>9,.0f}  {cells}")
    print()
    print("12 sequences: how the gain depends on the draft")
    print("cost of a proposal  proposals  " + "  ".join(f"{a:>5.0%}" for a in ACCEPTANCE))
    base = tokens_per_s(12)
    for share in (0.05, 0.1, 0.2, cost):
        for drafts in (1, 3, 5):
            cells = "  ".join(f"{tokens_per_s(12, a, share, drafts) / base:>5.2f}" for a in ACCEPTANCE)
            print(f"{share:>18.0%} {drafts:>10}  {cells}")
    if folder:
        draw(gains, folder)


def draw(gains: dict[float, list[float]], folder: Path) -> None:
    title = "Drafts win with few sequences and high acceptance"
    chart = Chart(title, "Sequences at a time", "Throughput against none", log_x=True)
    for acceptance, values in gains.items():
        chart.line(SIZES, values, f"{acceptance:.0%} accepted")
    chart.mark_y(1.0, "as without drafts")
    chart.mark_x(11, "11", color="red")
    chart.mark_x(14, "14", color="red")
    chart.save(folder / "speculative.svg")
    chart.save(folder / "speculative.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
