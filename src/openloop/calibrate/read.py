"""What is asked of a calibrated fleet: changes as a user writes them, and a load, by default the measured one."""

from collections.abc import Sequence
from typing import Any

import yaml

from openloop.arrivals import Arrivals, read_arrivals
from openloop.calibrate.whatif import FleetChange
from openloop.errors import OpenloopError, SpecError
from openloop.records import Manifest
from openloop.sim.fleet import FleetSpec
from openloop.slo import Objectives, read_slo
from openloop.spec import parse_yaml
from openloop.workload import Scaled, Workload, read_source


def read_change(text: str) -> FleetChange:
    whole = text.strip()
    try:
        keys = parse_yaml(whole if whole.startswith("{") else "{" + whole + "}")
    except (yaml.YAMLError, ValueError, TypeError):
        keys = None
    if not isinstance(keys, dict) or not keys or None in keys.values():
        raise SpecError(f"{text!r} is no change; write keys of a fleet, as 'replicas: 6, batching: prefill-first'")
    return FleetChange(whole, keys)


def system_differences(manifests: Sequence[Manifest]) -> str:
    """In what the systems differ that were measured, as the runs name them; runs of two models are refused."""
    several: dict[str, list[str]] = {}
    for name in ("model", "engine", "engine_version", "engine_flags", "quantization", "hardware", "replicas", "target"):
        values = sorted({str(getattr(each, name)) for each in manifests if getattr(each, name) is not None})
        if len(values) > 1:
            several[name] = values
    if "model" in several:
        names = ", ".join(several["model"])
        raise SpecError(
            f"the runs are of several models ({names}), and one fit is of one: calibrate to each on its own"
        )
    return ", ".join(name.replace("_", " ") for name in several)


def measured_facts(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Workload and SLO, where all runs agree."""
    found: dict[str, Any] = {}
    for name in ("workload", "slo"):
        values = {str(getattr(each, name)): getattr(each, name) for each in manifests}
        if len(values) == 1 and None not in values.values():
            found[name] = values.popitem()[1]
    try:
        read_source(found.get("workload", ""))
    except OpenloopError:
        found.pop("workload", None)
    return found


def resized(
    workload: Workload, arrivals: Arrivals | None, prompt: tuple[bool, float] | None, output: tuple[bool, float] | None
) -> Workload:
    """With longer prompts and answers: so many times as long, or so long on average."""
    if prompt is None and output is None:
        return workload
    drawn = workload.demand(arrivals or read_arrivals("poisson:rate=1"), 1000.0, 0)
    factors = [
        1.0 if asked is None else asked[1] if asked[0] else asked[1] / max(float(tokens.mean()), 1e-9)
        for asked, tokens in ((prompt, drawn.prompt_tokens), (output, drawn.output_tokens))
    ]
    return Scaled(workload.classes, *factors)


def wanted(
    fleet: FleetSpec, rate: float | None, workload: str | None, slo: Any
) -> tuple[Workload, Arrivals, Objectives, str]:
    """The load, the objectives, and a sentence that says which."""
    told = fleet.calibration
    workload = workload or (told.workload if told else None)
    slo = slo or (told.slo if told else None)
    rate = rate if rate is not None or told is None else max(told.rates, default=None)
    examples = {
        "--workload 'synthetic:prompt=300,output=100'": workload,
        "--slo 'ttft<=1s, tpot<=40ms'": slo,
        "--rate 8": rate,
    }
    for what, value in examples.items():
        if value is None:
            raise SpecError(f"the model does not tell what was measured: give {what}")
    load = Workload.of(read_source(str(workload)))
    sentence = f"{rate:g}/s of {load}; {slo}"
    return load, read_arrivals(f"poisson:rate={rate!r}"), read_slo(slo), sentence
