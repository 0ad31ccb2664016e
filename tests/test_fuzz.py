"""Whatever a file or an argument holds, it is read or refused with a sentence. FUZZ=5000 tries as many of each."""

import contextlib
import itertools
import os
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openloop as ol
from openloop.arrivals import read_arrivals
from openloop.distributions import read_distribution
from openloop.errors import OpenloopError
from openloop.load.scenario import STARTER, read_scenario
from openloop.load.targets import Chat, Messages, Responses
from openloop.load.wire import WireError, joined
from openloop.persistence import read_hedge, read_retry
from openloop.quality import read_gating
from openloop.records.beside import TEXTS
from openloop.sim.fleet import read_fleet
from openloop.spec import read_yaml
from openloop.terms import NUMBER
from openloop.workload import read_source
from tests.runs import row, write_run
from validation.fuzz import CORPUS, readers, refusals

TRIES = int(os.environ.get("FUZZ", "25"))
often = settings(max_examples=TRIES, suppress_health_check=list(HealthCheck))
FILES = Path(__file__).parent / "importers" / "files"


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some of them changed, cut out, doubled or put in."""
    found = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "twice", "put"])):
            case "flip" if found:
                found[at] ^= draw(st.integers(1, 255))
            case "cut":
                del found[at : at + draw(st.sampled_from([1, 2, 8, 100, 10_000]))]
            case "twice":
                found[at:at] = found[at : at + draw(st.integers(1, 200))]
            case _:
                put = [b"null", b"-1", b"1e999", b'"', b"{", b"]", b"\x00", b"NaN", b"9" * 30, b"\xff\xfe", b"\n"]
                found[at:at] = draw(st.sampled_from(put))
    return bytes(found)


LETTERS = st.text(st.sampled_from("ttfpe2<>=,:;.%0123456789mshk/-+()[]{}'\"! \n\\x#&*|@_abcdλ∞"), max_size=60)
SPELT = (
    "ttft <= 500ms , tpot quality >= 1e999 -1 nan poisson: rate= gamma: cv= synthetic: prompt= uniform( ) % deadline"
)
MORE = "lognormal( retry: most= on= + p95 hedge: after= json regex: length: sessions: turns= think= trace: corpus:"
WORDS = st.lists(st.sampled_from(f"{SPELT} {MORE}".split()), max_size=8).map("".join)
TEXTS_GIVEN = st.one_of(LETTERS, WORDS, st.text(max_size=30))


@pytest.mark.parametrize(
    "read",
    [
        ol.parse_slo,
        read_arrivals,
        partial(read_distribution, value=NUMBER),
        read_source,
        read_retry,
        read_hedge,
        read_gating,
    ],
)
@often
@given(text=TEXTS_GIVEN)
def test_an_argument_is_read_or_refused(read: Any, text: str) -> None:
    with contextlib.suppress(OpenloopError):
        read(text)


@often
@given(data=st.data())
def test_a_scenario_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_bytes(data.draw(damaged(STARTER.encode())))
    with contextlib.suppress(OpenloopError):
        read_scenario(path)
    path.write_bytes(data.draw(damaged(b"model: 8b\ngpu: h100\nreplicas: 2\nmemory: {blocks: 100, block: 16}\n")))
    with contextlib.suppress(OpenloopError):
        read_fleet(path)
    path.write_bytes(data.draw(st.binary(max_size=60)))
    with contextlib.suppress(OpenloopError):
        read_yaml(path)


def _run(folder: Path) -> Path:
    rows = [row(i, 0.1 * i, [0.1, 0.2, 0.3], prompt_tokens=5, workload_class="chat") for i in range(120)]
    return write_run(folder, rows, batches=3, slo="ttft<=1s", model="m")


@pytest.mark.parametrize("name", ["run.json", "requests.parquet", "requests.arrows"])
@often
@given(data=st.data())
def test_a_damaged_run_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    _run(folder / "run")
    if name == "requests.arrows":
        spool = ol.RunWriter(folder / "spool", ol.Manifest(source="test", slo="ttft<=1s"))
        for batch in ol.open_run(folder / "run").batches():
            spool.append(batch)
        spool.close()
        (folder / "run").rename(folder / "old")
        (folder / "spool").rename(folder / "run")
    path = folder / "run" / name
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with contextlib.suppress(OpenloopError):
        run = ol.open_run(folder / "run")
        run.validate()
        ol.score(run)
    shutil.rmtree(folder)


@cache
def _samples() -> list[Path]:
    return sorted(each for each in FILES.rglob("*") if each.is_file() and each.stat().st_size < 200_000)


@often
@given(data=st.data())
def test_a_file_of_another_tool_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    sample = data.draw(st.sampled_from(_samples()))
    path = tmp_path / sample.name
    path.write_bytes(data.draw(damaged(sample.read_bytes())))
    with contextlib.suppress(OpenloopError):
        run = ol.load(path)
        run.validate()
        ol.score(run, "ttft<=1s")


STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3c\r\ndata: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n\r\n'
    b'4a\r\ndata: {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": null}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("kind", [Chat, Messages, Responses])
@often
@given(answer=damaged(STREAM), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_an_answer_is_read_or_refused(kind: Any, answer: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    blocks = [answer[a:b] for a, b in itertools.pairwise(places)]
    with contextlib.suppress(WireError):
        found = kind("host", "m").read(*joined(blocks, range(len(blocks))))
        assert found.status in ("ok", "error", "shed")


@pytest.mark.parametrize("name", readers())
def test_what_coverage_led_to_is_read_or_refused(name: str) -> None:
    """Inputs that `validation/fuzz.py` made up, each of which led to other code."""
    reader, corpus = readers()[name], sorted((CORPUS / name).iterdir())
    assert corpus
    for path in corpus:
        with contextlib.suppress(*refusals(name)):
            reader(path.read_bytes())


@often
@given(data=st.data())
def test_damaged_texts_are_a_note(data: st.DataObject, tmp_path: Path) -> None:
    (tmp_path / TEXTS.spool).write_bytes(data.draw(damaged(bytes(TEXTS.schema.serialize()))))
    TEXTS.read(tmp_path)
