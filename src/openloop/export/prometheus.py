"""A page in Prometheus' text format."""

import re
from pathlib import Path

from openloop.export.figures import STEPS, facts, figures
from openloop.records import Run
from openloop.score import Score

__all__ = ["write_prometheus"]


def write_prometheus(run: Run, score: Score, path: Path) -> None:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in facts(run, score).items())
    lines: list[str] = []
    told = ""
    for name, value in figures(score):
        base, _, step = name.partition(".")
        metric = re.sub(r"(?<!per)_s$", "_seconds", f"openloop_{base}")
        extra = f',quantile="{STEPS[step]}"' if step in STEPS else ""
        metric += f"_{step}" if step and not extra else ""
        if metric != told:
            lines.append(f"# TYPE {metric} gauge")
            told = metric
        lines.append(f"{metric}{{{labels}{extra}}} {value!r}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
