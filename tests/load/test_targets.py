"""What servers send, in all the shapes they have for it, and what a user got of it."""

import inspect
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import SpecError
from openloop.load.rows import Row, batch_of, read_finished
from openloop.load.targets import (
    TARGETS,
    Chat,
    Completions,
    Embeddings,
    Function,
    HttpTarget,
    Messages,
    Outcome,
    Plain,
    Responses,
    check_template,
)
from openloop.load.wire import Framing, WireError, joined
from openloop.load.worker import BROKEN
from openloop.plugins import find_function
from openloop.records.schema import check_batch
from openloop.workload import Ask

HTTP: dict[str, Any] = {name: target for name, target in TARGETS.items() if issubclass(target, HttpTarget)}
ASK = Ask((("system", "be brief"), ("user", 'say "hi"\n')), 9)


def event(delta: Any = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
NULL_ROLE = event({"role": "assistant", "content": None})
HELLO, WORLD = event({"content": "hello"}), event({"content": " world"})
STOP = event({}, "stop")
USAGE = event(usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
DONE = b"data: [DONE]\n\n"


def named(kind: str, **more: Any) -> bytes:
    """An event that says what it is, twice."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **more}).encode())


def read(*reads: bytes, status: int = 200, kind: str = "text/event-stream", target: Any = Chat, **more: Any) -> Outcome:
    """Reads come a second apart, the headers at 0."""
    head = b"HTTP/1.1 %d X\r\nContent-Type: %b\r\n\r\n" % (status, kind.encode())
    found: Outcome = target(host="host", model="model", **more).read(*joined([head, *reads], range(len(reads) + 1)))
    return found


def read_whole(body: Any, target: Any = Chat, **more: Any) -> Outcome:
    return read(json.dumps(body).encode(), kind="application/json", target=target, stream=False, **more)


def test_tokens_are_timed_and_the_rest_is_not() -> None:
    found = read(ROLE, HELLO, WORLD, STOP, USAGE, DONE)
    assert found.status == "ok"
    assert list(found.event_ns) == [2, 3]
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
        (event({"refusal": "no"}), event({"content": "!"}), STOP, DONE),
        (event({"function_call": {"name": "f"}}), event({"function_call": {"arguments": "{}"}}), STOP, DONE),
        (event({"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}]}), event({"content": "!"}), STOP, DONE),
        (HELLO, WORLD, STOP, b"data: [DONE] \n\n"),
    ],
)
def test_two_tokens_in_every_dialect(reads: tuple[bytes, ...]) -> None:
    found = read(*reads)
    assert found.status == "ok", found.error
    assert len(found.event_ns) == 2


def test_a_packed_answer_is_named() -> None:
    found = read(HELLO, STOP, kind="text/event-stream\r\nContent-Encoding: gzip")
    assert (found.status, found.error) == ("error", "the answer is packed as gzip, which nobody asked for")


def test_events_in_one_read_come_at_once_and_are_counted() -> None:
    found = read(ROLE + HELLO, WORLD + HELLO + STOP, DONE)
    assert list(found.event_ns) == [1, 2, 2]
    assert found.merged_events == 1


def test_what_was_counted_before_stays_where_later_usage_does_not_tell() -> None:
    less = event(usage={"completion_tokens": 3, "prompt_tokens_details": {}})
    found = read(HELLO, WORLD, STOP, USAGE, less, DONE)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (5, 4, 3)


def test_completions_say_text() -> None:
    reads = [
        b'data: {"choices": [{"text": "a"}]}\n\n',
        b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n',
    ]
    found = read(*reads, target=Completions)
    assert found.status == "ok"
    assert list(found.event_ns) == [1]


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


def test_an_answer_that_is_elsewhere_says_where() -> None:
    found = read(b"", status=308, kind="text/html\r\nLocation: https://host/v1/chat/completions")
    assert (found.status, found.error) == ("error", "status 308: it is at https://host/v1/chat/completions")


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_has_too_much_sheds(status: int) -> None:
    assert read(b"{}", status=status).status == "shed"


def test_a_plain_answer_to_a_streaming_request_is_an_error() -> None:
    found = read(b'{"choices": []}', kind="application/json")
    assert (found.status, found.error) == ("error", "a streaming request was answered with application/json")


MESSAGE = {
    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
}
OUTPUT = [
    {"type": "reasoning", "content": None},
    {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (Chat, {"choices": [{"message": {"content": "hi"}, "finish_reason": "s"}], "usage": {"completion_tokens": 7}}),
        (Completions, {"choices": [{"text": "hi", "finish_reason": "s"}], "usage": {"completion_tokens": 7}}),
        (Responses, {"status": "completed", "output": OUTPUT, "usage": {"output_tokens": 7}, "error": None}),
        (Messages, {**MESSAGE, "usage": {"input_tokens": 4, "output_tokens": 7}}),
    ],
)
def test_an_answer_at_once_has_tokens_and_not_their_times(target: Any, body: Any) -> None:
    found = read_whole(body, target, keep_text=True)
    assert (found.status, list(found.event_ns), found.event_tokens, found.output_tokens) == ("ok", [], None, 7)
    assert found.finish_reason
    assert found.text == "hi"


@pytest.mark.parametrize("target", [Chat, Completions, Responses, Messages, Embeddings])
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"error": {"type": "x", "message": "too long"}}, "too long"),
        ([], "the answer is not JSON that makes sense: []"),
    ],
)
def test_an_answer_that_is_an_error_says_so(target: Any, body: Any, sentence: str) -> None:
    found = read_whole(body, target)
    assert (found.status, found.error, list(found.event_ns)) == ("error", sentence, [])


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_that_has_not_come_about_is_an_error(status: str) -> None:
    found = read_whole({"status": status, "output": OUTPUT, "error": None}, Responses)
    assert (found.status, found.error, list(found.event_ns)) == ("error", f"the status of the answer is {status}", [])


def counted(words: str, tokens: int, **more: Any) -> bytes:
    return event({"content": words}, usage={"prompt_tokens": 5, "completion_tokens": tokens}, **more)


def listed(words: str, *tokens: str) -> bytes:
    choice = {"delta": {"content": words}, "logprobs": {"content": [{"token": each} for each in tokens]}}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def numbered(words: str, *tokens: int) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": words, "token_ids": tokens}]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("reads", "tokens"),
    [
        ((ROLE, counted("a", 1), counted(" b c", 4), STOP, USAGE), None),  # more than it says it made
        ((ROLE, counted("a", 1), counted(" b", 2), STOP, USAGE), [1, 1]),
        ((counted("", 0), counted("a", 3), counted("", 4), counted("é", 5), STOP, counted("", 6)), [3, 2]),
        ((counted("a", 1), counted("b", 1), STOP), None),  # words without a token
        ((counted("a", 1), WORLD, STOP), None),
        ((HELLO, counted("a", 2), STOP), None),
        ((listed("a", "a"), listed("", "\\xc3"), listed("é!", "\\xa9", "!"), STOP), [1, 3]),
        ((listed("a", "a"), WORLD, STOP), None),
        ((numbered("ab", 5, 6), numbered("c", 7), STOP, event(usage={"completion_tokens": 4})), [2, 1]),
        ((HELLO, WORLD, STOP, USAGE), None),
    ],
)
def test_tokens_of_an_event_are_known_where_the_server_tells(
    reads: tuple[bytes, ...], tokens: list[int] | None
) -> None:
    found = read(*reads)
    assert found.status == "ok", found.error
    assert found.event_tokens == tokens
    assert len(found.event_ns) == 2


def test_completions_count_by_logprobs_too() -> None:
    choice = {"text": " a b", "logprobs": {"tokens": [" a", " b"], "token_logprobs": [-1, -2]}, "finish_reason": "stop"}
    found = read(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", target=Completions)
    assert found.event_tokens == [2]


def test_a_server_that_contradicts_itself_is_not_believed() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}}
    found = read(HELLO, WORLD, event(usage=usage))  # and it is cut
    assert (found.status, found.output_tokens, found.cached_tokens) == ("error", 2, None)


def test_words_are_kept_where_they_are_asked_for() -> None:
    reads = (event({"reasoning": "hm"}), HELLO, WORLD, event({"tool_calls": [{}]}), STOP, DONE)
    assert read(*reads).text is None
    assert read(*reads, keep_text=True).text == "hello world"
    second = b'data: {"choices": [{"index": 1, "delta": {"content": "other"}}]}\n\n'
    assert read(HELLO, second, STOP, keep_text=True).text == "hello"
    parts = event({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "parts"}, 3]})
    assert read(parts, WORLD, STOP, keep_text=True).text == "parts world"
    empty = event({"content": [{"type": "text", "text": ""}]})
    assert len(read(empty, parts, empty, STOP).event_ns) == 1


def test_of_several_answers_the_first_says_why_it_ended() -> None:
    second = b'data: {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}\n\n'
    for reads in ((HELLO, STOP, second), (HELLO, second, STOP)):
        assert read(*reads).finish_reason == "stop"
    choices = [
        {"index": 1, "message": {}, "finish_reason": "length"},
        {"index": 0, "message": {}, "finish_reason": "stop"},
    ]
    assert read_whole({"choices": choices}).finish_reason == "stop"


def test_what_usage_told_before_stays_where_a_later_one_is_empty() -> None:
    found = read(HELLO, WORLD, STOP, USAGE, event(usage={}), DONE)
    assert (found.prompt_tokens, found.output_tokens) == (5, 2)


BEGUN = named("response.created", response={"status": "in_progress", "output": [], "usage": None})
ADDED = named("response.output_item.added", item={"type": "message", "content": []})
SAID = named("response.output_text.delta", delta="hello", logprobs=[])
USED = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
USED |= {"output_tokens_details": {"reasoning_tokens": 1}}
COMPLETED = named("response.completed", response={"status": "completed", "usage": USED, "output": OUTPUT})
INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USED}


@pytest.mark.parametrize("kind", ["reasoning_text", "reasoning_summary_text", "function_call_arguments", "refusal"])
def test_responses_stream_all_kinds_of_words(kind: str) -> None:
    other = named(f"response.{kind}.delta", delta="hm")
    empty, done = named("response.output_text.delta", delta=""), named("response.output_text.done", text="hello")
    found = read(BEGUN, ADDED, other, empty, SAID, done, COMPLETED, target=Responses, keep_text=True)
    assert (found.status, found.error, list(found.event_ns), found.text) == ("ok", None, [3, 5], "hello")
    assert (found.prompt_tokens, found.cached_tokens) == (5, 4)
    assert (found.output_tokens, found.reasoning_tokens) == (2, 1)
    assert found.finish_reason == "completed"


@pytest.mark.parametrize(
    ("last", "status", "sentence"),
    [
        (named("response.incomplete", response=INCOMPLETE), "ok", None),
        (named("response.failed", response={"error": {"code": "x", "message": "broke"}}), "error", "broke"),
        (named("error", code="x", message="broke"), "error", "broke"),
        (b'data: {"error": {"message": "broke"}}\n\n', "error", "broke"),
        (b"", "error", "without a finish reason"),
        (named("response.completed", response={"usage": {"output_tokens": -1}}), "error", "not JSON that makes sense"),
    ],
)
def test_responses_end_in_many_ways(last: bytes, status: str, sentence: str | None) -> None:
    found = read(BEGUN, SAID, last, target=Responses)
    assert (found.status, list(found.event_ns)) == (status, [2])
    assert found.finish_reason == (None if sentence else "max_output_tokens")
    assert (sentence or "") in (found.error or "")


START = named("message_start", message={"content": [], "usage": {"input_tokens": 5, "cache_read_input_tokens": 4}})
BLOCK = named("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = named("ping")
END = named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7}) + named("message_stop")


def part(**delta: Any) -> bytes:
    return named("content_block_delta", index=0, delta=delta)


def test_messages_stream_all_kinds_of_words() -> None:
    thought, signed = part(type="thinking_delta", thinking="hm"), part(type="signature_delta", signature="abc")
    text, call = part(type="text_delta", text="hello"), part(type="input_json_delta", partial_json="{")
    reads = (START, BLOCK, PING, thought, signed, text, call, part(type="input_json_delta", partial_json=""), END)
    found = read(*reads, target=Messages, keep_text=True)
    assert (found.status, found.error, list(found.event_ns), found.text) == ("ok", None, [4, 6, 7], "hello")
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (9, 4, 7)
    assert (found.finish_reason, found.event_tokens) == ("end_turn", None)
    again = named("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 5, "output_tokens": 8})
    found = read(START, text, END, again, named("message_delta", usage={}), target=Messages)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (9, 4, 8)


@pytest.mark.parametrize(
    ("reads", "status", "sentence"),
    [
        ((START, named("error", error={"type": "overloaded_error", "message": "busy"})), "shed", "busy"),
        (
            (START, part(text="a"), named("error", error={"type": "overloaded_error", "message": "busy"})),
            "error",
            "busy",
        ),
        ((START, named("error", error={"type": "api_error", "message": "broke"})), "error", "broke"),
        ((START, part(text="a")), "error", "without a finish reason"),
        ((START, b"event: ping\ndata: {\n\n"), "error", "not JSON that makes sense: {"),
    ],
)
def test_messages_that_went_wrong(reads: tuple[bytes, ...], status: str, sentence: str) -> None:
    found = read(*reads, target=Messages)
    assert found.status == status
    assert sentence in str(found.error)


def test_an_embedding_has_no_tokens() -> None:
    found = read_whole({"data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 5}}, Embeddings)
    assert (found.status, list(found.event_ns), found.prompt_tokens) == ("ok", [], 5)
    assert (found.output_tokens, found.event_tokens, found.finish_reason) == (None, None, None)
    assert read_whole({"data": []}, Embeddings).error == "the answer holds no embedding"


@pytest.mark.parametrize("status", [200, 201, 204])
def test_any_success_of_plain_http_is_one(status: int) -> None:
    found = read(HELLO, b"and \xff", status=status, target=Plain, keep_text=True)
    assert (found.status, list(found.event_ns), found.output_tokens) == ("ok", [], None)
    assert str(found.text).endswith("and \ufffd")


def test_a_template_is_filled_in_as_its_kind_wants_it() -> None:
    template = '{"q": "${prompt}", "n": ${output_tokens}, "to": "${model}", "$": {"{prompt}": ${number}}}'
    body = Plain("h", "m", template=template).encode(ASK, 3).partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {"q": 'be brief say "hi"\n', "n": 9, "to": "m", "$": {"{prompt}": 3}}
    plain = Plain("h", "m", "/a", {"content-type": "text/plain"}, method="PUT", template="${number}: ${prompt}")
    head, _, body = plain.encode(ASK, 3).partition(b"\r\n\r\n")
    assert body == b'3: be brief say "hi"\n'
    assert head.startswith(b"PUT /a HTTP/1.1\r\n")
    assert head.lower().count(b"content-type") == 1
    unknown = Plain("h", template="[${output_tokens}]").encode(ASK._replace(output_tokens=None), 0)
    assert unknown.endswith(b"[null]")
    with pytest.raises(SpecError, match=r"a place \$\{promt\} that nothing fills; it may have \$\{prompt\}"):
        check_template("${promt}")
    with pytest.raises(
        SpecError, match=r'no JSON once it is filled in .*; a text stands between quotes: "\$\{prompt\}"'
    ):
        check_template('{"q": ${prompt}}')
    for each in (
        template,
        '{"a": 1,\n\n"q": "${prompt}"}\n',
        '{"n": ${number}}\n{"q": "${prompt}"}\n',
        "[INST] ${prompt}",
    ):
        assert check_template(each) == each


@pytest.mark.parametrize("name", HTTP)
def test_a_request_is_whole_http(name: str) -> None:
    more = {"template": "${prompt}é"} if name == "http" else {}
    data = HTTP[name](host="h:1", model="m", base="/b", headers={"A": "b", "x-request-id": "mine"}, **more).encode(
        ASK, 4
    )
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == f"POST /b{HTTP[name].path} HTTP/1.1"
    headers = dict(line.split(": ") for line in lines)
    assert len(headers) == len(lines)
    assert headers["Content-Length"] == str(len(body))
    assert (headers["Host"], headers["X-Request-Id"], headers["A"]) == ("h:1", "4", "b")
    assert b"be brief" in body


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "expected"), [(429, "shed"), (503, "shed"), (529, "shed"), (400, "error"), (302, "error")]
)
def test_no_success_is_a_failed_row_with_the_servers_words(name: str, stream: bool, status: int, expected: str) -> None:
    body = b'{"type": "error", "error": {"type": "x", "message": "so it is"}}'
    found = read(body, status=status, kind="application/json", target=HTTP[name], stream=stream)
    assert (found.status, found.error, list(found.event_ns)) == (expected, f"status {status}: so it is", [])


@pytest.mark.parametrize("name", TARGETS)
def test_a_key_goes_where_the_dialect_has_it(name: str) -> None:
    expected: dict[str, dict[str, str]] = {"messages": {"x-api-key": "k"}, "python": {}}
    assert TARGETS[name].key_headers("k") == expected.get(name, {"Authorization": "Bearer k"})


STREAMS = {
    "chat": b"".join([ROLE, counted("a", 1), b": ping\n\n", counted("é", 3), STOP, USAGE, DONE]),
    "completions": numbered("ab", 5, 6) + numbered("c", 7) + STOP + DONE,
    "responses": BEGUN + SAID + PING + SAID + COMPLETED,
    "messages": START + BLOCK + PING + part(text="a") + part(thinking="b") + END,
}


@pytest.mark.parametrize("name", STREAMS)
@given(
    places=st.lists(st.integers(0, 10_000), max_size=30), size=st.integers(1, 2000), end=st.sampled_from(["\n", "\r\n"])
)
def test_however_a_stream_is_cut_the_same_events_come_out(name: str, places: list[int], size: int, end: str) -> None:
    body = STREAMS[name].replace(b"\n", end.encode())
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw = head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"
    edges = sorted({0, len(raw), *(place % len(raw) for place in places)})
    blocks = [raw[a:b] for a, b in itertools.pairwise(edges)]
    found = HTTP[name](host="h", keep_text=True).read(*joined(blocks, edges[1:]))
    expected = read(STREAMS[name], target=HTTP[name], keep_text=True)
    assert found.status == expected.status == "ok"
    assert len(found.event_ns) == len(expected.event_ns) == 2
    assert list(found.event_ns) == sorted(found.event_ns)
    assert (found.text, found.event_tokens) == (expected.text, expected.event_tokens)
    assert (found.prompt_tokens, found.output_tokens) == (expected.prompt_tokens, expected.output_tokens)
    assert found.merged_events == (found.event_ns[0] == found.event_ns[1])


JUNK = [
    b"data: ",
    b"event: x\n",
    b"\n\n",
    b"\r\n",
    b"[DONE]",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"null",
    b'"type":',
    b'"error":',
]
JUNK += [
    b'"choices":',
    b'"delta":',
    b'"usage":',
    b'"content":',
    b'"hi"',
    b"1",
    b"\xff",
    b"5\r\n",
    b"0\r\n\r\n",
    b'"response.x.delta"',
]


@pytest.mark.parametrize("name", TARGETS)
@given(
    junk=st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(JUNK), max_size=40).map(b"".join)),
    stream=st.booleans(),
    chunked=st.booleans(),
    headless=st.booleans(),
)
def test_garbage_is_a_failed_row_and_never_more(
    name: str, junk: bytes, stream: bool, chunked: bool, headless: bool
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"
    target: Any = TARGETS[name]
    try:
        found = target(host="h", stream=stream, keep_text=True).read(
            *(joined([junk], [1]) if headless else joined([head, junk], [1, 2]))
        )
    except WireError:
        assert headless
    else:
        assert found.status == "ok" or found.error
        finished = (0, "done", "", 1, 0, 2, *joined([head, junk], [1, 2]), 0, False)
        row = Row(0, 0, read_finished(finished, target(host="h", stream=stream), 1.0), ask=ASK)
        row.set_times(finished, 0)
        check_batch(batch_of([row]))


def test_messages_say_their_system_apart_and_their_length_always() -> None:
    data = Messages("h", "m", headers={"Anthropic-Version": "new"}).encode(ASK._replace(output_tokens=None), 0)
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"Anthropic-Version: new" in head
    assert head.lower().count(b"anthropic-version") == 1
    assert json.loads(body) == {
        "model": "m",
        "system": "be brief",
        "messages": [{"role": "user", "content": 'say "hi"\n'}],
        "max_tokens": 1024,
        "stream": True,
    }


def test_responses_and_embeddings_say_it_their_way() -> None:
    said = [json.loads(each("h", "m").encode(ASK, 0).partition(b"\r\n\r\n")[2]) for each in (Responses, Embeddings)]
    user = {"role": "user", "content": 'say "hi"\n'}
    inputs = [{"role": "system", "content": "be brief"}, user]
    assert said[0] == {"model": "m", "input": inputs, "stream": True, "max_output_tokens": 9}
    assert said[1] == {"model": "m", "input": 'be brief say "hi"\n'}


def test_a_function_is_told_what_is_asked_and_its_pieces_are_deliveries() -> None:
    target = Function("module:function", keep_text=True)
    assert msgspec.json.decode(target.encode(ASK, 4), type=Ask) == ASK
    found = target.read(*joined([b"hello", " wörld".encode()], [5, 7]))
    assert (found.status, list(found.event_ns), found.first_any_ns, found.text) == ("ok", [5, 7], 5, "hello wörld")
    assert Function("module:function").read(b"", b"").status == "ok"


def test_a_function_is_found_in_a_module_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # where it looks is added, and must not hide json from later tests
    (tmp_path / "mine.py").write_text("def ask(it):\n    return 'hi'\nclass A:\n    ask = len\nNUMBER = 3\n")
    assert find_function(f"{tmp_path}/mine.py:ask")(ASK) == "hi"
    inner: Any = find_function(f"{tmp_path}/mine.py:A.ask")
    assert inner is len
    outer: Any = find_function("inspect:getsource")
    assert outer is inspect.getsource
    for taken in ("json.py", "openloop.py"):
        (tmp_path / taken).write_text("def ask(it):\n    return 'hi'\n")
    monkeypatch.chdir(tmp_path)
    for name, sentence in {
        "json.py:ask": "json.py has the name of a module of Python's own, which it would hide; rename it",
        "json:ask": "rename it",
        "openloop.py:ask": "openloop.py has the name of another module in use, which it would hide; rename it",
        "ask": "'ask' names no function; write module:function",
        "no.such:ask": "cannot be loaded: ModuleNotFoundError",
        f"{tmp_path}/none.py:ask": "cannot be loaded: FileNotFoundError",
        f"{tmp_path}/mine.py:none": "cannot be loaded: AttributeError",
        f"{tmp_path}/mine.py:NUMBER": "is a int, and no function",
    }.items():
        with pytest.raises(SpecError) as caught:
            find_function(name)
        assert sentence in str(caught.value)


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


KEY = "sk-verysecret-0123456789"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (f"key {KEY} is not among 1", "key ... is not among 1"),
        *((f"{'p' * before} Bearer {KEY}", f"{'p' * before} ...") for before in (150, 180, 190, 199)),
        (f"{'p' * 280} Bearer {KEY}", f"{'p' * 280} ..."),
        (f"Bearer {KEY * 20}", "..." + "..." * 19),
        (f"it was {KEY[:12]}", "it was ..."),
        (f"it was {KEY[:15]}*** and no other", "it was ...*** and no other"),
        (json.dumps({"error": {"message": f"{'p' * 280} {KEY}"}}), f"{'p' * 280} ..."),
        (json.dumps({"detail": [{"input": KEY}]}), '[{"input":"..."}]'),
        ("tenant one and its partner", "tenant ..."),
        ("application/json is no text", "application/json is no text"),
    ],
)
def test_a_key_that_a_server_repeats_is_not_written_down(body: str, error: str) -> None:
    headers = {
        "Authorization": f"Bearer {KEY}",
        "X-N": "1",
        "X-Who": "one and its partner",
        "Accept": "application/json",
    }
    found = Chat("host", headers=headers).read(*joined([b"HTTP/1.1 401 No\r\n\r\n", body.encode()], [1, 2]))
    assert found.error == f"status 401: {error}"[:300]


def test_nor_in_any_other_text_of_an_answer() -> None:
    headers = {"Authorization": f"Bearer {KEY}", "X-Team": "platform"}
    target = Chat("host", headers=headers, keep_text=True, replica_header="X-Who")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Who: a {KEY}\r\n\r\n".encode()
    long = "a platform " * 100
    found = target.read(*joined([head, event({"content": f"{long}{KEY}"}), event({}, f"stop {KEY}")], [1, 2, 3]))
    assert (found.status, found.finish_reason, found.replica) == ("ok", "stop ...", "a ...")
    assert found.text == f"{long}..."


def test_nor_in_a_stream_nor_where_it_is_no_answer_at_all() -> None:
    target = Chat("host", headers={"Authorization": f"Bearer {KEY}"})
    event = json.dumps({"error": {"message": f"{'p' * 280} {KEY}"}}).encode()
    found = target.read(
        *joined([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: %b\n\n" % event], [1, 2])
    )
    assert found.error == f"an error in the stream: {'p' * 280} ..."[:300]
    with pytest.raises(WireError) as caught:
        Framing().feed(f"{'p' * 40} {KEY}\r\n\r\n".encode())
    lost = (0, BROKEN, str(caught.value), 0, 0, 0, b"", b"", 0, False)
    assert KEY[:6] not in (read_finished(lost, target, 1.0).error or "")


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "messages"])
def test_an_answer_that_holds_nothing_is_none(name: str) -> None:
    found = read_whole({}, target=HTTP[name])
    assert (found.status, (found.error or "")[:20]) == ("error", "the answer holds no ")
