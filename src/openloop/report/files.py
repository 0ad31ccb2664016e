"""Files that reports and pictures are written to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openloop.errors import StorageError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """With a folder to be in; what goes wrong is one sentence."""
    if str(path).partition("/")[0].endswith(":"):  # of a URL, a path keeps one slash
        raise StorageError(f"{path} is a URL, and files are written here: copy it when it is there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")


def save_picture(canvas: Any, path: Path) -> None:
    """Of matplotlib, as .svg or .png; without a date, so that the same picture is the same file."""
    with writing(path):
        canvas.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
