"""The built-in endpoint in a process of its own."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from openloop.errors import SpecError

LISTENING = "listening on "
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy says


@dataclass(frozen=True)
class RunningEndpoint:
    """A running endpoint, as its parent sees it."""

    url: str

    def behave(self, **how: Any) -> None:
        """Tell it how to misbehave; nothing: as it should."""
        self._ask("POST", "/behaviour", msgspec.json.encode(how))

    def truth(self) -> dict[int, tuple[int, list[int]]]:
        """By number of the request: when it arrived and when its tokens were written, and then forget it all."""
        told = msgspec.json.decode(self._ask("GET", "/truth"))
        self._ask("DELETE", "/truth")
        return dict(zip(told["number"], zip(told["arrived_ns"], told["written_ns"], strict=True), strict=True))

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, body, method=method)
        with _DIRECT.open(request, timeout=30) as answer:
            data: bytes = answer.read()
            return data


@contextmanager
def endpoint_process(engine: str, core: int | None = None) -> Iterator[RunningEndpoint]:
    """`openloop serve` on a free port, on a core of its own if one is named."""
    process = subprocess.Popen(
        [sys.executable, "-m", "openloop", "serve", "--port", "0", "--engine", engine],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt is for the one who measures
    )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        line = process.stdout.readline()
        if LISTENING not in line:
            raise SpecError(f"the built-in endpoint did not start with the engine {engine!r}")
        yield RunningEndpoint(line.partition(LISTENING)[2].split()[0])
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
