"""The page and its server: the standard library's, on loopback unless somebody says otherwise and brings a token."""

import hmac
import json
import math
import secrets
import socket
import time
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from openloop.errors import OpenloopError, SpecError
from openloop.report.html import TOP, asset, body, document
from openloop.report.page import Report
from openloop.slo import Objectives, SLOGate
from openloop.spec import plain
from openloop.units import format_seconds, is_loopback
from openloop.view.shelf import Entry, NoSLOError, Shelf

COOKIE = "openloop-token"
LONGEST = 2000  # letters of a question
PATIENCE_S = 30.0
COLUMNS = {
    "name": "name",
    "verdict": "verdict",
    "offered": "offered (frontier: knee)",
    "goodput": "goodput (frontier: peak)",
    "attainment": "attainment",
    "p99": "p99",
    "requests": "requests",
    "model": "model",
    "started": "started",
}


class ViewServer(ThreadingHTTPServer):
    """`url` is where it listens, with the token if one is needed."""

    daemon_threads = True

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.shelf = Shelf(folder)
        host = host.strip("[]")  # which a URL has around it
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(18))
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SpecError(f"{host}:{port} cannot be listened on: {getattr(error, 'strerror', error)}") from None
        self.host = host

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/" + (f"?token={quote(self.token)}" if self.token else "")

    def handle_error(self, *_: Any) -> None:
        """Somebody went away in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        if len(self.path) > LONGEST:
            self._say(HTTPStatus.REQUEST_URI_TOO_LONG, "the question is too long")
        elif not self._welcome(query):
            self._say(HTTPStatus.FORBIDDEN, "open the address that openloop view has printed")
        elif asked.path not in ROUTES:
            self._say(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self._answer(asked.path, query)

    def _answer(self, path: str, query: dict[str, str]) -> None:
        try:
            found = ROUTES[path](self.server.shelf, query)
        except OpenloopError as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error))
        except (OSError, MemoryError) as error:  # a run may go away while it is read
            self._say(HTTPStatus.BAD_REQUEST, f"it cannot be read: {error}")
        else:
            kind = "text/html" if isinstance(found, str) else "application/json"
            text = found if isinstance(found, str) else json.dumps(found, allow_nan=False)
            self._send(HTTPStatus.OK, text, kind, query.get("token"))

    def _welcome(self, query: dict[str, str]) -> bool:
        """With a token: whoever has it. Without: whoever asks this machine by its own name, and not by another's."""
        if self.server.token is None:
            return is_loopback(self.headers.get("Host", ""))
        cookies = dict(part.strip().partition("=")[::2] for part in self.headers.get("Cookie", "").split(";"))
        given = [
            query.get("token", ""),
            unquote(cookies.get(COOKIE, "")),
            self.headers.get("Authorization", "").removeprefix("Bearer "),
        ]
        return any(hmac.compare_digest(each.encode(), self.server.token.encode()) for each in given)

    def _say(self, status: HTTPStatus, sentence: str) -> None:
        if urlsplit(self.path).path.startswith("/api/"):
            self._send(status, json.dumps({"error": sentence}), "application/json")
        else:
            inside = f'{TOP}<main><h1>{escape(sentence)}</h1><p><a href="/">All runs</a></p></main>'
            self._send(status, document("openloop", inside, [asset("page.js")]), "text/html")

    def _send(self, status: HTTPStatus, text: str, kind: str, token: str | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        if token and self.server.token:
            self.send_header("Set-Cookie", f"{COOKIE}={quote(self.server.token)}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _asked_for(shelf: Shelf, query: dict[str, str]) -> tuple[Report, Objectives | None]:
    """The report of one thing and what it is held against, or that of two."""
    if "a" in query:
        a, b = (shelf.find(query.get(which, "")) for which in "ab")
        return shelf.compare(a, b, query.get("slo") or None), None
    entry, how = _one(shelf, query)
    return shelf.report(entry, **how), shelf.objectives(entry, how["slo"])


def _one(shelf: Shelf, query: dict[str, str]) -> tuple[Entry, dict[str, Any]]:
    """One thing, and how it is to be shown."""
    try:
        request = int(query["request"]) if query.get("request") else None
        point = float(query["point"]) if query.get("point") else None
    except ValueError:
        raise SpecError("request and point are numbers") from None
    return shelf.find(query.get("what", "")), {"slo": query.get("slo") or None, "request": request, "point": point}


def _slo_of(report: Report) -> str:
    return report.data.get("a", report.data).get("slo") or ""


def _list(_: Shelf, __: dict[str, str]) -> str:
    """What is there; the page asks for it itself."""
    heads = "".join(
        f"<th{'' if key in ('name', 'verdict', 'model', 'started') else ' class=n'}>"
        f'<button type="button" data-sort="{key}">{escape(words)}</button></th>'
        for key, words in COLUMNS.items()
    )
    return _page(
        "openloop",
        f'{TOP}<main><h1 id="folder">Runs and frontiers</h1><form class="controls" id="filter">'
        '<label>Show those with <input id="words" type="search" placeholder="name, model, verdict"></label>'
        '<label><input id="valid" type="checkbox"> valid ones only</label>'
        '<button type="button" id="compare" disabled>Compare two</button></form>'
        f'<div class="table" tabindex="0" role="region" aria-label="Runs and frontiers"><table id="list"><thead><tr>'
        f'<th><span class="hide">choose</span></th>{heads}</tr></thead><tbody></tbody></table></div>'
        '<p class="note" id="state" role="status">Reading the folder</p></main><div id="tip" hidden></div>',
    )


def _page(title: str, inside: str) -> str:
    return document(title, inside, [asset("page.js"), asset("view.js", "view")], connect=True)


def _show(shelf: Shelf, query: dict[str, str]) -> str:
    """A report with controls; its body is replaced as they are moved, or as the run goes on."""
    name = query.get("what", "")
    try:
        report, objectives = _asked_for(shelf, query)
    except NoSLOError as error:  # controls over nothing yet
        inside = f'{_controls("", "")}{_without_slo(query, error)}<div id="tip" hidden></div>'
        return _page(f"{name or 'Two compared'} - openloop", inside)
    above = _controls(name, _slo_of(report), objectives, live=report.verdict == "live")
    return _page(f"{name or report.title} - openloop", above + body(report))


def _without_slo(query: dict[str, str], why: NoSLOError) -> str:
    title = query.get("what", "Two compared")
    return f'<main><section class="verdict"><h1>{escape(title)}</h1><p>{escape(str(why))}</p></section></main>'


def _controls(name: str, slo: str, objectives: Objectives | None = None, *, live: bool = False) -> str:
    """A text and a slider for each gate of time; moving one asks the server to score again."""
    going_on = ' data-live="1"' if live else ""
    return (
        f'{TOP}<form class="controls" id="slo" data-what="{escape(name)}"{going_on}><a href="/">All runs</a>'
        f'<label>SLO <input id="gates" size="38" value="{escape(slo)}" spellcheck="false" autocomplete="off"></label>'
        f'<span id="sliders">{_sliders(objectives)}</span>'
        '<button type="submit">Score</button><span class="note" id="state" role="status"></span></form>'
    )


def _sliders(objectives: Objectives | None) -> str:
    gates = objectives.default.gates if objectives and objectives.default and not objectives.classes else ()
    return "".join(_slider(gate) for gate in gates if getattr(gate, "within_s", 0.0) > 0)


def _slider(gate: SLOGate) -> str:
    seconds = float(getattr(gate, "within_s", 1.0))
    middle = math.log10(seconds)
    return (
        f'<label class="slider">{escape(gate.name)} <input type="range" data-gate="{escape(gate.name)}" '
        f'min="{middle - 1:.3f}" max="{middle + 1:.3f}" step="0.01" value="{middle:.3f}">'
        f"<output>{escape(format_seconds(seconds))}</output></label>"
    )


def _score(shelf: Shelf, query: dict[str, str]) -> Any:
    """The scorer's JSON of a run, or the frontier's: what the controls ask for first."""
    began = time.perf_counter()
    if "a" in query:
        found = _asked_for(shelf, query)[0].data
    else:
        entry, how = _one(shelf, query)
        found = shelf.data(entry, **how)
    return {"score": found, "took_s": time.perf_counter() - began}


def _report(shelf: Shelf, query: dict[str, str]) -> Any:
    try:
        report, objectives = _asked_for(shelf, query)
    except NoSLOError as error:  # a run that has just ended is told apart from one in progress
        return {"html": _without_slo(query, error), "live": False, "sliders": "", "slo": ""}
    live, sliders = report.verdict == "live", _sliders(objectives)
    return {"html": body(report), "live": live, "sliders": sliders, "slo": _slo_of(report)}


ROUTES: dict[str, Callable[[Shelf, dict[str, str]], Any]] = {
    "/": _list,
    "/show": _show,
    "/compare": _show,
    "/api/list": lambda shelf, _: {"folder": shelf.root.name, "entries": plain(shelf.cards())},
    "/api/score": _score,
    "/api/report": _report,
}
