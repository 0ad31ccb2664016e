"""Where to look next. Pure: what was found in, places to try out; so a search can be resumed, and repeated.

A Gaussian process over the grid: places are alike that differ in few keys and by little. What was found is ranked
first, because goodput has cliffs, which no smooth function follows; where there is none at all, by how late it was. Of
places not tried yet those are next whose expected improvement is largest; those of a round are chosen one by one, as if
the others had come out as expected. Towards the end only those that differ from the best in one key are looked at.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import ne
from statistics import NormalDist

import numpy as np

from openloop.arrays import Floats
from openloop.seeds import stream
from openloop.tune.space import Place

Worth = tuple[float, ...]  # what a place brings; what comes later in it decides between equals

ALL = 20_000  # places that are weighed; of more, so many drawn ones and the neighbours of the best
SHARPNESS = (0.05, 20.0)  # of each key: how quickly places that differ in it stop being alike
DRAWS, POLISH = 40, 3
NOISE = 1e-3
BEST = 5
NORMAL = NormalDist()


def first_places(shape: Sequence[int], count: int, seed: int) -> list[Place]:
    """Spread out: each value of each key about as often as any other."""
    rng = stream(seed, "first places")
    columns = [rng.permutation(np.resize(rng.permutation(size), count)) for size in shape]
    found = list(dict.fromkeys(tuple(int(each) for each in row) for row in zip(*columns, strict=True)))
    for _ in range(50 * count):
        if len(found) >= min(count, math.prod(shape)):
            break
        place = tuple(int(rng.integers(size)) for size in shape)
        if place not in found:
            found.append(place)
    return found


def next_places(
    shape: Sequence[int],
    ordered: Sequence[bool],
    seen: Mapping[Place, Worth],
    count: int,
    seed: int,
    around: Place | None = None,
) -> list[Place]:
    """The most promising places that were not tried; of those near one, while there are any."""
    rng = stream(seed, f"places after {len(seen)}")
    rest = _candidates(shape, seen, rng)
    if around is not None:
        rest = [place for place in rest if sum(map(ne, place, around)) == 1] or rest
    if not rest:
        return []
    tried, values = list(seen), _ranked(list(seen.values()))
    sharp = _fit(_apart(tried, tried, shape, ordered), values, rng)
    found: list[Place] = []
    for _ in range(min(count, len(rest))):
        known = np.exp(-_apart(tried, tried, shape, ordered) @ sharp)
        cross = np.exp(-_apart(rest, tried, shape, ordered) @ sharp)
        solved = np.linalg.solve(known + NOISE * np.eye(len(tried)), np.column_stack([values, cross.T]))
        middle = cross @ solved[:, 0]
        spread = np.sqrt(np.maximum(1 - np.einsum("ij,ji->i", cross, solved[:, 1:]), 1e-12))
        best = int(np.argmax(_improvement(middle, spread, float(values.max()))))
        found.append(rest[best])
        tried, values = [*tried, rest[best]], np.append(values, middle[best])
        rest = rest[:best] + rest[best + 1 :]
    return found


def _candidates(shape: Sequence[int], seen: Mapping[Place, Worth], rng: np.random.Generator) -> list[Place]:
    if math.prod(shape) <= ALL:
        return [place for place in itertools.product(*map(range, shape)) if place not in seen]
    drawn = [tuple(row) for row in np.column_stack([rng.integers(size, size=ALL // 10) for size in shape]).tolist()]
    best = sorted(seen, key=lambda place: seen[place], reverse=True)[:BEST]
    near = [
        (*place[:key], other, *place[key + 1 :])
        for place in best
        for key, size in enumerate(shape)
        for other in range(size)
    ]
    return [place for place in dict.fromkeys([*near, *drawn]) if place not in seen]


def _ranked(values: Sequence[Worth]) -> Floats:
    """As if they were normal: their order is kept, cliffs are not."""
    ordered = sorted(values)
    return np.array([NORMAL.inv_cdf((bisect_left(ordered, each) + 0.5) / len(values)) for each in values])


def _apart(a: Sequence[Place], b: Sequence[Place], shape: Sequence[int], ordered: Sequence[bool]) -> Floats:
    """How far places are apart, by key: squared steps of an order, or whether they differ."""
    first, second = np.array(a, float), np.array(b, float)
    gaps = np.abs(first[:, None, :] - second[None, :, :])
    widths = np.maximum(np.array(shape, float) - 1, 1)
    return np.asarray(np.where(np.array(ordered), (2 * gaps / widths) ** 2, gaps > 0), np.float64)


def _fit(apart: Floats, values: Floats, rng: np.random.Generator) -> Floats:
    """The sharpness of each key under which what was found is likeliest."""
    keys = int(apart.shape[-1])
    draws = np.exp(rng.uniform(math.log(SHARPNESS[0]), math.log(SHARPNESS[1]), (DRAWS, keys)))
    best = max(draws, key=lambda sharp: _likelihood(apart, values, sharp))
    for _ in range(POLISH):
        for key in range(keys):
            tries = [best * np.where(np.arange(keys) == key, factor, 1.0) for factor in (0.3, 0.6, 1.0, 1.6, 3.0)]
            best = max(tries, key=lambda sharp: _likelihood(apart, values, sharp))
    return np.asarray(best, np.float64)


def _likelihood(apart: Floats, values: Floats, sharp: Floats) -> float:
    if not np.all((sharp >= SHARPNESS[0] / 10) & (sharp <= SHARPNESS[1] * 10)):
        return -np.inf
    alike = np.exp(-apart @ sharp) + NOISE * np.eye(len(values))
    try:
        lower = np.linalg.cholesky(alike)
    except np.linalg.LinAlgError:
        return -np.inf
    half = np.linalg.solve(lower, values)
    return float(-half @ half / 2 - np.log(np.diag(lower)).sum())


def _improvement(middle: Floats, spread: Floats, best: float) -> Floats:
    z = (middle - best) / spread
    below, height = (np.array(list(map(of, z.tolist()))) for of in (NORMAL.cdf, NORMAL.pdf))
    return np.asarray((middle - best) * below + spread * height, np.float64)
