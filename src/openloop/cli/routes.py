"""Commands about routing."""

import json
import sys
from pathlib import Path

import click

from openloop.cli.common import JSON, cli


@cli.command()
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--policy", help="Another routing policy on what was seen then, such as prefix-aware:lead=4.")
@JSON
def decisions(log: Path, policy: str | None, as_json: bool) -> None:
    """Decide once more: replay a LOG of routing decisions with the compiled routing policy of the simulator.

    Each decision is made by what was seen then. Exit code 1 if any falls out differently, unless another was
    asked for: then it says how many requests that would have sent elsewhere.

    \b
    Examples:
      openloop decisions proxy/decisions.jsonl
      openloop decisions proxy/decisions.jsonl --policy least-requests
    """
    from openloop.routing import replay

    found = replay(log, policy)
    if as_json:
        click.echo(json.dumps(found._asdict()))
    else:
        same = found.decisions - len(found.elsewhere)
        click.echo(f"{found.policy}: {same:,} of {found.decisions:,} decisions are the same")
        if found.elsewhere:
            shown = ", ".join(str(number) for number in found.elsewhere[:10])
            click.echo(f"elsewhere: {shown}{', ...' if len(found.elsewhere) > 10 else ''}")
    if found.elsewhere and policy is None:
        sys.exit(1)
