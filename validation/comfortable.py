"""A run that an engine has no trouble with, and what must be true of it whatever the engine."""

from pathlib import Path
from typing import Any

import openloop as ol
from validation.engines import Checks, Engine, Noise, drive, fresh, ms, quietest, rows, save, table

SLO = "ttft<=1s, tpot<=200ms"


def check_run(
    server: Engine, out: Path, name: str, checks: Checks, *, prompt: int, output: int, **flags: Any
) -> tuple[ol.Score, list[dict[str, Any]]]:
    """All rows are ok, tokens are as the server counts them, and prompts are as long as was asked for."""
    given = {"workload": f"synthetic:prompt={prompt},output={output}", "slo": SLO, "target.model": "tiny", **flags}
    run, noise = quietest(server, lambda: drive(server, fresh(out / "runs" / name), **given))
    score, each = ol.score(run), rows(run)
    _print(name, score, each, run, noise)
    checks.that(all(row["status"] == "ok" for row in each), f"{len(each)} requests went well")
    checks.that(all(row["output_tokens"] for row in each), "the server's usage is in every row")
    seen, told = sum(len(row["event_ns"]) for row in each), sum(row["output_tokens"] for row in each)
    print(f"{seen:,} events brought {told:,} tokens by usage: not every event has one, and some have several")
    checks.that(all(len(row["event_ns"]) <= row["output_tokens"] for row in each), "no event without a token")
    prompts = [row["prompt_tokens"] for row in each]
    off, most_off = abs(sum(prompts) / len(prompts) / prompt - 1), max(abs(each / prompt - 1) for each in prompts)
    checks.that(off < 0.01, f"prompts of {prompt} tokens are {off:.1%} off on average, {most_off:.0%} at most")
    checks.that(not most_off or "tokenizer" not in flags, "with a tokenizer, they are exact")
    save(out, name, {"score": score.to_dict(), "lengths": run.manifest.lengths, "noise": noise})
    return score, each


def _print(name: str, score: ol.Score, each: list[dict[str, Any]], run: ol.Run, noise: Noise) -> None:
    assert score.ttft_s is not None
    assert score.tpot_s is not None
    prompts = [row["prompt_tokens"] for row in each]
    before = [row["event_ns"][0] - row["first_any_ns"] for row in each]
    role = sorted(before)[len(before) // 2] / 1e9
    table(
        f"{name}; milliseconds",
        ["requests", "ttft p50", "p99", "role before it", "tpot p50", "p99", "prompt tokens", "stolen / others"],
        [
            [
                score.requests,
                ms(score.ttft_s.p50),
                ms(score.ttft_s.p99),
                ms(role),
                ms(score.tpot_s.p50),
                ms(score.tpot_s.p99),
                f"{min(prompts)} to {max(prompts)}",
                noise,
            ]
        ],
    )
    print(f"lengths: {run.manifest.lengths}")
