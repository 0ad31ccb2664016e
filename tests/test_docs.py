"""The docs cannot rot: what the program knows is generated into them, and their code runs."""

import dataclasses
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from openloop.arrivals import Poisson
from openloop.cli import cli
from openloop.decide import _read_question
from openloop.load.scenario import read_scenario
from openloop.proxy.config import read_proxy
from openloop.quality import read_gating
from openloop.records import read_prices
from openloop.score import Score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.slo import GATES, read_slo
from openloop.spec import read_yaml
from openloop.tune.space import read_space
from openloop.workload import Workload, read_source
from tests.runs import steady_run

HOME = Path(__file__).parent.parent
PAGES = [HOME / "README.md", HOME / "ADDING.md", *sorted((HOME / "docs").glob("*.md"))]


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run make docs"


def test_every_command_and_flag_is_documented() -> None:
    text = (HOME / "docs" / "commands.md").read_text()
    below = {
        f"{name} {inner}": each
        for name, group in cli.commands.items()
        if isinstance(group, click.Group)
        for inner, each in group.commands.items()
    }
    for name, command in {**cli.commands, **below}.items():
        section = text.split(f"## openloop {name}\n")[1].split("\n## ")[0]
        assert command.help
        shown = re.search(r"\n\s*Examples?:\n", command.help) or isinstance(command, click.Group)
        assert shown, f"{name} shows no example"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{name} {parameter.opts} has no help"
                assert all(option in section for option in parameter.opts)


def test_every_key_of_a_score_is_explained() -> None:
    text = re.sub(
        r"<!-- generated: keys -->.*?<!-- end -->", "", (HOME / "docs" / "metrics.md").read_text(), flags=re.DOTALL
    )
    words = set(re.findall(r"`(\w+)`", text))
    unexplained = {field.name for field in dataclasses.fields(Score)} - words - {"run", "slo", "window_s"}
    assert not unexplained


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_in_the_docs_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)
    if path.name in ("README.md", "python.md"):
        steady_run().save(tmp_path / "run")
    prelude = "from openloop.slo.gates import *\nfrom openloop.slo.gates import _Within, Bools, parse_seconds\n"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    if path.name == "ADDING.md":
        exec(prelude, names)
        names["GATES"] = dict(GATES)  # a copy: the recipe must not add to the real one here
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "tutorial.md"], ids=lambda path: path.name)
def test_commands_in_the_docs_run(path: Path, tmp_path: Path) -> None:
    if path.name == "README.md":
        steady_run().save(tmp_path / "run")
    (tmp_path / "slo.yaml").write_text("default: ttft<=500ms\n")
    commands = [
        line.split(" #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), flags=re.DOTALL)
        for line in block.splitlines()
        if line.startswith("openloop ")
    ]
    for command in commands:
        line = f"{sys.executable} -m {command}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        unlabelled = (
            "--slo rag" in command
        )  # asks for quality labels, which this run has not: not valid, as it should be
        assert done.returncode == (1 if unlabelled else 0), f"{command}: {done.stderr}"


def _serve(fleet: dict[str, Any]) -> None:
    """What is refused may be refused only when it is to run."""
    asked = Workload.of(read_source("synthetic:prompt=20,output=5"))
    simulate_fleet(read_fleet({"model": "8b", "gpu": "h100", **fleet}), asked, Poisson(0.2), 600.0)


READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "cost.md": read_prices,
    "load.md": lambda block: read_scenario(None, block).read_workload(),
    "plan.md": _read_question,
    "proxy.md": read_proxy,
    "quality.md": read_gating,
    "routing.md": _serve,
    "simulator.md": _serve,
    "slo.md": read_slo,
    "tune.md": lambda block: read_space({"model": "8b", "gpu": "h100"}, block),
    "workloads.md": lambda block: read_scenario(
        None, {"arrivals": "poisson:rate=1", **block}, live=False
    ).read_workload(),
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_in_the_docs_are_taken(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "invoice.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```yaml\n(.*?)```", path.read_text(), flags=re.DOTALL):
        (tmp_path / "block.yaml").write_text(block)
        READERS[path.name](read_yaml(tmp_path / "block.yaml"))


def test_every_command_that_is_shown_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not run, because they need a server or hours, are at least read."""
    for path in [*PAGES, HOME / "DESIGN.md"]:
        for block in re.findall(r"```(?:text|yaml|sh)?\n(.*?)```", path.read_text(), flags=re.DOTALL):
            if block.startswith("Usage: "):
                continue  # a help text: its examples are run by tests of the commands
            for line in re.findall(r"^(?:\$ )?openloop (.+)$", block.replace("\\\n", " "), flags=re.MULTILINE):
                words = shlex.split(line.split("  #")[0].split(" | ")[0].removesuffix("&"), comments=True)
                _given(cli, words, f"{path.name}: openloop {line}", monkeypatch)


def _given(command: click.Command, words: list[str], where: str, patch: pytest.MonkeyPatch) -> None:
    if isinstance(command, click.Group) and words and words[0] in command.commands:
        _given(command.commands[words[0]], words[1:], where, patch)
    elif words != ["--help"]:
        for parameter in command.params:  # files that a reader has and we have not
            if isinstance(parameter.type, click.Path):
                patch.setattr(parameter, "type", click.STRING)
        try:
            command.make_context("openloop", words)
        except click.ClickException as error:
            pytest.fail(f"{where}: {error.message}")


def test_the_tutorial_works(tmp_path: Path) -> None:
    """All of it in one shell, with short runs: they may be invalid on a busy machine, but nothing is refused."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = (HOME / "docs" / "tutorial.md").read_text().replace("8000", str(port))
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)).splitlines()
    (tmp_path / "openloop").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m openloop "$@"\n')
    (tmp_path / "openloop").chmod(0o755)
    (tmp_path / "curl").write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\nurllib.request.urlopen(sys.argv[2])\n"
    )
    (tmp_path / "curl").chmod(0o755)
    script = ["export PATH=$PWD:$PATH", "trap 'kill $(jobs -p)' EXIT"]
    for line in lines:
        if "venv" not in line:
            short = re.sub(r"--for \w+", "--for 3s", re.sub(r"--rates \S+", "--rates 2,30", line))
            script.append(
                f"{short} || [ $? = 1 ] || exit 9" if line.startswith("openloop") and line[-1] != "&" else short
            )
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 143), f"{done.stdout}{done.stderr}"
    assert "30.0/s" in done.stdout
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    shutil.copytree(HOME / "docs", tmp_path / "docs")
    shutil.copy(HOME / "zensical.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    listed = set(re.findall(r'"([\w-]+\.md)"', (HOME / "zensical.toml").read_text()))
    assert listed == {path.name for path in (HOME / "docs").glob("*.md")}


def test_the_readme_shows_what_the_demo_prints_and_draws(tmp_path: Path) -> None:
    assert (HOME / "examples" / "load_test.out").read_text().strip() in (HOME / "README.md").read_text()
    subprocess.run([sys.executable, "examples/load_test.py", str(tmp_path)], cwd=HOME, capture_output=True, check=True)
    drawn, shown = tmp_path / "collapse.svg", HOME / "docs" / "figures" / "collapse.svg"
    assert drawn.read_text() == shown.read_text(), f"copy it: make docs draws {shown.name} anew"


def test_links_between_pages_lead_somewhere() -> None:
    for path in [*PAGES, HOME / "DESIGN.md", HOME / "CHANGES.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_the_workflow_asks_for_what_there_is() -> None:
    (job,) = yaml.safe_load((HOME / "examples" / "goodput.yml").read_text())["jobs"].values()
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines() if line.startswith("openloop ")]
    assert len(lines) == 3
    for line in lines:
        name, *words = shlex.split(line.removesuffix(" &"))[1:]
        cli.commands[name].make_context(name, words)
    slots, rate = (float(re.findall(rf"{name}[= ](\d+)", " ".join(lines))[0]) for name in ("count", "--rate"))
    assert rate * 64 * 0.010 < slots / 2  # 64 tokens of 10 ms each: queues would make its own gate fail by chance
