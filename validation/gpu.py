"""Calibrated to two rates of one mix on a GPU, held against all other rates and the other mix.

    python -m validation.gpu RUNS -o OUT [--fit 4,12] [--mix chat]

RUNS holds run folders named SETTING-MIX-RATE, such as graphs-chat-4 (and graphs-chat-4b, the same again): transformers'
continuous batching with and without CUDA graphs. Each setting is fitted by itself.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from string import ascii_lowercase

from validation.calibrated import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--mix", default="chat")
    parser.add_argument("--fit", default="graphs=4+12,nographs=4+8", help="rates to fit to, by setting")
    parser.add_argument("--known", default="", help="limits that are known, as max_tokens=2048")
    parser.add_argument("-o", "--out", type=Path, default=Path("validation-output"))
    given = parser.parse_args()
    rates = {name: each.split("+") for name, _, each in (part.partition("=") for part in given.fit.split(","))}
    settings: dict[str, dict[tuple[str, float], list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(given.runs.glob("*-*-*/run.json")):
        setting, mix, rate = path.parent.name.split("-")
        settings[setting][mix, float(rate.rstrip(ascii_lowercase))].append(path.parent)
    for setting, runs in settings.items():
        groups = {f"{mix}-{rate:g}": paths for (mix, rate), paths in sorted(runs.items())}
        fit_to = [f"{given.mix}-{rate}" for rate in rates[setting]]
        report(f"{setting}", groups, fit_to, given.out / f"calibrate-gpu-{setting}", known=given.known)


if __name__ == "__main__":
    main()
