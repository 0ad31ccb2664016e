"""Files that reports and pictures are written to; PDF is printed by a browser of Chromium's family."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openloop.errors import SpecError, StorageError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
FLAGS = (
    *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-pdf-header-footer"),
)
PATIENCE_S = 120


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


def find_browser() -> str | None:
    """The one in OPENLOOP_BROWSER, or the first that is installed."""
    return os.environ.get("OPENLOOP_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


def print_pdf(html: str, path: Path) -> None:
    browser = find_browser()
    if browser is None:
        raise SpecError(f"{path}: a PDF needs Chromium or Chrome, and none is installed; -o report.html needs nothing")
    with tempfile.TemporaryDirectory() as folder:
        page, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        page.write_text(html, encoding="utf-8")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none to offer to root
        call = [browser, *FLAGS, *root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", page.as_uri()]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageError(f"{browser} did not print {path}: {error}") from None
        if not made.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["it did not say why"]
            raise StorageError(f"{browser} did not print {path}: {last[0]}")
        with writing(path):
            shutil.copyfile(made, path)
