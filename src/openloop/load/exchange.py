"""One request outside of a run, to learn what must be known before: which models there are, how tokens are counted."""

import socket
import time

import msgspec

from openloop.errors import SpecError
from openloop.load.address import Place, secrets_of, tls_context
from openloop.load.reply import Reply
from openloop.load.targets import JsonTarget
from openloop.load.wire import Framing, WireError, encode_head, joined
from openloop.said import NO_SENSE, message, without_secrets
from openloop.workload import Ask, Scale, Words

PATIENCE_S = 5.0
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
            raise WireError(f"status {reply.http_status}: {message(reply.body)}")
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
        ask = Ask((("user", words.text_of(PROBE - size, size)),), 1)
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
