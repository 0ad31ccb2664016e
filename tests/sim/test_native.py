"""What is compiled does what Python does; it is compiled once, by one of many processes, and kept whole."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.native import build
from openloop.native import kept as stored
from openloop.native.build import native
from openloop.sim import loop, tables

ROW = np.dtype([("count", np.int64), ("share", np.float64), ("small", np.int32)], align=True)
WHOLE = st.integers(-(2**40), 2**40)
REAL = st.floats(allow_nan=True, allow_infinity=True, width=64)
SIZED = st.floats(-1e6, 1e6)


def compute(a: int, b: int, x: float, y: float, whole: Any, real: Any) -> tuple[int, float]:
    whole[0], whole[1] = a // b, a % b
    whole[2] = (a & 255) ^ (b << 3) | (a >> 5)
    whole[3] = min(a, b, 7) - max(a, -b)
    whole[4] = (a < b) + (x < y) + (x != x) + (not a) + ((x <= y and a >= b) or x > 1.0)
    whole[5] = math.ceil(x / 1000.0) if abs_of(x) < 1e9 else 0
    whole[6] = np.int64((np.uint64(a & 65535) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(b & 15)) >> np.uint64(3))
    real[0], real[1] = a / 3, x - y * a
    real[2] = min(x, y, 0.0)
    real[3] = max(x, y)
    real[4] = x if a > b else b  # one kind holds both
    real[5] = np.rint(y)
    real[6] = -x
    return a - b, x


def abs_of(x: float) -> float:
    return x if x > 0 else -x


@given(WHOLE, WHOLE.filter(bool), REAL, SIZED)
def test_numbers(a: int, b: int, x: float, y: float) -> None:
    found = []
    for function in (native(compute), compute):
        whole, real = np.zeros(8, np.int64), np.zeros(8)
        with np.errstate(all="ignore"):
            result = function(a, b, x, y, whole, real)
        found.append((*whole.tolist(), *np.where(np.isnan(real), -0.5, real).tolist(), result[0], repr(result[1])))
    assert found[0] == found[1]


class Shelf:
    tables = ("rows", "grid", "spare")

    def __init__(self, size: int, spare: bool) -> None:
        self.rows = np.zeros(size, ROW).view(np.recarray)
        self.grid = np.arange(size * 3).reshape(size, 3)
        self.spare = np.zeros(2) if spare else None


def walk(t: Any, step: int, until: float) -> int:
    """Loops that are left and gone round, rows by reference and as copies, slices, and tables that may not be there."""
    seen = 0
    for n in range(len(t.rows) - 1, -1, -1):
        row = t.rows[n]
        if n % 4 == 3:
            continue
        row.count, row.share = n, n / 2
        row.count += t.grid[n, n % t.grid.shape[1]]
        row.small -= row.count
        seen += 1
    place = 0
    while True:
        place += step
        if place >= len(t.rows) or t.rows[place].share > until:
            break
        t.rows[place - 1] = t.rows[place]
    if t.spare is not None and t.rows[0].count >= 0:
        t.spare[1] = seen
    return seen + sum_of(t.spare)


def sum_of(values: Any) -> int:
    if values is None:
        return -1
    found = 0
    for n in range(len(values)):
        found += int(values[n])
    return found


@given(st.integers(1, 30), st.booleans(), st.integers(1, 5), st.floats(0, 20))
def test_tables(size: int, spare: bool, step: int, until: float) -> None:
    compiled, plain = Shelf(size, spare), Shelf(size, spare)
    assert native(walk)(compiled, step, until) == walk(plain, step, until)
    assert np.array_equal(compiled.rows, plain.rows)


def pick(values: Any, start: int, stop: int, step: int) -> int:
    return sum_of(values[start:stop:step]) * 100 + len(values[start:stop:step])


@given(st.integers(0, 20), st.integers(0, 25), st.integers(0, 25), st.integers(1, 6))
def test_slices(size: int, start: int, stop: int, step: int) -> None:
    values = np.arange(size)
    assert native(pick)(values, start, stop, step) == pick(values, start, stop, step)
    assert native(pick)(values[::2], start, stop, step) == pick(values[::2], start, stop, step)


def wrong(values: Any) -> None:
    for each in values:
        values[0] = each


def _add_up(values: Any) -> float:
    total = 0.0
    for n in range(len(values)):
        total += values[n]
    return total


def test_threads_that_want_the_same_code_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's engine is one for all: two that put the same code into it at once ended the process."""
    loads, load, function = [], build._load, native(_add_up)

    def slowly(name: str, code: bytes) -> Any:
        loads.append(name)
        time.sleep(0.2)
        return load(name, code)

    monkeypatch.setattr(build, "_load", slowly)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(function, [np.arange(5.0)] * 4)) == [10.0] * 4
    assert len(loads) == (0 if stored.PLAIN else 1)


def _but_the_last(values: Any) -> int:
    return len(values[0:-1])


@pytest.mark.skipif(stored.PLAIN, reason="nothing is compiled")
def test_places_counted_from_the_end_are_refused() -> None:
    with pytest.raises(TypeError, match="'0:-1' cannot be compiled"):
        native(_but_the_last)(np.arange(5.0))


def test_what_it_does_not_know_is_said() -> None:
    with pytest.raises(TypeError, match=r"test_native.py:\d+: 'values' cannot be compiled"):
        native(wrong)(np.zeros(3))


def left() -> int:
    return tables.LEFT


def test_a_constant_of_a_module_is_part_of_what_code_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.name_of(left)
    assert " at 0x" not in repr([*stored._made_of(loop.advance)])  # an address would make another name in each process
    monkeypatch.setattr(tables, "LEFT", 99)
    assert stored.name_of(left) != before


MANY = """
import sys
from collections.abc import Callable
from pathlib import Path
import numpy as np
from openloop.native import build as native
from openloop.sim.recursions import single_server
make = native._compile
def told(*what):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    return make(*what)
native._compile = told
print(single_server(np.array([1.0, 2.0]), np.array([5.0, 1.0])).tolist())
"""


def test_many_processes_compile_once_and_what_is_broken_is_made_again(tmp_path: Path) -> None:
    log, cache = tmp_path / "log", tmp_path / "cache"

    def call(times: int) -> None:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "NUMBA_DISABLE_JIT": "0"}
        command = [sys.executable, "-c", MANY, str(log)]
        started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(times)]
        assert {child.communicate()[0] for child in started} == {"[6.0, 7.0]\n"}

    call(4)
    assert log.read_text().split() == ["made"]
    (kept,) = (cache / "openloop").glob("*.o")
    kept.write_bytes(kept.read_bytes()[:-100])
    call(1)
    assert len(log.read_text().split()) == 2


def test_code_that_another_translator_made_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def kept(name: str, make: Callable[[], bytes]) -> bytes:
        names.append(name)
        return make()

    monkeypatch.setattr(build, "kept", kept)
    for maker in ("one", "another"):
        monkeypatch.setattr(stored, "_makers", lambda maker=maker: maker)
        assert native(abs_of)(-2.5) == 2.5
    assert len(set(names)) == 2
