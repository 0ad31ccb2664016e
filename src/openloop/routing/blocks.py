"""What a replica's cache holds, by its own events; in names that are the same for all replicas."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
        *("medium", "lora_name", "extra_keys", "group_idx"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
}


def token_names(tokens: Sequence[int], size: int, above: int | None = None) -> list[int]:
    """A name for each whole block of tokens, which is of all that stands before it, too; `above` is the block before
    the first."""
    data = np.asarray(tokens, "<i8").tobytes()
    found: list[int] = []
    for start in range(0, len(data) // 8 // size * size * 8, size * 8):
        said = data[start : start + size * 8] + (b"" if above is None else above.to_bytes(8, "big"))
        above = int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big") >> 2
        found.append(above)
    return found


def read_events(payload: bytes) -> tuple[float, list[dict[str, Any]]]:
    """A batch as vLLM publishes it: when, and its events. Older servers write events as lists, and the reader knows
    the order of their fields."""
    at, events, *_ = msgspec.msgpack.decode(payload)
    named = (each if isinstance(each, dict) else _named(*each) for each in events)
    return float(at), list(named)


def _named(kind: str, *values: Any) -> dict[str, Any]:
    return {"type": kind, **dict(zip(_FIELDS.get(kind, ()), values, strict=False))}


@dataclass
class Blocks:
    """The blocks of one replica: by the hash that it has for them, their name, and how many copies there are.

    A block of an adapter, of a salted or of a multimodal prompt is left out: tokens alone do not tell it.
    """

    size: int = 0  # tokens of a block, as the first that is stored says
    _known: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        self._known.clear()

    def take(self, event: dict[str, Any]) -> tuple[list[int], list[int]]:
        """The names of what is stored since, and of what is there no more."""
        kind = event["type"]
        if kind == "AllBlocksCleared":
            gone = [name for name, _ in self._known.values()]
            self.clear()
            return [], gone
        if event.get("medium") not in (None, "GPU") or event.get("group_idx") not in (None, 0):
            return [], []
        if kind == "BlockStored":
            return list(self._store(event)), []
        return [], list(self._remove(event["block_hashes"])) if kind == "BlockRemoved" else []

    def _store(self, event: dict[str, Any]) -> Iterator[int]:
        parent, hashes = event["parent_block_hash"], event["block_hashes"]
        self.size = self.size or int(event["block_size"])
        special = event.get("lora_id") is not None or event.get("lora_name") or any(event.get("extra_keys") or ())
        if special or event["block_size"] != self.size or not (parent is None or parent in self._known):
            return
        names = token_names(event["token_ids"], self.size, None if parent is None else self._known[parent][0])
        for each, name in zip(hashes, names, strict=True):
            self._known[each] = name, self._known.get(each, (name, 0))[1] + 1
            yield name

    def _remove(self, hashes: Sequence[Any]) -> Iterator[int]:
        for each in hashes:
            name, copies = self._known.pop(each, (None, 0))
            if copies > 1 and name is not None:
                self._known[each] = name, copies - 1
            elif name is not None:
                yield name
