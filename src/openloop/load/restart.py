"""A server started anew by a command of the user's, and waited for without asking its model anything."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Sequence

from openloop.errors import RunError
from openloop.load.address import Place
from openloop.load.exchange import exchange, get_request
from openloop.load.prometheus import read_page
from openloop.load.wire import WireError

PATIENCE_S = 900.0  # for the command, and then for the server
EVERY_S = 0.2
BORN = "process_start_time_seconds"


def restart(command: str, places: Sequence[Place], patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """Run the command, which ends when the old server is gone, and wait until all answer; notes for the manifest."""
    before = [_born(place) for place in places]
    began = time.monotonic()
    _run(command, patience_s)
    for place in places:
        _wait(place, began + patience_s)
    after = [_born(place) for place in places]
    same = [place.host for place, a, b in zip(places, before, after, strict=True) if a is not None and a == b]
    if same:
        raise RunError(
            f"the server at {same[0]} is the one from before: the restart command has to end it and start another"
        )
    took = f"the server was started anew before the run and was ready after {time.monotonic() - began:.1f} s"
    if any(each is None for each in after):
        return took, f"whether it is a new process cannot be seen: its /metrics has no {BORN}"
    return (took,)


def _run(command: str, patience_s: float) -> None:
    with tempfile.TemporaryFile() as said:  # and no pipe, which a server in the background would hold open
        try:
            done = subprocess.run(
                command, shell=True, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=patience_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"the restart command did not end within {patience_s:g} s; start servers with &") from None
        if done.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RunError(f"the restart command failed with {done.returncode}{f': {last[0]}' if last else ''}")


def _wait(place: Place, until: float) -> None:
    """Until /health says 200; where there is no such page, until /v1/models does."""
    while time.monotonic() < until:
        health = _get(place, "/health")[0]
        if health == 200 or (health == 404 and _get(place, "/v1/models")[0] == 200):
            return
        time.sleep(EVERY_S)
    raise RunError(f"the server at {place.host} was not ready in time after the restart command")


def _born(place: Place) -> float | None:
    status, text = _get(place, "/metrics")
    with contextlib.suppress(ValueError):
        found = read_page(text, {BORN}).get(BORN) if status == 200 else None
        return found[0][1] if found else None
    return None


def _get(place: Place, path: str) -> tuple[int, str]:
    """Status and body; 0 where nobody answers."""
    try:
        reply = exchange(place, get_request(place, path, {}))
    except (OSError, WireError):
        return 0, ""
    return reply.http_status, reply.body.decode(errors="replace")
