"""Machine code and Python find the same in a stream, whatever it says and however it is cut."""

import itertools
import platform
import sys
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.load.reply import Events, Reply, skimmer
from openloop.load.skim import EVENTS, SAID, reads_of
from openloop.load.targets import TARGETS, JsonTarget
from openloop.load.wire import joined
from openloop.native.kept import PLAIN

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
needs_code = pytest.mark.skipif(
    PLAIN or (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="Python has to do it here"
)


def chunked(data: list[bytes]) -> bytes:
    lines = [b"data: %b\n\n" % each for each in data]
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in lines) + b"0\r\n\r\n"


def chat(word: Any, **more: Any) -> bytes:
    return msgspec.json.encode({"choices": [{"delta": {"content": word}, "finish_reason": None, **more}], "model": "m"})


def outcome(
    raw: bytes,
    edges: list[int],
    name: str = "chat",
    *,
    code: bool = True,
    keep: bool = False,
    stamps: list[int] | None = None,
) -> dict[str, Any]:
    kind = TARGETS[name]
    assert issubclass(kind, JsonTarget)
    blocks = [raw[a:b] for a, b in itertools.pairwise([0, *edges, len(raw)])]
    stamps = stamps or list(range(1, len(blocks) + 1))
    with mock.patch("openloop.load.reply.skimmer", skimmer if code else lambda: None):
        return msgspec.structs.asdict(kind(host="h", keep_text=keep).read(*joined(blocks, stamps)))


def sizes(events: Events) -> list[int]:
    return [run[2] for run in events.runs]


def runs(data: list[bytes]) -> list[int]:
    return sizes(Reply(*joined([chunked(data)], [7])).events())


@needs_code
def test_what_differs_by_a_word_is_decoded_once() -> None:
    words = ["one", " two", "\n", ' "three" ', " fünf", "六", "😀", "\x7f", "", "\x00", " eight"]
    data = [chat(word) for word in words] + [b"[DONE]"]
    found = Reply(*joined([chunked(data)], [7])).events()
    assert sizes(found) == [8, 1, 1, 1, 1]
    assert found.data == [data[place] for place in (0, 8, 9, 10, 11)]
    assert list(found.stamps) == [7] * 12


@needs_code
def test_a_space_after_a_key_is_no_difference() -> None:
    assert runs([b'{"choices": [{"delta": {"content": "%b"}}]}' % word for word in (b"a", b"b", b"")]) == [2, 1]


@needs_code
def test_what_differs_elsewhere_is_another_run() -> None:
    ended = [chat("a"), chat("b", finish_reason="stop"), chat("c", index=1), chat("d", finish_reason="length"), b"x"]
    assert runs(ended) == [1] * 5
    assert runs([b'{"error":"a"}', b'{"error":"b"}']) == [1, 1]


EDGES = b'\x1f "/\\anux\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5'


@needs_code
@pytest.mark.parametrize("first", EDGES)
def test_a_word_is_what_can_be_decoded(first: int) -> None:
    """Of letters at the edges of what is one, alone and at the end of what may be one."""
    for rest in itertools.chain.from_iterable(itertools.product(EDGES, repeat=size) for size in range(3)):
        for more in (b"", b"\x80", b"\x80\xbf"):
            word = bytes([first, *rest]) + more
            data = b'{"content":"%b"}' % word
            try:
                fine = set(msgspec.json.decode(data, type=dict[str, str])) == {"content"}
            except (msgspec.DecodeError, UnicodeDecodeError):
                fine = False
            assert (runs([b'{"content":"a"}', data]) == [2]) is fine or b"\\u" in word, word


@pytest.mark.parametrize("code", [True, False])
def test_words_that_one_read_brought_are_merged_and_no_time_is_before_the_one_ahead(code: bool) -> None:
    said = [chat(word) for word in ("", "a", "b", "c", "d")] + [chat("e", finish_reason="stop")]
    raw = chunked(said)
    ends = [raw.index(each) + len(each) + 4 for each in said]
    found = outcome(raw, [ends[1], ends[3], ends[4]], code=code, stamps=[50, 90, 70, 100])
    assert list(found["event_ns"]) == [50, 90, 90, 90, 100]  # and not 70
    assert found["merged_events"] == 1  # b and c; a came with a role, which is no word
    assert outcome(raw, [ends[3]], code=code)["merged_events"] == 3


@pytest.mark.parametrize("code", [True, False])
def test_every_event_of_a_run_brings_its_tokens(code: bool) -> None:
    said = [chat(word, token_ids=[1, 2]) for word in ("a", "b", "c")]
    said += [chat("d", token_ids=[1]), chat("e", finish_reason="stop", token_ids=[1])]
    found = outcome(chunked(said), [], code=code)
    assert (found["event_tokens"], len(found["event_ns"])) == ([2, 2, 2, 1, 1], 5)
    usages = [
        msgspec.json.encode(msgspec.json.decode(chat(word)) | {"usage": {"completion_tokens": 3}}) for word in "ab"
    ]
    found = outcome(chunked([*usages, chat("", finish_reason="stop")]), [], code=code)
    assert found["event_tokens"] is None  # the second would have brought none


@needs_code
@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"0\r\n\r\n",
        chunked([b"1"])[:-2],
        chunked([b"1"]) + b"x",
        chunked([b""]),
        chunked([b"1\ndata: 2"]),
        chunked([b"1\r"]),
        chunked([b"1"]).replace(b"data: ", b"event:"),
        chunked([b"1"]).replace(b"9\r\n", b"99999999\r\n"),
        chunked([b"1"]).replace(b"9\r\n", b"\r\n"),
        chunked([b"1" * SAID]),
        chunked([b"1"] * (EVENTS + 1)),
    ],
)
def test_what_is_not_ordinary_is_left_to_python(raw: bytes) -> None:
    code = skimmer()
    assert code is not None
    marks = joined([raw], [7])[1]
    assert code.find(raw, len(HEAD), marks) is None
    assert code.find(chunked([b"1"]), len(HEAD), marks) is not None
    assert code.find(chunked([b"1"]), len(HEAD), b"") is None  # nobody knows when it came


WORDS = st.sampled_from(
    ["a", " b", "c", "", '"', "\\", "\n", "é", "六", "\x7f", "x" * 300, 'content":"', "[DONE]", None]
)
TOLD = st.sampled_from(
    [{}, {"finish_reason": "stop"}, {"index": 1}, {"token_ids": [1]}, {"token_ids": [1, 2]}, {"text": "t"}]
)
EVENT = st.one_of(
    st.builds(lambda word, more: chat(word, **more), WORDS, TOLD),
    st.builds(lambda word: msgspec.json.encode({"choices": [{"text": word}]}), WORDS),
    st.builds(lambda word: msgspec.json.encode({"choices": [{"delta": {"reasoning_content": word}}]}), WORDS),
    st.builds(lambda count: b'{"choices":[],"usage":{"completion_tokens":%d}}' % count, st.integers(0, 9)),
    st.builds(lambda word: msgspec.json.encode({"error": {"content": word}}), WORDS),
    st.sampled_from(
        [
            b"[DONE]",
            b"{",
            b" ",
            b"{}{}",
            b'{"choices":[{"delta":{"content":"a}]}',
            b'{"choices":[{"delta":{"content":"\xff"}}]}',
            chat("@").replace(b"@", b"\xed\xa0\x80"),
            chat("@").replace(b"@", b"\\x"),
        ]
    ),
)


@given(
    data=st.lists(EVENT, min_size=1, max_size=30),
    places=st.lists(st.integers(0, 10_000), max_size=12),
    name=st.sampled_from(["chat", "completions", "responses", "messages"]),
    keep=st.booleans(),
)
def test_a_stream_says_the_same_to_machine_code_and_to_python(
    data: list[bytes], places: list[int], name: str, keep: bool
) -> None:
    raw = chunked(data)
    edges = sorted({len(HEAD) + place % (len(raw) - len(HEAD)) for place in places})
    found = outcome(raw, edges, name, keep=keep)
    assert found == outcome(raw, edges, name, code=False, keep=keep)
    blocks = [raw[a:b] for a, b in itertools.pairwise([0, *edges, len(raw)])]
    all_of_it, marks = joined(blocks, range(1, len(blocks) + 1))
    kind, code = TARGETS[name], skimmer()
    skimmed = code.find(all_of_it, len(HEAD), marks) if code and not keep else None
    if skimmed:  # as a worker would hand it over
        assert msgspec.structs.asdict(kind(host="h").read(HEAD, skimmed)) == found
        assert reads_of(skimmed) == len(blocks)


@pytest.mark.parametrize("code", [True, False])
def test_an_event_of_two_values_is_none_and_one_of_none_does_not_make_up_for_it(code: bool) -> None:
    raw = chunked([chat("a"), b" ", chat("b"), b"{}{}", chat("c", finish_reason="stop")])
    found = outcome(raw, [], code=code)
    assert (found["status"], len(found["event_ns"])) == ("error", 1)
