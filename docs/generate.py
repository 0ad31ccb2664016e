"""Write the parts of the docs that the program knows best: help texts, columns, gates, keys of a score, arrivals.

    python docs/generate.py            rewrite docs/*.md between their markers
    python docs/generate.py --check    exit with 1 if anything would change

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. A block of text right after a block of Python is
what that prints.
"""

import contextlib
import dataclasses
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from openloop.admission import ADMISSION
from openloop.arrivals import ARRIVALS
from openloop.audit import CLAIMS, FACTS, MORE
from openloop.cli import cli
from openloop.cli.exchange import FORMS
from openloop.distributions import DISTRIBUTIONS
from openloop.importers import IMPORTERS
from openloop.load.prometheus import FIGURES
from openloop.load.scenario import STARTER
from openloop.load.targets import TARGETS
from openloop.persistence import Hedge, Repair, Retry
from openloop.quality import QUALITY_GATES
from openloop.records import COLUMNS, MEASURES, Manifest
from openloop.report.metric_map import METRICS
from openloop.routing import ROUTING
from openloop.score import Score
from openloop.serve import ENGINES
from openloop.sim import QUEUES
from openloop.sim.batching import BATCHING, ORDERS
from openloop.sim.events import EVENTS
from openloop.sim.quality import QualityModel
from openloop.sim.steps import GPUS, MEASURED, MODELS, preset
from openloop.slo import GATES, PRESETS
from openloop.terms import Term
from openloop.workload import SOURCES, WARMTHS

DOCS = Path(__file__).parent


def commands() -> Iterator[str]:
    context = click.Context(cli, info_name="openloop", terminal_width=100, **cli.context_settings)
    yield from _help("openloop", cli, context)
    for name, command in sorted(cli.commands.items()):
        inner = click.Context(command, info_name=name, parent=context, terminal_width=100)
        yield from _help(f"openloop {name}", command, inner)
        for below, each in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
            further = click.Context(each, info_name=below, parent=inner, terminal_width=100)
            yield from _help(f"openloop {name} {below}", each, further)


def _help(title: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield from (f"## {title}", "", "```text", command.get_help(context), "```", "")


def columns() -> Iterator[str]:
    yield from ("| column | type | null | meaning |", "|---|---|---|---|")
    for name, column in COLUMNS.items():
        kind = str(column.type).replace("element: ", "").replace(" not null", "")
        yield f"| `{name}` | {kind} | {'no' if column.required else 'yes'} | {column.meaning} |"


def scenario() -> Iterator[str]:
    yield from ("```yaml", STARTER, "```")


def figures() -> Iterator[str]:
    yield from ("| name | kind | meaning | in the page of |", "|---|---|---|---|")
    for name, measure in MEASURES.items():
        told = "<br>".join(f"{server}: `{formula}`" for server, formula in FIGURES.get(name, ()))
        yield f"| `{name}` | {measure.kind} | {measure.meaning} | {told or 'NVML, per GPU'} |"


def manifest() -> Iterator[str]:
    yield ", ".join(f"`{name}`" for name in Manifest.__struct_fields__) + "."


def gates() -> Iterator[str]:
    yield from ("| gate | a request passes when |", "|---|---|")
    for form in GATES.values():
        gate = form.bare or form.build(form.parse(re.split("[<>]=", form.example)[1]))
        yield f"| `{form.example}` | {_first_sentence(type(gate))} |"


def presets() -> Iterator[str]:
    yield from ("| preset | gates | one success is | counted per |", "|---|---|---|---|")
    for name, slo in PRESETS.items():
        per = {1.0: "second", 3600.0: "hour"}[slo.per_s]
        yield f"| `{name}` | `{slo}` | {slo.unit_name} ({slo.unit}) | {per} |"


def keys() -> Iterator[str]:
    yield ", ".join(f"`{field.name}`" for field in dataclasses.fields(Score)) + "."


def importers() -> Iterator[str]:
    yield from ("| name | what it reads |", "|---|---|")
    for name, module in IMPORTERS.items():
        yield f"| `{name}` | {' '.join((module.__doc__ or '').split(chr(10) * 2)[0].split())} |"


def exporters() -> Iterator[str]:
    yield from ("| `--to` | what is written |", "|---|---|")
    for name, what in FORMS.items():
        yield f"| `{name}` | {what} |"


def metric_map() -> Iterator[str]:
    for metric in METRICS:
        yield from (f"**`{metric.key}`**, {metric.what}: {metric.formula}", "")
        if not metric.theirs:
            yield from ("No other tool has it.", "")
            continue
        yield from ("| tool | its name | how it differs |", "|---|---|---|")
        yield from (f"| {tool} | {theirs.name} | {theirs.differs} |" for tool, theirs in metric.theirs.items())
        yield ""


def terms(registry: Mapping[str, type[Term]]) -> Callable[[], Iterator[str]]:
    def rows() -> Iterator[str]:
        yield from ("| name | parameters | what it is |", "|---|---|---|")
        for name, kind in registry.items():
            told = ", ".join(f"`{field.name}`{_default(field)}" for field in dataclasses.fields(kind))
            yield f"| `{name}` | {told} | {' '.join((kind.__doc__ or '').split())} |"

    return rows


def targets() -> Iterator[str]:
    yield from ("| `--api` | whom it asks |", "|---|---|")
    for name, kind in TARGETS.items():
        yield f"| `{name}` | {_first_sentence(kind)} |"


def _default(field: "dataclasses.Field[object]") -> str:
    if field.metadata["rest"]:
        return ", ..."
    if field.default is dataclasses.MISSING:
        return ""
    codec = field.metadata["codec"]
    return " (optional)" if field.default in (None, math.inf) else f" = {codec.write(field.default)}"


def steps() -> Iterator[str]:
    yield from (
        "| model | GPU | from | prefill of 2,048 | decode, batch 1 / 32 / 128 | memory, tokens |",
        "|---|---|---|---|---|---|",
    )
    for model in MODELS:
        for gpu in GPUS:
            for tp in (1, 2, 4, 8):
                if (model, gpu, tp) not in MEASURED and (tp > 1 or model in ("32b", "70b")):
                    continue
                found = preset(model, gpu, tp)
                decode = " / ".join(f"{1e3 * found.step.decode(batch, 1024):.1f}" for batch in (1, 32, 128))
                known = "measured" if (model, gpu, tp) in MEASURED else "data sheet"
                prefill = f"{1e3 * found.step.prefill(2048):.0f} ms"
                yield f"| {found.model.name} | {tp} x {gpu} | {known} | {prefill} | {decode} ms | {found.kv_tokens:,} |"


def facts() -> Iterator[str]:
    yield from ("| fact | why |", "|---|---|")
    yield from (f"| `{name}` | {why} |" for name, why in FACTS.items())


def more_facts() -> Iterator[str]:
    yield from ("| fact | what it is |", "|---|---|")
    yield from (f"| `{name}` | {what} |" for name, what in MORE.items())


def claims() -> Iterator[str]:
    yield from ("| claim | what it takes |", "|---|---|")
    yield from (f"| {claim} | {', '.join(f'`{need}`' for need in needs)} |" for claim, needs in CLAIMS.items())


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "columns": columns,
    "figures": figures,
    "manifest": manifest,
    "gates": gates,
    "presets": presets,
    "keys": keys,
    "metric_map": metric_map,
    "importers": importers,
    "exporters": exporters,
    "arrivals": terms(ARRIVALS),
    "distributions": terms(DISTRIBUTIONS),
    "queues": terms(QUEUES),
    "sources": terms(SOURCES),
    "batching": terms(BATCHING),
    "orders": terms(ORDERS),
    "routing": terms(ROUTING),
    "admission": terms(ADMISSION),
    "events": terms(EVENTS),
    "steps": steps,
    "persistence": terms({"retry": Retry, "hedge": Hedge, "repair": Repair}),
    "quality_gates": terms(QUALITY_GATES),
    "warmths": terms({**WARMTHS}),
    "quality_model": terms({"quality": QualityModel}),
    "facts": facts,
    "more_facts": more_facts,
    "claims": claims,
    "engines": terms(ENGINES),
    "targets": targets,
    "scenario": scenario,
}


def fill(text: str) -> str:
    def part(match: re.Match[str]) -> str:
        lines = [line.rstrip() for block in PARTS[match[1]]() for line in block.split("\n")]
        return f"<!-- generated: {match[1]} -->\n" + "\n".join(lines).strip("\n") + "\n<!-- end -->"

    return re.sub(r"<!-- generated: (\w+) -->.*?<!-- end -->", part, text, flags=re.DOTALL)


def run(text: str) -> str:
    names: dict[str, Any] = {}

    def block(match: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(match[1], names)
        return f"```python\n{match[1]}```\n\n```text\n{printed.getvalue()}```\n"

    return re.sub(r"```python\n((?:(?!```).)*)```\n\n```text\n.*?```\n", block, text, flags=re.DOTALL)


def main(check: bool) -> None:
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = run(fill(before))
        if after != before:
            stale.append(path.name)
            if not check:
                path.write_text(after, encoding="utf-8")
    if stale:
        print(f"{'out of date: ' if check else 'wrote '}{', '.join(stale)}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main("--check" in sys.argv)
