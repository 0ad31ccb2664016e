"""proxy.yaml, and what a proxy overhears."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import SpecError
from openloop.load.targets import Chat
from openloop.load.wire import joined
from openloop.proxy import read_proxy
from openloop.proxy.hearing import Hearing
from tests.proxy.fakes import DONE, last, token

ONE = ["http://127.0.0.1:8001"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "missing required field `replicas`"),
        ({"replicas": []}, "there are no replicas"),
        ({"replicas": ONE, "routting": "round-robin"}, "unknown key 'routting'; did you mean 'routing'?"),
        ({"replicas": [{"url": "http://a", "nam": "b"}]}, "did you mean 'name'?"),
        ({"replicas": ONE, "routing": "round-robbin"}, "did you mean 'round-robin'?"),
        ({"replicas": ["ftp://a"]}, "'ftp://a' is no address of a replica"),
        ({"replicas": ["http://[a"]}, "'http://[a' is no address of a replica"),
        ({"replicas": ["http://a:99999"]}, "'http://a:99999' is no address of a replica"),
        ({"replicas": ["http://u:secret@a"]}, "holds a password"),
        ({"replicas": ["http://u:secret@[a"]}, "holds a password"),
        ({"replicas": [{"url": "http://a", "name": "b\nX-C: d"}]}, "it is also in a header"),
        ({"replicas": [*ONE, *ONE]}, "two replicas are called '127.0.0.1:8001'"),
        ({"replicas": ONE, "listen": "localhost"}, "'localhost' is nowhere to listen"),
        ({"replicas": ONE, "admission": "in-flite:most=3"}, "did you mean 'in-flight'?"),
        ({"replicas": ONE, "admission": "deadline"}, "needs a model of the replica"),
        ({"replicas": ONE, "slo": {"classes": {"a": "ttft<=1s"}}}, "give a default"),
        ({"replicas": ONE, "timeout": "0s"}, "timeout is 0s"),
        ({"replicas": ONE, "timeout": 5}, "in quotes, with its unit"),
        ({"replicas": ONE, "hedge": "soon"}, "'soon'"),
        ({"replicas": ONE, "token_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE holds no key"),
        ({"replicas": ONE, "largest_body": 3}, "largest_body is 3"),
        ({"replicas": ONE, "health": "health"}, "health is 'health'"),
        ({"replicas": ONE, "headers": {"sesion": "x"}}, "did you mean 'session'?"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_proxy(keys)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_file_in_the_docs_is_one_and_says_the_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
    written = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    found, plain = read_proxy(written), read_proxy({"replicas": ONE})
    chosen = ("replicas", "routing", "admission", "retry", "hedge", "slo")
    assert set(written) == {field.encode_name for field in msgspec.structs.fields(found)}
    for name in set(written) - set(chosen):
        assert getattr(found, name) == getattr(plain, name), name


STREAM = b": hello\n\ndata: \n\n" + token("one") + token("zwei \u00fc") + token("") + last(2) + DONE
IN_LINES = STREAM.replace(b', "', b',\ndata: "').replace(b"data: {", b"id: 7\ndata:{\ndata:")
BOM = b"\xef\xbb\xbf"


@given(
    st.sampled_from([STREAM, IN_LINES, BOM + STREAM.removeprefix(b": hello\n\n")]),
    st.lists(st.integers(1, len(STREAM) - 1), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_however_a_stream_is_written_and_cut_the_same_is_heard(stream: bytes, cuts: list[int], end: bytes) -> None:
    stream = stream.replace(b"\n", end)
    bounds = [0, *sorted(cuts), len(stream)]
    hearing = Hearing(True)
    for now, (a, b) in enumerate(pairwise(bounds)):
        hearing.feed(stream[a:b], now)
    found = hearing.close()
    assert (found.status, found.finish_reason, len(found.event_ns)) == ("ok", "stop", 2)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (7, 4, 2)
    assert list(found.event_ns) == sorted(found.event_ns)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([token("a"), last(1), DONE, b"data: ", b"\n", b"[" * 2000])))
def test_whatever_a_replica_says_is_survived(pieces: list[bytes]) -> None:
    for streamed in (True, False):
        hearing = Hearing(streamed)
        for now, piece in enumerate(pieces):
            hearing.feed(piece, now)
        found = hearing.close()
        assert found.status in ("ok", "error")
        assert (found.status == "error") == (found.error is not None)


def test_tokens_are_counted_where_the_replica_tells() -> None:
    hearing = Hearing(True)
    listed = b'data: {"choices": [{"delta": {"content": "%b"}, "token_ids": [1, 2, 3]}]}\n\n'
    hearing.feed(listed % b"abc", 1)
    hearing.feed(listed % b"def" + last(6), 2)
    assert hearing.close().event_tokens == [3, 3]


def _event(words: str, listed: int | None, usage: int | None) -> bytes:
    choice = {
        "index": 0,
        "delta": {"content": words},
        "logprobs": None if listed is None else {"content": [1] * listed},
    }
    return b"data: " + json.dumps({"choices": [choice], "usage": {"completion_tokens": usage}}).encode() + b"\n\n"


@given(
    st.lists(
        st.builds(_event, st.sampled_from(["a", ""]), st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 1, 3]))
    )
)
def test_a_stream_is_the_same_to_who_asks_and_to_who_passes_it_on(events: list[bytes]) -> None:
    reads = [*events, last(9)]
    hearing = Hearing(True)
    for now, each in enumerate(reads, start=1):
        hearing.feed(each, now)
    heard = hearing.close()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    got = Chat("host").read(*joined([head, *reads], range(len(reads) + 1)))
    heard.http_status = got.http_status
    assert heard == got
