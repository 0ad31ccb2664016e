"""Live traffic: through a proxy that routes and records it."""

import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from openloop.cli.common import JSON, PLACE, cli
from openloop.errors import SpecError


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=PLACE, help="Folder for records and decisions, in place of `run` in the file.")
@click.option("--listen", help="Host and port, in place of `listen` in the file; port 0 takes a free one.")
@JSON
def proxy(file: Path, out: Path | None, listen: str | None, as_json: bool) -> None:
    """Stand in front of OpenAI-compatible replicas, as FILE says: route requests, stream answers, record both.

    \b
    A proxy in three lines:
      replicas: [http://127.0.0.1:8001, http://127.0.0.1:8002]
      routing: prefix-aware
      slo: ttft<=500ms, tpot<=40ms
    See docs/proxy.md for the rest: admission, retries, hedges, health, draining, limits, a token.
    /metrics tells attainment and goodput by class and by replica; `openloop view` and `openloop watch` read the
    records while they grow. TERM drains it. HUP reads again which replicas are to be drained.

    \b
    Examples:
      openloop proxy proxy.yaml -o run/
      openloop score run/ --slo "ttft<=500ms, tpot<=40ms"
      openloop decisions run/decisions.jsonl
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise SpecError("the proxy needs the package aiohttp: pip install 'openloop[proxy]'") from None
    import msgspec

    from openloop.proxy import read_proxy, serve_proxy
    from openloop.score.judged import judge_batch

    spec = read_proxy(file)
    given = {"run": None if out is None else str(out), "listen": listen}
    spec = msgspec.structs.replace(spec, **{name: value for name, value in given.items() if value is not None})
    spec.address()

    def tell(sentence: str) -> None:
        with suppress(OSError):  # whoever read it may be gone, and the traffic goes on
            click.echo(json.dumps({"event": sentence}) if as_json else sentence)

    try:
        from uvloop import run  # it takes a fifth less processor time
    except ImportError:
        from asyncio import run  # type: ignore[assignment]
    done = run(serve_proxy(file, spec, partial(judge_batch, objectives=spec.objectives()), tell))
    kept = {"requests": done.ledger.due, "rows": done.ledger.rows, "lost": done.ledger.lost, "run": spec.run}
    where = f"in {spec.run}" if spec.run else "and no records, for want of a folder (-o)"
    click.echo(json.dumps(kept) if as_json else f"{done.ledger.due:,} requests, {done.ledger.rows:,} attempts, {where}")
    if done.ledger.lost:
        sys.exit(1)
