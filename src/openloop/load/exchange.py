"""Requests before a run, to learn what must be known: which models there are, how tokens are counted, and whether a
server that a command of the user's starts anew is ready, without asking its model anything."""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

import msgspec

from openloop.errors import RunError, SpecError
from openloop.load.address import Place, secrets_of, tls_context
from openloop.load.prometheus import read_page
from openloop.load.reply import Reply
from openloop.load.targets import JsonTarget
from openloop.load.targets.base import refusal
from openloop.load.wire import Framing, WireError, encode_head, joined
from openloop.said import NO_SENSE, without_secrets
from openloop.workload import Ask, Scale, Words

PATIENCE_S = 5.0
RESTART_S = 900.0  # for the command, and then for the server
EVERY_S = 0.2
BORN = "process_start_time_seconds"
RETRY_S = 0.3
SHORT, LONG = 8, 136  # words of the prompts that tokens are counted by
PROBE = -(1 << 40)  # identities that no request of a run has


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def exchange(place: Place, request: bytes, patience_s: float = PATIENCE_S) -> Reply:
    """Send, and wait for the whole answer, for no longer than `patience_s`."""
    address, context = place.address, tls_context(place.address)
    framing, blocks, until = Framing(), [], time.monotonic() + patience_s
    with (
        socket.create_connection(address.where, timeout=patience_s) as plain,
        context.wrap_socket(plain, server_hostname=address.name) if context else plain as sock,
    ):
        sock.sendall(request)
        while data := sock.recv(65536):
            blocks.append(data)
            if framing.feed(data):
                break
            if time.monotonic() > until:
                raise WireError(f"the answer has no end after {patience_s:g} s")
    return Reply(*joined([b"".join(blocks)], [0]))


def get_request(place: Place, path: str, headers: dict[str, str]) -> bytes:
    head = encode_head("GET", place.base + path + place.query, place.host, {"Connection": "close", **headers})
    return head + b"\r\n"


def only_model(place: Place, headers: dict[str, str]) -> str:
    """The model of a server that has one."""
    secrets = secrets_of(headers, place.query)
    try:
        reply = exchange(place, get_request(place, "/v1/models", headers))
        if reply.http_status != 200:
            raise WireError(refusal(reply))
        names = [each.id for each in msgspec.json.decode(reply.body, type=_Models).data]
    except (OSError, WireError, *NO_SENSE) as error:
        why = without_secrets(str(error), secrets)
        raise SpecError(f"{place.host} does not say which models it has ({why}); name one with --model") from None
    if len(names) != 1:
        some = without_secrets(", ".join(names[:5]), secrets)
        raise SpecError(f"{place.host} has {len(names)} models ({some}); choose one with --model")
    return names[0]


def measure_scale(place: Place, target: JsonTarget, words: Words) -> Scale | str:
    """How the server counts the tokens of a prompt, by two short requests; or why that is not known."""
    counted = []
    for size in (SHORT, LONG):
        ask = Ask((("user", words.text_of(PROBE - size, size)),), target.fewest)
        for last in (False, False, True):  # one that is busy is asked again
            try:
                found = target.decode(exchange(place, target.encode(ask, size)))
            except (OSError, WireError) as error:
                return f"it cannot be asked ({without_secrets(str(error), target.secrets)})"
            if found.status != "shed" or last:
                break
            time.sleep(RETRY_S)
        if found.prompt_tokens is None:
            return found.error or "it does not tell"
        counted.append(found.prompt_tokens)
    short, long = counted
    per_word = (long - short) / (LONG - SHORT)
    if not per_word > 0:
        return f"it counts {short} tokens in {SHORT} words and {long} in {LONG}"
    return Scale(per_word, max(short - SHORT * per_word, 0.0))


def restart(
    command: str, places: Sequence[Place], patience_s: float = RESTART_S, headers: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Run the command, which ends when the old server is gone, and wait until all answer; notes for the manifest."""
    shown = dict(headers or {})
    before = [_born(place, shown) for place in places]
    began = time.monotonic()
    _run(command, patience_s)
    for place in places:
        _wait(place, shown, began + patience_s)
    after = [_born(place, shown) for place in places]
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


def _wait(place: Place, headers: dict[str, str], until: float) -> None:
    """Until /health says 200; where there is no such page, until /v1/models does."""
    while time.monotonic() < until:
        health = _get(place, "/health", headers)[0]
        if health == 200 or (health == 404 and _get(place, "/v1/models", headers)[0] == 200):
            return
        time.sleep(EVERY_S)
    raise RunError(f"the server at {place.host} was not ready in time after the restart command")


def _born(place: Place, headers: dict[str, str]) -> float | None:
    status, text = _get(place, "/metrics", headers)
    with contextlib.suppress(ValueError):
        found = read_page(text, {BORN}).get(BORN) if status == 200 else None
        return found[0][1] if found else None
    return None


def _get(place: Place, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body; 0 where nobody answers."""
    try:
        reply = exchange(place, get_request(place, path, headers))
    except (OSError, WireError):
        return 0, ""
    return reply.http_status, reply.body.decode(errors="replace")
