"""From measurement to a deployment: every sizing exercise of the texts, by `openloop plan` and its calculators.

The commands stand in front of what they answer: the same numbers come from the terminal.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from openloop.cli import cli
from openloop.plan.formulas import all_up, diluted, machines_for, some_up


def ask(*words: str) -> dict[str, Any]:
    """What a command says, for machines."""
    print(f"$ openloop {subprocess.list2cmdline(words)}")
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def embedding() -> None:
    plan = ask("plan", "--in-flight", "32", "--latency", "40ms", "--demand", "12000/s", "--headroom", "20%")
    print(f"  a replica does {plan['system']['knee']:.0f}/s: {plan['carry']['value']:.0f} replicas")
    print(f"  with headroom: {plan['replicas']}")
    print(f"  in flight in each: {plan['in_flight_each']:.1f} of 32")


def knee() -> None:
    plan = ask("plan", "--knee", "450/s", "--capacity", "500/s", "--demand", "9000/s", "--price", "3/h")
    more = plan["cost_per_hour"]["value"] - plan["raw_cost_per_hour"]["value"]
    print(f"  {plan['replicas']} replicas, not the {plan['raw']['value']:.0f} of raw capacity: {more:g} more an hour")


def fleet() -> None:
    size = ("--in-flight", "40", "--latency", "120ms", "--demand", "8000/s", "--failures", "1", "--price", "3/h")
    plan = ask("plan", *size)
    print(f"  {plan['in_flight']:.0f} in flight: {plan['carry']['value']:.0f} replicas")
    print(f"  with one that may fail: {plan['replicas']}")
    print(f"  {plan['cost_per_hour']['value']:g} an hour, {plan['cost_per_million']['value']:.2f} per million requests")
    plan = ask("plan", *size, "--utilisation", "70%")
    print(f"  at 70% utilisation: {plan['cost_per_million']['value']:.2f} per million, by D / (3600 u X)")
    print("  a tenth better, and what it saves of that:")
    for gain in plan["gains"]:
        change = f"{gain['now']:g} -> {gain['then']:g}"
        print(f"    {gain['name']:22} {change:14} {gain['worth']:5.1%}, {gain['replicas']} replicas")


def law() -> None:
    found = ask("little", "--rate", "5000", "--latency", "46.8ms", "--per-replica", "30")
    print(f"  {found['in_flight']:.0f} in flight: {found['replicas']} replicas of 30")
    found = ask("little", "--in-flight", "24", "--latency", "60ms")
    print(f"  {found['rate']:.0f}/s")


def fan_out() -> None:
    for words in (("--p", "1%", "--n", "100"), ("--p", "0.1%", "--n", "200"), ("--n", "100", "--slow", "10%")):
        found = ask("fanout", *words)
        print(f"  n = {found['n']}, each slow {found['p']:.3%}: requests slow {found['slow']:.1%}")


def batch() -> None:
    found = ask("batch", "--fixed", "4ms", "--each", "0.9ms", "--size", "16")
    print(f"  {found['throughput']:.0f}/s of at most {found['limit']:.0f}/s")


def machines() -> None:
    print("availability")
    told = ", ".join(f"{m:,}: {all_up(0.999, m):.1%}" for m in (10, 100, 1000))
    print(f"  all of M machines up, each 99.9%: {told}")
    print(f"  20 needed, 99.95% wanted: {machines_for(20, 0.999, 0.9995)} machines, up {some_up(20, 21, 0.999):.3%}")
    print(f"  a cache that finds 85% with 4 replicas finds {diluted(0.85, 4, 8):.0%} with 8")


def day(folder: Path | None) -> None:
    words = ("--knee", "450/s", "--day", "sine:rate=6000,swing=50%", "--headroom", "20%", "--price", "3/h")
    out = ("-o", str(folder / "day.html")) if folder else ()
    print("a day that swings by half about 6,000/s")
    done = CliRunner().invoke(cli, ["plan", *words, *out, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)["day"]
    hours = {"fixed": found["fixed_hours"], "ahead of demand": found["ahead_hours"]}
    for name, each in hours.items():
        print(f"  {name:15} {each:5.0f} replica-hours, {3 * each:,.0f} a day")
    print(f"  saved {found['saved']:.0%}")


if __name__ == "__main__":
    for show in (embedding, knee, fleet, law, fan_out, batch, machines):
        show()
    day(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
