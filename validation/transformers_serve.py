"""openloop against `transformers serve` with continuous batching.

    python -m validation.transformers_serve --transformers PROGRAM --model FOLDER [-o OUT]

It sends a role before it has any token, ends streams without [DONE], refuses ignore_eos, and has no /metrics.
"""

import tempfile

from validation.comfortable import check_run
from validation.engines import Checks, arguments, drive, engine, fresh, rows, stay_off_the_engines_core

FLAGS = [
    *("--continuous-batching", "--device", "cpu", "--dtype", "float32", "--attn-implementation", "sdpa"),
    *("--cb-block-size", "32", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "512", "--no-cb-use-cuda-graph"),
]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--transformers", required=True, help="the program transformers")
    parser.add_argument("--model", required=True, help="a folder with a small model and its tokenizer")
    parser.add_argument("--rate", type=float, default=3.0, help="one that the server has no trouble with")
    given = parser.parse_args()
    stay_off_the_engines_core()
    checks = Checks()
    command = [given.transformers, "serve", given.model, *FLAGS]
    with tempfile.TemporaryDirectory() as hub:
        env = {"HF_HUB_CACHE": hub, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with engine(command, given.out / "transformers.log", env=env) as server:
            flags = {"target.model": given.model, "arrivals": f"poisson:rate={given.rate}", "tokenizer": given.model}
            drive(
                server,
                fresh(given.out / "runs" / "warm"),
                **flags,
                workload="synthetic:prompt=100,output=8",
                **{"for": "5s"},
            )
            score, each = check_run(
                server, given.out, "transformers-serve", checks, prompt=100, output=24, **flags, **{"for": "40s"}
            )
            reasons = {row["finish_reason"] for row in each}
            checks.that(
                None not in reasons, f"streams end with a reason, though without [DONE]: {', '.join(sorted(reasons))}"
            )
            checks.that(score.server is None, "a server without /metrics is scored without figures")
            run = drive(
                server,
                fresh(given.out / "runs" / "refused"),
                **flags,
                **{"for": "3s", "target.extra": {"ignore_eos": True}},
            )
            refused = {(row["http_status"], row["error"]) for row in rows(run)}
            checks.that({status for status, _ in refused} == {422}, "ignore_eos is refused with 422")
            for _, error in sorted(refused)[:1]:
                print(f"  {error}")
    checks.end()


if __name__ == "__main__":
    main()
