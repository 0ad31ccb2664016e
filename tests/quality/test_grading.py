"""Grading fills a run's columns from its texts: once, in parallel, within limits, and again where it was left open."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from openloop.errors import RunError
from openloop.quality import Case, Pool, read_gating
from openloop.quality.grading import grade_run
from openloop.records import GRADES, TEXTS, open_run
from openloop.score import score
from tests.runs import row, write_run


def run_with(folder: Path, texts: list[str], **columns: Any) -> Path:
    """A run whose answers are these texts."""
    write_run(folder, [row(i, due=i / 10, tokens=[0.1], **columns) for i in range(len(texts))])
    writer = TEXTS.writer(folder)
    rows = [{"request_id": i, "attempt": 0, "prompt": f"what is {i}?", "text": text} for i, text in enumerate(texts)]
    writer.append(TEXTS.of(rows))
    writer.finish()
    return folder


def labels(folder: Path) -> list[bool | None]:
    return [each["quality"] for each in open_run(folder).head(10_000)]


def test_it_fills_the_columns_and_does_nothing_twice(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["1", "{", "[2]"])
    found = grade_run(folder, ["json"], jobs=2)
    assert (found.texts, found.graded, found.passed, found.failed) == (3, 3, 2, 1)
    assert labels(folder) == [True, False, True]
    assert open_run(folder).manifest.quality_gate == "json"
    assert sorted(path.name for path in folder.iterdir()) == [
        "grades.parquet",
        "requests.parquet",
        "run.json",
        "texts.parquet",
    ]
    before = (folder / "requests.parquet").stat().st_mtime_ns
    again = grade_run(folder, ["json"], jobs=2)
    assert (again.graded, again.passed, again.failed) == (0, 2, 1)
    assert (folder / "requests.parquet").stat().st_mtime_ns == before
    open_run(folder).validate()
    assert score(folder, "ttft<=1s, quality").accepted == 2


def test_grades_that_did_not_get_into_the_table_are_filled_in_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_with(tmp_path / "run", ["1", "{", "[2]"])
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    gate = [f"schema:path={tmp_path}/schema.json"]
    grade_run(folder, gate, jobs=1)
    assert labels(folder) == [True, False, False]
    (tmp_path / "schema.json").write_text('{"type": "array"}')
    with monkeypatch.context() as full:
        full.setattr("openloop.quality.grading.relabel", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            grade_run(folder, gate, jobs=1)
    assert labels(folder) == [True, False, False]
    found = grade_run(folder, gate, jobs=1)
    assert (found.graded, found.passed, found.failed) == (0, 1, 2)
    assert labels(folder) == [False, False, True]
    assert not (folder / GRADES.spool).exists()


def test_other_gates_replace_what_was_said_before(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["1", "{", "[2]"])
    grade_run(folder, ["json"], jobs=1)
    grade_run(folder, {"classes": {"another": ["json"]}, "default": []}, jobs=1)
    assert labels(folder) == [None, None, None]
    grade_run(folder, ["contains:{"], jobs=1)
    assert labels(folder) == [False, True, False]


def test_only_answers_that_were_completed_and_kept_are_judged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder, [row(0, tokens=[0.1]), row(1, due=1.0, status="error"), row(2, due=2.0, tokens=[0.1])])
    writer = TEXTS.writer(folder)
    writer.append(TEXTS.of([{"request_id": i, "attempt": 0, "prompt": "p", "text": "1"} for i in (0, 1)]))
    writer.finish()
    assert grade_run(folder, ["json"], jobs=1).texts == 1
    assert labels(folder) == [True, None, None]


def test_an_expression_that_would_run_forever_is_given_up_and_the_others_are_judged(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["a" * 40 + "b", "aaa", "bbb"])
    found = grade_run(folder, ["regex:pattern='^(a+)+$'"], jobs=1)
    assert labels(folder) == [None, True, False]
    assert found.open == {"regex:pattern='^(a+)+$' took longer than 5 s": 1}


def test_whatever_a_function_does_costs_its_own_case_only(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def check(case):\n"
        "    if case.text == 'die': os._exit(3)\n"
        "    if case.text == 'hang':\n"
        "        while True:\n"
        "            try: time.sleep(60)\n"
        "            except Exception: pass\n"
        "    return bool(1 / int(case.text))\n"
    )
    folder = run_with(tmp_path / "run", ["1", "die", "0", "hang", "2"])
    found = grade_run(folder, [f"python:function={tmp_path}/mine.py:check,limit=1s"], jobs=2)
    assert labels(folder) == [True, None, None, None, True]
    assert sorted(why.split(" ")[-1] for why in found.open) == ["died", "s", "zero"]


def test_a_process_that_does_not_even_hear_an_alarm_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("openloop.quality.pool.GRACE_S", 0.5)
    (tmp_path / "deaf.py").write_text(
        "import signal, time\n"
        "def check(case):\n"
        "    if case.text == 'deaf':\n"
        "        signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "        time.sleep(60)\n"
        "    return True\n"
    )
    pool = Pool(read_gating(f"python:function={tmp_path}/deaf.py:check,limit=200ms"), 1)
    try:
        pool.submit("warm", Case("well"))
        found: dict[Any, Any] = {}
        while pool.pending:
            found |= pool.finished(0.2)
        pool.submit("deaf", Case("deaf"))
        pool.submit("next", Case("well"))
        while pool.pending:
            found |= pool.finished(0.2)
    finally:
        pool.close()
    assert found["deaf"].why == "judging it took too long"
    assert found["next"].passed is True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody is idle in this way")
def test_who_grades_during_a_run_comes_after_all_others_and_hears_no_interrupt() -> None:
    """Only within a session: processors are shared by sessions where the kernel groups processes by these."""
    pool = Pool(read_gating("regex:'.'"), 1, idly=True)
    try:
        pool.submit(1, Case("yes", "?"))
        assert [grade.passed for _, grade in pool.finished(60.0)] == [True]
        pid = pool._workers[0].process.pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid
        ignored = int(re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())[1], 16)  # type: ignore[index]
        for touched in (
            signal.SIGTTIN,
            signal.SIGTTOU,
        ):  # the terminal, by a gate: a process that is stopped judges nothing
            assert ignored >> (touched - 1) & 1
    finally:
        pool.close()


def test_slices_are_filled_in(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prompts = ["is 3 more than 2?", "a refund please", "nothing"]
    write_run(folder, [row(i, due=float(i), tokens=[0.1]) for i in range(3)])
    writer = TEXTS.writer(folder)
    rows = [{"request_id": i, "attempt": 0, "prompt": each, "text": "yes"} for i, each in enumerate(prompts)]
    writer.append(TEXTS.of(rows))
    writer.finish()
    grade_run(folder, "contains:yes", jobs=1)
    for name in ("refunds", "money"):
        grade_run(folder, {"default": ["contains:yes"], "slices": {name: "contains:refund"}}, jobs=1)
        assert [each["slices"] for each in open_run(folder).head(3)] == ["numeric", name, None]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_it_goes_on_where_it_was(tmp_path: Path, how: int) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def check(case):\n"
        "    while int(case.text) >= 20 and not Path(__file__).with_name('go').exists(): time.sleep(0.05)\n"
        "    return True\n"
    )
    folder = run_with(tmp_path / "run", [str(i) for i in range(60)])
    gate = f"python:{tmp_path}/slow.py:check,limit=60s"
    command = [sys.executable, "-m", "openloop", "grade", str(folder), "--gate", gate, "--jobs", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run where nobody can interrupt
    )
    spool = folder / GRADES.spool
    until = time.monotonic() + 60
    while time.monotonic() < until and not (spool.exists() and GRADES.read_spool(folder)[0].num_rows):
        time.sleep(0.05)
    os.kill(process.pid, how)
    process.wait(timeout=20)
    (tmp_path / "go").touch()
    assert "Traceback" not in process.communicate(timeout=20)[1]
    kept = GRADES.read_spool(folder)[0].num_rows
    assert 0 < kept < 60
    spool.write_bytes(spool.read_bytes() + b"torn")
    found = grade_run(folder, [gate], jobs=4)
    assert found.graded == 60 - kept
    assert found.passed == 60
    assert labels(folder) == [True] * 60
    assert GRADES.read(folder)[0].num_rows == 60  # type: ignore[union-attr]


def test_runs_that_cannot_be_graded_say_why(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", [row(0, tokens=[0.1])])
    with pytest.raises(RunError, match="has no texts.parquet: outputs are kept by run --keep-texts or --gate"):
        grade_run(bare, ["json"])
    foreign = run_with(tmp_path / "foreign", ["1"])
    table = pq.read_table(foreign / "requests.parquet")
    pq.write_table(table.append_column("mine", [[7]]), foreign / "requests.parquet")
    with pytest.raises(RunError, match="has the column 'mine', which openloop would lose"):
        grade_run(foreign, ["json"])
    damaged = run_with(tmp_path / "damaged", ["1"])
    (damaged / "texts.parquet").write_bytes(b"garbage")
    with pytest.raises(RunError, match="texts.parquet is damaged, so the texts are missing"):
        grade_run(damaged, ["json"])


@contextmanager
def judge(replies: list[str], wait_s: float = 0.0) -> Iterator[str]:
    """A server that says these things in turn."""
    said = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": "judge-1"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = replies[next(said) % len(replies)]
            time.sleep(wait_s)
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            content = reply.replace("{model}", asked["model"])
            self._answer({"choices": [{"message": {"content": content}}], "usage": usage})

        def _answer(self, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):  # whoever asked is gone
                while b"slowly" in data:
                    self.wfile.write(data[:1])
                    data = data[1:]
                    time.sleep(0.1)
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_judge_votes_and_its_cost_is_counted(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["fine"])
    with judge(["PASS", "fail, I think", "Pass."]) as url:
        found = grade_run(folder, [f"judge:url={url},repeats=3,input=10,output=100"], jobs=1)
    assert labels(folder) == [True]
    assert open_run(folder).head(1)[0]["quality_score"] == pytest.approx(2 / 3)
    assert found.agreement == pytest.approx(2 / 3)
    assert found.cost == pytest.approx(3 * (100 * 10 + 10 * 100) / 1e6)
    scored = score(folder, "quality").cost
    assert scored is not None
    assert scored.judging == scored.total == pytest.approx(found.cost)


def test_a_judge_that_does_not_agree_with_itself_leaves_it_open(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["fine"])
    with judge(["PASS", "FAIL"]) as url:
        found = grade_run(folder, [f"judge:url={url}/v1,model=m,repeats=4"], jobs=1)
    assert labels(folder) == [None]
    assert found.open == {"the judge does not agree with itself": 1}


def test_nonsense_is_left_open_paid_for_and_asked_again(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["fine", "too"])
    gate = "judge:url={},repeats=2,output=100000"
    with judge(["maybe", "PASS or FAIL"]) as url:
        found = grade_run(folder, [gate.format(url)], jobs=1)
        assert found.open == {"the judge answers neither PASS nor FAIL": 2}
        assert found.cost == pytest.approx(4.0)
        assert grade_run(folder, [gate.format(url)], jobs=1).cost == pytest.approx(8.0)  # all of it is spent
    assert labels(folder) == [None, None]
    assert score(folder, "quality").cost.judging == pytest.approx(8.0)  # type: ignore[union-attr]


def test_a_judge_that_is_late_or_away_is_left_open(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["fine"])
    with judge(["PASS"], wait_s=2.0) as url:
        found = grade_run(folder, [f"judge:url={url},model=m,timeout=300ms"], jobs=1)
    assert found.open == {"the judge cannot be asked: it timed out": 1}
    found = grade_run(folder, ["judge:url=http://127.0.0.1:9,model=m"], jobs=1)
    assert "refused" in next(iter(found.open))


def test_what_a_judge_cost_until_its_alarm_is_counted(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["fine"])
    with judge(["PASS", "slowly"]) as url:
        found = grade_run(folder, [f"judge:url={url},model=m,repeats=2,timeout=300ms,input=10000"], jobs=1)
    assert next(iter(found.open)).endswith("took longer than 3.9 s")
    assert found.cost == pytest.approx(1.0)


def test_a_key_that_cannot_be_sent_is_not_in_the_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-verysecret\nsk-another1")
    folder = run_with(tmp_path / "run", ["fine"])
    found = grade_run(folder, ["judge:url=http://127.0.0.1:9,model=m"], jobs=1)
    assert [why[:70] for why in found.open] == ["the judge cannot be asked: Invalid header value b'Bearer ...\\n...'"]


def test_what_has_failed_is_not_shown_to_a_judge(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", ["no json"])
    found = grade_run(folder, ["judge:url=http://127.0.0.1:9,model=m", "json"], jobs=1)
    assert (found.failed, found.cost) == (1, 0.0)
