"""Which replica was sent what: a bounded index from the hash of a prefix to replicas; the least recently used is
forgotten.

Plain arrays and plain functions, so that the simulator compiles them and whoever routes real requests calls them. Row 0
of `index` is no entry: `newer` there is the oldest entry, `older` the newest, `name` how many there are. `held` says by
entry and replica whether it has it; its row 0 counts.
"""

from typing import Any

import numpy as np

from openloop.native import jitable

ENTRIES = 1 << 16
_ENTRY = np.dtype([("name", np.int64), *((each, np.int32) for each in ("chain", "head", "newer", "older"))], align=True)


def make_index(replicas: int, entries: int = ENTRIES) -> tuple[Any, Any]:
    """An empty one; `entries` is rounded up to a power of two."""
    size = 1 << max(entries - 1, 1).bit_length()
    return np.zeros(size + 1, _ENTRY).view(np.recarray), np.zeros((size + 1, replicas), np.int32)


@jitable
def find(index: Any, name: int) -> int:
    """The entry of a name, or 0."""
    entry: int = index[1 + (name & (len(index) - 2))].head
    while entry > 0 and index[entry].name != name:
        entry = index[entry].chain
    return entry


@jitable
def _unlink(index: Any, entry: int) -> None:
    e = index[entry]
    index[e.older].newer = e.newer
    index[e.newer].older = e.older


@jitable
def _make_entry(index: Any, held: Any, name: int) -> int:
    """A new one, if need be in the place of the oldest."""
    entry: int = index[0].newer
    if index[0].name < len(index) - 1:
        index[0].name += 1
        entry = index[0].name
    else:
        _unlink(index, entry)
        bucket = index[1 + (index[entry].name & (len(index) - 2))]
        if bucket.head == entry:
            bucket.head = index[entry].chain
        else:
            above = bucket.head
            while index[above].chain != entry:
                above = index[above].chain
            index[above].chain = index[entry].chain
        for place in range(held.shape[1]):
            held[0, place] -= held[entry, place] if index[entry].name >= 0 else 0
            held[entry, place] = 0
    bucket = index[1 + (name & (len(index) - 2))]
    index[entry].name, index[entry].chain = name, bucket.head
    bucket.head = entry
    return entry


@jitable
def _touch(index: Any, held: Any, name: int) -> int:
    """The entry of a name, from now on the last to be forgotten."""
    entry = find(index, name)
    if entry > 0:
        _unlink(index, entry)
    else:
        entry = _make_entry(index, held, name)
    e = index[entry]
    e.older, e.newer = index[0].older, 0
    index[e.older].newer = entry
    index[0].older = entry
    return entry


@jitable
def learn(index: Any, held: Any, names: Any, place: int) -> None:
    """A replica has these now. The first is the last to be forgotten, because others share it."""
    for n in range(len(names) - 1, -1, -1):
        entry = _touch(index, held, names[n])
        held[0, place] += 1 - held[entry, place]
        held[entry, place] = 1


@jitable
def unlearn(index: Any, held: Any, names: Any, place: int) -> None:
    """A replica has these no more."""
    for n in range(len(names)):
        entry = find(index, names[n])
        if entry > 0:
            held[0, place] -= held[entry, place]
            held[entry, place] = 0


@jitable
def forget(held: Any, place: int) -> None:
    """A replica has nothing any more."""
    for entry in range(held.shape[0]):
        held[entry, place] = 0


@jitable
def look(index: Any, held: Any, names: Any, views: Any, tokens: int) -> None:
    """Into each view, how many tokens of a prompt the replica has: `tokens` for each name in a row from the first."""
    for place in range(len(views)):
        views[place].cached = 0
        views[place].known = tokens * held[0, place]
    for n in range(len(names)):
        entry = find(index, names[n])
        if entry == 0:
            return
        some = False
        for place in range(len(views)):
            if views[place].cached == n * tokens and held[entry, place] > 0:
                views[place].cached = (n + 1) * tokens
                some = True
        if not some:
            return


@jitable
def find_home(index: Any, session: int) -> int:
    """The entry of a session, or 0; names of sessions are below zero, those of prefixes are not."""
    return find(index, -1 - session) if session >= 0 else 0


@jitable
def learn_home(index: Any, held: Any, session: int, place: int) -> None:
    """A session is at a replica now, and nowhere else."""
    if session >= 0:
        entry = _touch(index, held, -1 - session)
        for other in range(held.shape[1]):
            held[entry, other] = other == place
