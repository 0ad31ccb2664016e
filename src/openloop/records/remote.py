"""Where a run is: a folder here, or one at a URL that fsspec knows (s3://, gs://, az://, https://, memory://, ...)."""

import shutil
import warnings
from importlib import import_module
from pathlib import Path

from openloop.errors import RunError
from openloop.records.manifest import MANIFEST_FILE
from openloop.spec import one_line


def is_url(path: str | Path) -> bool:
    return "://" in str(path)


def locate(path: str | Path) -> Path:
    """A path that can be read from, wherever it leads."""
    if not is_url(path):
        return Path(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            found = import_module("upath").UPath(str(path))
            found.is_dir()  # asks for the package of that store, and the store
            found.parent / found.name  # which has folders
    except ImportError as error:
        raise RunError(f"{path} cannot be reached: {error}; pip install 'openloop[remote]' and what it names") from None
    except Exception as error:  # stores are of many makers, and each says in its own way that it lacks something
        raise RunError(f"{path} cannot be reached: {one_line(error) or type(error).__name__}") from None
    reached: Path = found
    return reached


def copy_run(folder: Path, there: Path) -> None:
    """All files of a folder, its manifest last: a reader finds all of the run, or none."""
    there.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir(), key=lambda file: file.name == MANIFEST_FILE):
        with file.open("rb") as source, (there / file.name).open("wb") as target:
            shutil.copyfileobj(source, target)
