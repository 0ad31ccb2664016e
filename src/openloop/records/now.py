"""now.json: where a run in progress is, for those who watch it from another process. Gone when the run is over."""

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from openloop.spec import Strict

NOW_FILE: Final = "now.json"


class Now(Strict, frozen=True, kw_only=False):
    seconds: float  # since the run began
    due: int
    in_flight: int
    at: float = 0.0  # when this was written, by the wall clock


def write_now(folder: Path, now: Now) -> None:
    """A watcher sees the one before or this one. That it cannot be written is no reason to stop measuring."""
    draft = folder / f"{NOW_FILE}.tmp"
    with contextlib.suppress(OSError):
        draft.write_bytes(msgspec.json.encode(msgspec.structs.replace(now, at=time.time())))
        draft.replace(folder / NOW_FILE)


def read_now(folder: Path) -> Now | None:
    try:
        return msgspec.json.decode((folder / NOW_FILE).read_bytes(), type=Now)
    except (OSError, msgspec.DecodeError):
        return None


def forget_now(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / NOW_FILE).unlink(missing_ok=True)
