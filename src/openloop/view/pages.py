"""What stands around a report in the view: the list of what is there, and the controls of an SLO."""

import math
from html import escape

from openloop.report.html import TOP, asset, document
from openloop.slo import Objectives, SLOGate
from openloop.units import format_seconds

COLUMNS = {
    "name": "name",
    "verdict": "verdict",
    "offered": "offered (frontier: knee)",
    "goodput": "goodput (frontier: peak)",
    "attainment": "attainment",
    "p99": "p99",
    "requests": "requests",
    "model": "model",
    "started": "started",
}


def list_page() -> str:
    heads = "".join(
        f"<th{'' if key in ('name', 'verdict', 'model', 'started') else ' class=n'}>"
        f'<button type="button" data-sort="{key}">{escape(words)}</button></th>'
        for key, words in COLUMNS.items()
    )
    inside = (
        f'{TOP}<main><h1 id="folder">Runs and frontiers</h1><form class="controls" id="filter">'
        '<label>Show those with <input id="words" type="search" placeholder="name, model, verdict"></label>'
        '<label><input id="valid" type="checkbox"> valid ones only</label>'
        '<button type="button" id="compare" disabled>Compare two</button></form>'
        f'<div class="table" tabindex="0" role="region" aria-label="Runs and frontiers"><table id="list"><thead><tr>'
        f'<th><span class="hide">choose</span></th>{heads}</tr></thead><tbody></tbody></table></div>'
        '<p class="note" id="state" role="status">Reading the folder</p></main><div id="tip" hidden></div>'
    )
    return document("openloop", inside, [asset("page.js"), asset("view.js", "view")], connect=True)


def controls(name: str, slo: str, objectives: Objectives | None = None, *, live: bool = False) -> str:
    """A text and a slider for each gate of time; moving one asks the server to score again."""
    gates = objectives.default.gates if objectives and objectives.default and not objectives.classes else ()
    sliders = "".join(_slider(gate) for gate in gates if getattr(gate, "within_s", 0.0) > 0)
    going_on = ' data-live="1"' if live else ""
    return (
        f'{TOP}<form class="controls" id="slo" data-what="{escape(name)}"{going_on}><a href="/">All runs</a>'
        f'<label>SLO <input id="gates" size="38" value="{escape(slo)}" spellcheck="false" autocomplete="off"></label>'
        f'{sliders}<button type="submit">Score</button><span class="note" id="state" role="status"></span></form>'
    )


def _slider(gate: SLOGate) -> str:
    seconds = float(getattr(gate, "within_s", 1.0))
    middle = math.log10(seconds)
    return (
        f'<label class="slider">{escape(gate.name)} <input type="range" data-gate="{escape(gate.name)}" '
        f'min="{middle - 1:.3f}" max="{middle + 1:.3f}" step="0.01" value="{middle:.3f}">'
        f"<output>{escape(format_seconds(seconds))}</output></label>"
    )
