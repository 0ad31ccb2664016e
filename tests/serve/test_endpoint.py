"""The built-in endpoint speaks the dialect, keeps the truth, and misbehaves on command."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openloop.serve import Behaviour, Endpoint, Slots
from openloop.serve import endpoint as endpoint_module
from openloop.serve.process import RunningEndpoint, endpoint_process


@pytest.fixture
def server() -> Iterator[RunningEndpoint]:
    endpoint = Endpoint(Slots(count=2, prefill=0.001))
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    served = RunningEndpoint(f"http://127.0.0.1:{endpoint.port}")
    yield served
    endpoint.stop()
    thread.join(5)


def ask(server: RunningEndpoint, path: str = "/v1/chat/completions", number: int = 1, **body: Any) -> str:
    said = {"model": "openloop", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4} | body
    request = urllib.request.Request(server.url + path, json.dumps(said).encode(), {"X-Request-Id": str(number)})
    return str(urllib.request.urlopen(request, timeout=10).read(), "utf-8")


def refusal(what: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        what()
    with caught.value as error:
        return error.code, json.loads(error.read())["error"]["message"]


def test_it_streams_chat(server: RunningEndpoint) -> None:
    text = ask(server, stream=True, stream_options={"include_usage": True})
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["delta"]["content"] for e in events[1:5]] == [" the", " quick", " brown", " fox"]
    assert events[5]["choices"][0]["finish_reason"] == "length"
    assert events[6]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert text.endswith("data: [DONE]\n\n")


def test_it_answers_at_once_and_in_the_older_dialect(server: RunningEndpoint) -> None:
    chat = json.loads(ask(server))
    assert chat["choices"][0]["message"]["content"] == "the quick brown fox"
    streamed = [json.loads(line[6:]) for line in ask(server, stream=True).split("\n\n") if line.startswith("data: {")]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in streamed).strip() == "the quick brown fox"
    completion = json.loads(ask(server, "/v1/completions", messages=None, prompt="a b"))
    assert completion["choices"][0]["text"] == "the quick brown fox"
    assert completion["usage"]["prompt_tokens"] == 2
    assert "text" in ask(server, "/completions", messages=None, prompt="a b", stream=True)


def said_until_closed(server: RunningEndpoint, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize("wish", [b"close", b"TE, Close"])
def test_who_wants_no_more_is_left_after_the_answer(wish: bytes, server: RunningEndpoint) -> None:
    body = b'{"model": "openloop", "messages": [], "stream": true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nConnection: %b\r\nContent-Length: %d\r\n\r\n" % (wish, len(body))
    assert said_until_closed(server, head + body).endswith(b"0\r\n\r\n")


def test_a_request_in_chunks_is_refused_once(server: RunningEndpoint) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    said = said_until_closed(server, request)
    assert said.startswith(b"HTTP/1.1 413")
    assert said.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_it_listens_on_ipv6(host: str) -> None:
    endpoint = Endpoint(Slots(), host=host)
    assert endpoint.host == "[::1]"
    endpoint.close()


def test_only_answers_that_came_to_their_end_are_successes(server: RunningEndpoint) -> None:
    ask(server, stream=True)
    server.behave(fault="cut")
    ask(server, stream=True)
    assert "vllm:request_success_total 1\n" in server._ask("GET", "/metrics").decode()


def test_it_keeps_the_truth(server: RunningEndpoint) -> None:
    before = time.monotonic_ns()
    ask(server, number=7, stream=True)
    after = time.monotonic_ns()
    [(number, (arrived, written))] = server.truth().items()
    assert number == 7
    assert before < arrived < written[0] < written[-1] < after
    assert len(written) == 4
    assert 3.0 <= (written[0] - arrived) / 1e6 < 1000.0  # three words at a millisecond each
    assert 10.0 <= (written[3] - written[0]) / 1e6 < 2000.0  # and three gaps of ten, less what the first was late
    assert not server.truth()


def test_requests_beyond_its_slots_wait(server: RunningEndpoint) -> None:
    threads = [threading.Thread(target=ask, args=(server,), kwargs={"number": i, "stream": True}) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = sorted((written[0] - arrived) / 1e6 for arrived, written in server.truth().values())
    assert first[2] > first[1] + 10.0


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v1/chat/completions", {"model": "gpt-9"}, 404, "the model 'gpt-9' does not exist; there is 'openloop'"),
        ("/v1/chat/completions", {"max_tokens": 0}, 400, "Expected `int` >= 1"),
        ("/v1/embeddings", {}, 404, "there is nothing at POST /v1/embeddings"),
    ],
)
def test_it_refuses_in_words(
    server: RunningEndpoint, path: str, body: dict[str, Any], status: int, sentence: str
) -> None:
    found, told = refusal(lambda: ask(server, path, **body))
    assert found == status
    assert sentence in told


def test_it_tells_its_models_and_metrics(server: RunningEndpoint) -> None:
    ask(server)
    models = json.loads(urllib.request.urlopen(server.url + "/v1/models").read())
    assert [model["id"] for model in models["data"]] == ["openloop"]
    metrics = urllib.request.urlopen(server.url + "/metrics").read().decode()
    assert "vllm:request_success_total 1\n" in metrics
    assert "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 4\n" in metrics
    assert "vllm:prompt_tokens_total 3\n" in metrics


@pytest.mark.parametrize(("fault", "status"), [("error", 500), ("unauthorized", 401), ("overloaded", 503)])
def test_it_fails_on_command(server: RunningEndpoint, fault: str, status: int) -> None:
    server.behave(fault=fault)
    assert refusal(lambda: ask(server)) == (status, f"{fault}, as commanded")
    server.behave()
    assert ask(server)


def test_it_cuts_streams_on_command(server: RunningEndpoint) -> None:
    server.behave(fault="cut")
    text = ask(server, stream=True)
    assert 'finish_reason":"length' not in text
    server.behave(fault="late")
    assert "it broke, as commanded" in ask(server, stream=True)


def test_a_client_that_gave_up_on_a_drip_does_not_end_the_server(
    server: RunningEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "DRIP_NS", 20_000_000)
    server.behave(fault="drip")
    body = b'{"model": "openloop", "max_tokens": 2, "stream": true, "messages": []}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address) as client:
        client.sendall(head + body)
        assert client.recv(1) == b"H"
    others = [socket.create_connection(address) for _ in range(4)]  # one of them gets the number of the first
    server.behave()
    for other in others:
        with other, other.makefile("rb") as reply:
            other.settimeout(10)
            time.sleep(0.05)  # for the next byte of the drip
            other.sendall(head + body)
            assert reply.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_drip_has_an_end(server: RunningEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its connection is free for the next request."""
    monkeypatch.setattr(endpoint_module, "DRIP_NS", 10_000)
    server.behave(fault="drip")
    body = b'{"model": "openloop", "max_tokens": 2, "stream": true, "messages": []}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=5) as client:
        for _ in range(2):
            client.sendall(head + body)
            said = b""
            while not said.endswith(b"0\r\n\r\n"):
                said += client.recv(65536)
            assert b"data: [DONE]" in said


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"content": [{"type": "text", "text": "a b c"}, {"type": "text", "text": "d"}]}]}, 4),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 1),
        ({"messages": None, "prompt": ["a b", "c"]}, 3),
        ({"messages": None, "prompt": [11, 12, 13, 14]}, 4),
    ],
)
def test_prompts_in_parts_are_counted(server: RunningEndpoint, body: dict[str, Any], tokens: int) -> None:
    assert json.loads(ask(server, **body))["usage"]["prompt_tokens"] == tokens


def test_it_slows_down_on_command(server: RunningEndpoint) -> None:
    server.behave(slowness=5.0)
    ask(server, number=7, stream=True)
    [(arrived, written)] = server.truth().values()
    assert (written[0] - arrived) / 1e6 >= 15.0
    assert (written[3] - written[0]) / 1e6 >= 130.0


def test_a_command_changes_nothing_about_answers_that_are_on_their_way(server: RunningEndpoint) -> None:
    body = b'{"model": "openloop", "max_tokens": 2, "stream": true, "messages": []}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    for early in (False, True):
        server.behave(slowness=100.0, early_role=early)
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(head + body)
            server.behave(early_role=not early)
            said = b""
            while not said.endswith(b"0\r\n\r\n"):
                said += client.recv(1 << 16)
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.count(b"HTTP/1.1 200 OK\r\n") == 1


def test_a_stall_needs_some_time_to_come_back_in(server: RunningEndpoint) -> None:
    assert "0.001" in refusal(lambda: server.behave(stall_s=1, every_s=0))[1]
    assert ask(server)


def test_it_is_asked_for_the_truth_through_no_proxy(server: RunningEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)  # which knows the proxy of when it was made
    assert server.truth() == {}


def test_it_refuses_a_command_that_it_does_not_know(server: RunningEndpoint) -> None:
    assert "falut" in refusal(lambda: server.behave(falut="cut"))[1]


def test_a_stall_holds_everything_back() -> None:
    how = Behaviour(stall_s=1.0, every_s=10.0)
    assert how.stalled_until(500_000_000, 0) == 1_000_000_000
    assert how.stalled_until(1_500_000_000, 0) == 1_500_000_000
    assert how.stalled_until(20_300_000_000, 0) == 21_000_000_000
    assert Behaviour().stalled_until(5, 0) == 5


def test_it_runs_in_a_process_of_its_own() -> None:
    with endpoint_process("slots:count=1") as server:
        assert ask(server)
    with pytest.raises(OSError, match="refused"):
        ask(server)
