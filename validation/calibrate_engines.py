"""Calibrated to two rates of a real engine, held against its other rates and its knee.

    python -m validation.rates vllm ... -o RUNS          (measures; see there)
    python -m validation.calibrate_engines RUNS... -o OUT

Fitted to the rates 0.35 and 0.9 (shares of what the engine does in overload), predicted are all.
"""

import argparse
from pathlib import Path

from validation.calibrated import report
from validation.rates import SHARES, SLO

FIT_TO = (0.35, 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--slo", default=SLO)
    parser.add_argument("--known", default="", help="settings of the engine, as batching=chunked,max_tokens=256")
    parser.add_argument("--attain", type=float, default=0.95)
    parser.add_argument("-o", "--out", type=Path, default=Path("validation-output"))
    given = parser.parse_args()
    for folder in given.runs:
        groups = {f"{share:g}": sorted(folder.glob(f"rate-{share:g}-*")) for share in SHARES}
        groups = {name: paths for name, paths in groups.items() if paths}
        name = f"calibrate-{folder.name}{'-known' if given.known else ''}"
        fit_to = [f"{share:g}" for share in FIT_TO]
        report(folder.name, groups, fit_to, given.out / name, given.known, given.slo, given.attain)


if __name__ == "__main__":
    main()
