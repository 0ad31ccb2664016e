"""A Python function in place of a server."""

import msgspec

from openloop.load.targets.base import Target
from openloop.load.wire import Marks
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

    def read(self, raw: bytes, marks: Marks) -> Outcome:
        stamps = memoryview(marks).cast("q")[1::2].tolist()
        found = Outcome(event_ns=stamps, first_any_ns=stamps[0] if stamps else None)
        if self.keep_text:
            found.text = raw.decode("utf-8", "replace")
        return found
