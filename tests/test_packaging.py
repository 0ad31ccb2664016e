"""What is built can be installed by somebody who has nothing of it, and works there."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
LIMIT_S = 300


def run(*call: str | Path, cwd: Path | None = None, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(call, cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert not check or done.returncode == 0, f"{call}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder, cwd=HOME)
    return folder


def test_the_source_is_enough_to_build_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (inside,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=inside)
    assert names(tmp_path / "again") == names(built)
    assert {"openloop/py.typed", "openloop/cli/__init__.py"} <= names(built)
    assert not {name for name in names(built) if name.startswith(("tests", "docs"))}
    assert (inside / "tests" / "importers" / "files" / "vllm.json").exists()


def names(folder: Path) -> set[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python, command = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "openloop"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    done = run(*pip, "--disable-pip-version-check", wheel, check=False)
    if "No matching distribution found for" in done.stderr:
        pytest.skip("pip reaches no index here")
    assert done.returncode == 0, done.stderr
    file = HOME / "tests" / "importers" / "files" / "vllm.json"
    assert "40 rows" in run(command, "import", file, "-o", "run", cwd=tmp_path).stdout
    assert "time_to_first_token" in run(command, "metrics", cwd=tmp_path).stdout
    code = "import openloop, importlib.metadata as m; print(openloop.load('run').num_rows, *m.entry_points().names)"
    assert {"40", "openloop"} <= set(run(python, "-c", code, cwd=tmp_path).stdout.split())
