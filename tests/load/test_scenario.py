"""A scenario file is read strictly, and flags change single values of it."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import openloop as ol
from openloop.distributions import Fixed
from openloop.errors import SpecError
from openloop.load.address import Address, Place, find_place
from openloop.load.exchange import measure_scale, only_model
from openloop.load.reply import Reply
from openloop.load.scenario import STARTER, Scenario, _sites, read_scenario, run_scenario
from openloop.load.targets import Chat, JsonTarget, Responses
from openloop.load.wire import joined
from openloop.serve.process import endpoint_process
from openloop.workload import Synthetic, Words
from tests.load.counting import counting_server

MINE = """
target: {url: "http://localhost:9", model: m}
arrivals: "constant:rate=5"
for: 2s
slo: "ttft<=1s"
"""


def scenario(folder: Path, text: str = MINE, **flags: Any) -> Scenario:
    path = folder / "s.yaml"
    path.write_text(text)
    return read_scenario(path, {name.replace("__", "."): value for name, value in flags.items()})


def test_the_starter_is_a_scenario(tmp_path: Path) -> None:
    found = scenario(tmp_path, STARTER)
    assert found.target.url == "http://localhost:8000"
    assert found.horizon_s == 60.0
    assert found.objectives() is not None


def test_what_the_starter_has_in_comments_is_a_scenario_too(tmp_path: Path) -> None:
    """Each line that is commented out, by itself, in place of the one that it would replace."""
    shown = [line for line in STARTER.splitlines() if line.strip().startswith("# ") and ": " in line]
    for line in shown:
        key = line.strip().removeprefix("# ").split(":")[0]
        if key in ("workload", "trace") or " " in key or "{class" in line:
            continue
        inside = line.startswith("  ")
        bare = line.replace("# ", "", 1)
        text = MINE.replace("model: m}", f"model: m, {bare.split('#')[0].strip()}}}") if inside else f"{MINE}\n{bare}"
        if key in ("spend", "limits"):
            text += "\nprices: {per_hour: 1.0}"
        if key == "events":
            text = text.replace("for: 2s", "for: 60s")
        if key == "repair":
            text += "\ngates: [json]"
        if key != "model":
            scenario(tmp_path, text)


def test_flags_change_single_values(tmp_path: Path) -> None:
    found = scenario(tmp_path, rate=9.0, prompt="77", target__model="other", limits__requests=5)
    assert found.arrivals == "poisson:rate=9.0"
    assert found.read_workload().classes[0].source == Synthetic(Fixed(77), Fixed(64))
    assert (found.target.model, found.target.url) == ("other", "http://localhost:9")
    assert found.limits.requests == 5
    assert found.horizon_s == 2.0


def test_classes_bring_their_slo(tmp_path: Path) -> None:
    text = (
        MINE
        + """
workload:
  - {class: chat, share: 70%, source: "synthetic:prompt=10", slo: "ttft<=1s"}
  - {class: documents, share: 0.3, source: "synthetic:prompt=1000", slo: "ttft<=9s"}
"""
    )
    found = scenario(tmp_path, text)
    objectives = found.objectives()
    assert objectives is not None
    assert [str(objectives.of(name)) for name in ("chat", "documents", None)] == ["ttft<=1s", "ttft<=9s", "ttft<=1s"]
    assert [each.share for each in found.read_workload().classes] == [0.7, 0.3]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MINE.replace("arrivals", "arivals"), "unknown key 'arivals'; did you mean 'arrivals'?"),
        (MINE.replace("model", "modle"), "unknown key 'modle' in 'target'; did you mean 'model'?"),
        (MINE.replace("for: 2s", "for: 2"), "Expected `str`, got `int` at `for`, found 2"),
        (MINE.replace("for: 2s", "for: soon"), "for: 'soon'"),
        (MINE.replace('"constant:rate=5"', '"konstant:rate=5"'), "did you mean 'constant'?"),
        (MINE.replace('"ttft<=1s"', '"ttfd<=1s"'), "unknown gate 'ttfd'"),
        (MINE.replace('url: "http://localhost:9", ', ""), "say whom to ask"),
        (MINE + "workload: synthetc", "did you mean 'synthetic'?"),
        (MINE + "limits: {spend: 3}", "needs prices"),
        (MINE + "workers: 0", "workers is 0; it is at least 1"),
        (MINE + "retry: often", "retry policy"),
        (MINE + "hedge: later", "later"),
        (MINE + "tokens_per_word: 1000", "a word has about 1.3"),
        (MINE + "closed: 3", "a closed loop has no arrivals"),
        ("- a\n- b\n", "holds no keys"),
        (MINE.replace("model: m", "model: m, api: grpc"), "unknown api 'grpc'"),
        (MINE + "workload: [{class: a, share: 50%, source: synthetic}]", "add up to 0.5"),
        (MINE + "workload: [{class: a, share: 50%, source: synthetic}, {class: a, share: 50%, source: synthetic}]",
         "the same name"),
        (MINE + "workload: [{class: a, shar: 50%, source: synthetic}]", "unknown key 'shar' in 'workload.0.'; did you"),
        (MINE + "workload: [{class: a, share: .nan, source: synthetic}]", "'nan' is not"),
        (MINE + "workload: [{class: a, share: -1, source: synthetic}, {class: b, share: 2, source: synthetic}]",
         "'-1.0' is not a share"),
        (MINE + "workload: [{class: '', share: 0.5, source: synthetic}, {class: b, share: 0.5, source: synthetic}]",
         "has no name"),
        (MINE + "limits: {requests: 0}", "requests is 0; it is at least 1"),
        (MINE + "prices: {per_hour: 1}\nlimits: {spend: .nan}", "spend is nan; it is a sum of money"),
        (MINE + "gates: [jsn]", "unknown quality gate 'jsn'; did you mean 'json'?"),
        (MINE + "gates: 3", "gates is 3; it is a file, a gate such as json, or a list of them"),
        (MINE + "gates: {clases: {}}", "unknown key 'clases'; did you mean 'classes'?"),
        (MINE + "events: [{at: 9s, kind: deploy}]", "event 'deploy' is at 9s, and the run is over after 2s"),
        (MINE + "events: [{at: soon, kind: deploy}]", "event 'deploy': at: 'soon'"),
        (MINE + "repair: 1", "a repair needs a quality gate"),
        (MINE + "gates: [json]\nrepair: 99", "it must be at most 10"),
        (MINE + "prices: nowhere.yaml", "nowhere.yaml cannot be read"),
        (MINE + "prices: {per_request: -1}", "Expected `float` >= 0.0"),
        (MINE + "warmth: warm-cache\nfacts: {cache_warmth: cold}", "'warm-cache', and facts say 'cold'"),
        (MINE + "workers: 65", "workers is 65; it is at most 64"),
        (MINE + "workers: 3\nconnections: 2", "connections is 2, which 3 workers cannot share"),
        (MINE + "timeout: 0s", "timeout is 0s"),
        (MINE + "hedge: 0s", "after is 0s"),
        (MINE + "hedge: p0", "after is p0"),
        (MINE.replace('"ttft<=1s"', "5"), "the SLO is 5; write gates"),
        (MINE.replace('"ttft<=1s"', "{classes: [a]}")
         + "workload: [{class: a, share: 1, source: synthetic, slo: 'ttft<=2s'}]", "Expected `object.*got `array`"),
        (MINE.replace('arrivals: "constant:rate=5"', "closed: 3") + "retry: '2'", "a closed loop asks nobody twice"),
        (MINE.replace('arrivals: "constant:rate=5"', "closed: 3") + "hedge: 1ms", "a closed loop asks nobody twice"),
        (MINE.replace("model: m", "model: m, api: python") + "hedge: 1ms", "a Python function is not hedged"),
        ("", "say whom to ask"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence.replace("?", r"\?")):
        scenario(tmp_path, text)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"rate": 3.0, "arrivals": "poisson:rate=3"}, "give one of them"),
        ({"prompt": "3", "workload": "sessions"}, "are for synthetic requests"),
        ({"retry": "²"}, "is no retry policy"),
        ({"extra": "[1]"}, "is no JSON object"),
        ({"extra": '{"max_tokens": 2}'}, "extra says max_tokens, and so does --output"),
        ({"header": ["Nothing"]}, "--header 'Nothing' is none"),
        ({"header": ["X-Team: a", "x-team: b"]}, "--header 'x-team' is given twice"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said(tmp_path: Path, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        scenario(tmp_path, **flags)


def test_a_scenario_is_run_as_it_says(tmp_path: Path) -> None:
    with endpoint_process("slots:count=100,prefill=0s,gap=1ms") as server:
        text = f"""
target: {{url: "{server.url}", headers: {{X-Team: search}}}}
workload: "synthetic:prompt=30,output=4"
arrivals: "constant:rate=50"
for: 2s
slo: {{default: "ttft<=1s"}}
prices: {{per_hour: 3.0}}
facts: {{engine: slots, hardware: none, cache_warmth: cold}}
"""
        run = run_scenario(scenario(tmp_path, text), tmp_path / "run")
    assert run.num_rows == 100
    assert run.manifest.engine == "slots"
    assert run.manifest.cache_warmth == "cold"
    assert {row["prompt_tokens"] for row in run.head(100)} == {30}
    score = ol.score(run)
    assert score.attainment == 1.0
    assert score.cost is not None
    assert score.server is not None


def test_a_server_that_counts_more_tokens_than_words_gets_fewer_words(tmp_path: Path) -> None:
    """It counts two for each word and seven more: 100 tokens are 46 words (47, but for what is rounded)."""
    with counting_server(per_word=2, overhead=7) as url:
        text = MINE.replace("http://localhost:9", url) + 'workload: "synthetic:prompt=100,output=1"\n'
        run = run_scenario(scenario(tmp_path, text + "drain: 2s"), tmp_path / "run")
    assert run.manifest.lengths is not None
    assert "words of 2 tokens and 7 more" in run.manifest.lengths
    assert {row["prompt_tokens"] for row in run.head(100)} <= {99, 100, 101}
    assert not any("how the server counts" in note for note in run.manifest.notes)


def test_what_is_secret_is_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    with endpoint_process("slots:gap=1ms") as server:
        url = f"{server.url}?key=sk-of-the-url"
        command = ["openloop", "run", "--target", url, f"--target={url}", "--header", "X-Key: sk-of-a-header"]
        flags = {"target.url": url, "header": ["X-Key: sk-of-a-header"], "rate": 5.0, "for": "500ms"}
        run_scenario(read_scenario(None, flags), tmp_path / "run", None, [*command, "--header=X-Key:sk-of-a-header"])
    written = b"".join(each.read_bytes() for each in (tmp_path / "run").iterdir())
    assert b"sk-of" not in written
    told = ol.open_run(tmp_path / "run").manifest
    assert told.target == f"{server.url}?..."
    shown = ["--target", f"{server.url}?...", f"--target={server.url}?..."]
    assert told.command == ["openloop", "run", *shown, "--header", "X-Key: ...", "--header=X-Key: ..."]


def test_what_a_server_says_is_written_without_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer({"data": [{"id": f"model-of-{self.headers['Authorization']}"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer({"error": {"message": f"nobody knows {self.path}"}})

        def answer(self, body: Any) -> None:
            asked.append(f"{self.path} {self.headers.get_all('Host')}")
            said = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            pass

    flags = {"header": ["host: elsewhere"], "rate": 5.0, "for": "500ms", "target.stream": False}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1?key=sk-of-the%20url"
        run = run_scenario(read_scenario(None, flags | {"target.url": url}), tmp_path / "run")
        server.shutdown()
    model, rows = asked[0], [each for each in asked if "chat" in each]
    assert model == "/v1/models?key=sk-of-the%20url ['elsewhere']"
    assert set(rows) == {"/v1/chat/completions?key=sk-of-the%20url ['elsewhere']"}
    assert run.manifest.model == "model-of-Bearer ..."
    assert {row["error"] for row in run.head(100)} == {"nobody knows /v1/chat/completions?key=..."}
    assert b"sk-of" not in b"".join(each.read_bytes() for each in (tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, {"error": {"message": "the key is wrong"}}, r"\(status 401: the key is wrong\); name one"),
        (200, {"object": "list"}, "missing required field `data`"),
        (200, {"data": [{"id": "a"}, {"id": "b"}]}, r"has 2 models \(a, b\); choose one"),
    ],
)
def test_a_server_that_does_not_name_its_model_is_quoted(status: int, body: Any, why: str) -> None:
    said = json.dumps(body).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as sock:
                sock.recv(1 << 16)
                sock.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(said), said))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SpecError, match=why):
            only_model(Place("", "", Address(socket.AF_INET, *listener.getsockname())), {})
        thread.join()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/a b", "http://127.0.0.1:9/v1?k=a b", "http://127.0.0.1:9/v1?k=\u00e4"]
)
def test_an_address_that_no_request_can_have_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="percent-encoded"):
        find_place(url)


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@h", "me:hunter2@h:99999", "ftp://hunter2@h", "http://h:x?k=hunter2"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SpecError) as refused:
        find_place(url)
    assert "hunter2" not in str(refused.value)


def test_a_header_that_is_given_goes_before_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    found = scenario(tmp_path, target__url="http://127.0.0.1:9", header=["authorization: mine"])
    assert _sites(found.target, ["http://127.0.0.1:9"])[0][1].headers == {"authorization": "mine"}


def test_gates_are_a_list_a_file_or_what_stands_in_one(tmp_path: Path) -> None:
    (tmp_path / "gates.yaml").write_text("default: [json]\nclasses: {free: ['length:most=9']}\n")
    for gates in (f"gates: {tmp_path}/gates.yaml", "gates: {default: [json], classes: {free: ['length:most=9']}}"):
        gating = scenario(tmp_path, f"{MINE}\n{gates}").read_gating()
        assert str(gating) == "default: json; free: length:most=9"
    assert str(scenario(tmp_path, f"{MINE}\ngates: json").read_gating()) == "json"
    assert (
        str(scenario(tmp_path, f"{MINE}\ngates: [json]", gates=("json", "finish:stop")).read_gating())
        == "json and finish"
    )


def test_what_will_be_done_is_marked(tmp_path: Path) -> None:
    found = scenario(tmp_path, events=("1s=deploy", "1500ms = restart of b"))
    assert [(each.at, each.kind) for each in found.events] == [("1s", "deploy"), ("1500ms", "restart of b")]
    with pytest.raises(SpecError, match="--event 'deploy' is none; write it as 30s=deploy"):
        scenario(tmp_path, events=("deploy",))


@pytest.mark.parametrize(("target", "fewest"), [(Chat, 1), (Responses, 16)])
def test_as_few_tokens_are_asked_for_before_a_run_as_the_server_takes(
    target: type[JsonTarget], fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def exchange(_: Place, request: bytes) -> Reply:
        asked.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        return Reply(*joined([b"HTTP/1.1 503 X\r\n\r\n"], [0]))

    monkeypatch.setattr("openloop.load.exchange.exchange", exchange)
    monkeypatch.setattr("openloop.load.exchange.RETRY_S", 0.0)
    measure_scale(Place("host", "", Address(0, "host", 0)), target("host", "model"), Words())
    assert {each.get("max_tokens", each.get("max_output_tokens")) for each in asked} == {fewest}
