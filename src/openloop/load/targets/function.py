"""A Python function in place of a server."""

import msgspec

from openloop.load.targets.base import Target
from openloop.said import Outcome
from openloop.workload import Ask


class Function(Target):
    """A Python function, `module:function` or `path/file.py:function`; each piece that it gives is a delivery."""

    has_models = False
    worker = "openloop.load.callable_worker"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:  # noqa: ARG004
        return {}

    def encode(self, ask: Ask, number: int) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(ask)

    def read(self, raw: bytes, ends: list[int], stamps: list[int]) -> Outcome:  # noqa: ARG002
        found = Outcome(event_ns=list(stamps), first_any_ns=stamps[0] if stamps else None)
        if self.keep_text:
            found.text = raw.decode("utf-8", "replace")
        return found
