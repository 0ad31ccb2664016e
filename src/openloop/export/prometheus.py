"""A page in Prometheus' text format."""

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
        if step in STEPS:
            metric, extra = f"openloop_{base.removesuffix('_s')}_seconds", f',quantile="{STEPS[step]}"'
        else:
            metric, extra = f"openloop_{base.removesuffix('_s')}{'_seconds' if base.endswith('_s') else ''}", ""
            metric += f"_{step}" if step else ""
        if metric != told:
            lines.append(f"# TYPE {metric} gauge")
            told = metric
        lines.append(f"{metric}{{{labels}{extra}}} {value!r}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
