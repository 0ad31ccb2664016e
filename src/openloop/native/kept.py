"""Machine code on disk, by all that it was made of."""

import contextlib
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from openloop.native.mapped import Shapes
from openloop.native.translate import Table

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")  # nothing is compiled
KEPT = 64  # functions, at most


def _made_of(function: Any, seen: set[Any] | None = None) -> Iterator[Any]:
    """All that its code depends on: its own, that of what it calls, and the numbers that it names."""
    seen = set() if seen is None else seen
    function = getattr(function, "__wrapped__", function)
    if function in seen:
        return
    seen.add(function)
    code = function.__code__
    yield code.co_code, code.co_consts, code.co_names, code.co_varnames
    named = {name: function.__globals__.get(name) for name in code.co_names}
    for module in [each for each in named.values() if isinstance(each, ModuleType)]:
        if module.__name__.startswith("openloop."):
            named |= {f"{module.__name__}.{name}": vars(module).get(name) for name in code.co_names}
    for name, value in named.items():
        if isinstance(getattr(value, "__wrapped__", value), FunctionType):
            yield from _made_of(value, seen)
        elif isinstance(value, int | float | np.integer):
            yield name, value


@functools.cache
def _makers() -> str:
    """Who translates and compiles: code that they made as they were before is of no use."""
    files = [Path(__file__).with_name(name).read_bytes() for name in ("translate.py", "build.py")]
    return hashlib.sha256(b"".join(files)).hexdigest()


def code_to_map(function: Callable[..., Any], shapes: Shapes) -> bytes:
    """Machine code of a function that only works on such tables and calls C, to be mapped and called by whoever has
    neither Python's source nor a compiler at hand; nothing where Python has to do it."""
    if PLAIN or sys.platform != "linux" or platform.machine() != "x86_64":
        return b""
    items = [each for each, _ in shapes.values()]
    dtypes = [np.dtype(each if isinstance(each, str) else [(name, "i8") for name in each]) for each in items]
    kinds = tuple(map(Table, dtypes))

    def make() -> bytes:
        made: bytes = import_module("openloop.native.build").compile_movable(function, kinds)
        return made

    try:
        return kept(name_of(function, version("llvmlite"), platform.machine(), kinds), make)
    except Exception:  # another LLVM may need more than code: a run does not depend on it
        return b""


def name_of(function: Callable[..., Any], *what: Any) -> str:
    """Of a file with its code, by all that it was made of and for."""
    source = _makers(), *what, *_made_of(function)
    return f"{function.__name__}-{hashlib.sha256(repr(source).encode()).hexdigest()[:24]}"


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """As it is on disk, or made; by one process, while others that want it wait."""
    folder = _folder()
    if folder is None:
        return make()
    path = folder / f"{name}.o"
    if found := _read(path):
        return found
    with _alone(folder):
        if not (found := _read(path)):
            found = make()
            _write(path, found)
    return found


def _read(path: Path) -> bytes:
    """Nothing if it is not there, not whole, or of somebody whom we do not trust."""
    with contextlib.suppress(OSError):
        held, owner = path.read_bytes(), path.stat().st_uid
        ours = not hasattr(os, "geteuid") or owner in (0, os.geteuid())
        if ours and hashlib.sha256(held[32:]).digest() == held[:32]:
            return held[32:]
    return b""


def _write(path: Path, code: bytes) -> None:
    with contextlib.suppress(OSError):
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(hashlib.sha256(code).digest() + code)
        new.replace(path)
        for old in sorted(path.parent.glob("*.o"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)


@functools.cache
def _folder() -> Path | None:
    """Where numba is told to keep its own, beside the source, or in the user's home; None: nothing can be kept."""
    told, home = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    places = [told] if told else [str(Path(__file__).with_name("__pycache__")), home]
    for place in places:
        with contextlib.suppress(OSError, RuntimeError):
            folder = Path(place).expanduser() / "openloop"
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, where the system can say so."""
    handle = None
    with contextlib.suppress(AttributeError, OSError):
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
