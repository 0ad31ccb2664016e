"""What servers send, in all the shapes they have for it, and what a user got of it."""

import json
from typing import Any

import pytest

from openloop.load.targets import Chat, Completions, Outcome
from openloop.load.wire import Reply
from openloop.workload import Ask


def event(delta: Any = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
NULL_ROLE = event({"role": "assistant", "content": None})
HELLO, WORLD = event({"content": "hello"}), event({"content": " world"})
STOP = event({}, "stop")
USAGE = event(usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
DONE = b"data: [DONE]\n\n"


def read(*reads: bytes, status: int = 200, kind: str = "text/event-stream", target: Any = Chat) -> Outcome:
    """Reads come a second apart, the headers at 0."""
    head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n\r\n" % (status, kind.encode())
    asked: Chat | Completions = target("host", "model")
    return asked.decode(Reply([head, *reads], list(range(len(reads) + 1))))


def test_tokens_are_timed_and_the_rest_is_not() -> None:
    found = read(ROLE, HELLO, WORLD, STOP, USAGE, DONE)
    assert found.status == "ok"
    assert found.event_ns == [2, 3]
    assert found.first_any_ns == 1
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (5, 4, 2)
    assert found.finish_reason == "stop"
    assert found.merged_events == 0


@pytest.mark.parametrize(
    "reads",
    [
        (NULL_ROLE, HELLO, WORLD, STOP, DONE),  # content: null, as llama-server has it
        (b": keep-alive\n\n", HELLO, event({"content": ""}), WORLD, STOP, DONE),  # comments, empty deltas
        (HELLO, event({"content": " world"}, "stop")),  # no [DONE], and the reason with the last token
        (HELLO, WORLD, STOP, USAGE),
        (event({"reasoning_content": "hm"}), event({"content": "yes"}), STOP, DONE),
        (event({"reasoning": "hm"}), event({"tool_calls": [{"function": {"arguments": "{"}}]}), STOP, DONE),
    ],
)
def test_two_tokens_in_every_dialect(reads: tuple[bytes, ...]) -> None:
    found = read(*reads)
    assert found.status == "ok", found.error
    assert len(found.event_ns) == 2


def test_events_in_one_read_come_at_once_and_are_counted() -> None:
    found = read(ROLE + HELLO, WORLD + HELLO + STOP, DONE)
    assert found.event_ns == [1, 2, 2]
    assert found.merged_events == 1


def test_completions_say_text() -> None:
    reads = [
        b'data: {"choices": [{"text": "a"}]}\n\n',
        b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n',
    ]
    found = read(*reads, target=Completions)
    assert found.status == "ok"
    assert found.event_ns == [1]


@pytest.mark.parametrize(
    ("reads", "sentence"),
    [
        ((ROLE, HELLO), "the stream ended without a finish reason"),
        ((DONE,), "the stream ended without a finish reason"),
        ((), "the stream ended without a finish reason"),
        ((HELLO, b'data: {"error": {"message": "out of memory"}}\n\n', DONE), "an error in the stream: out of memory"),
        ((HELLO, b"data: {not json}\n\n"), "an event is not JSON that makes sense: {not json}"),
        ((HELLO, b"data: \xff\xfe\n\n"), "an event is not JSON"),
        ((HELLO, b"data: " + b"[" * 20_000 + b"\n\n"), "an event is not JSON"),
        ((HELLO, event(usage={"prompt_tokens": 10**23})), "an event is not JSON that makes sense"),
        ((HELLO, event(usage={"prompt_tokens": -5})), "an event is not JSON that makes sense"),
    ],
)
def test_a_stream_that_went_wrong_is_an_error(reads: tuple[bytes, ...], sentence: str) -> None:
    found = read(*reads)
    assert found.status == "error"
    assert sentence in str(found.error)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, b'{"error": {"message": "no such key"}}', "status 401: no such key"),
        (404, b'{"detail": "no such model"}', "status 404: no such model"),
        (422, b'{"detail": [{"msg": "ignore_eos"}]}', 'status 422: [{"msg":"ignore_eos"}]'),
        (500, b"<html>\nbroken</html>", "status 500: <html> broken</html>"),
        (400, b"", "status 400: (nothing)"),
    ],
)
def test_a_refusal_says_why(status: int, body: bytes, expected: str) -> None:
    found = read(body, status=status, kind="application/json")
    assert (found.status, found.error, found.http_status) == ("error", expected, status)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_has_too_much_sheds(status: int) -> None:
    assert read(b"{}", status=status).status == "shed"


def test_a_plain_answer_to_a_streaming_request_is_an_error() -> None:
    found = read(b'{"choices": []}', kind="application/json")
    assert (found.status, found.error) == ("error", "a streaming request was answered with application/json")


def test_an_answer_at_once_is_one_delivery_of_all_its_tokens() -> None:
    body = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    found = Chat("h", "m", stream=False).decode(Reply([head, json.dumps(body).encode()], [3, 9]))
    assert (found.status, found.event_ns, found.event_tokens, found.output_tokens) == ("ok", [9], [7], 7)


def test_a_request_says_what_is_asked() -> None:
    target = Chat("h", "m", "/base", {"Authorization": "Bearer x"}, extra={"ignore_eos": True})
    head, _, body = target.encode(Ask((("user", "hello"),), 9), 4).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nHost: h\r\n")
    assert b"Authorization: Bearer x" in head
    assert b"X-Request-Id: 4" in head
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
