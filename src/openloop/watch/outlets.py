"""Who is told what goes on: a screen that is drawn anew, lines of text or JSON, a webhook, whoever scrapes /metrics."""

import hmac
import http.client
import json
import queue
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TextIO
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live

from openloop.errors import SpecError
from openloop.export.registry import prometheus_page
from openloop.spec import plain
from openloop.units import parse_listen
from openloop.watch.burn import Alert
from openloop.watch.feeds import Feed
from openloop.watch.frame import Frame, PassedShare
from openloop.watch.show import history, line, picture

TIMEOUT_S = 5.0
TRIES = 3
MOST_WAITING = 1000


class Webhook:
    """Posts alerts from a thread of its own. One that is down is a count, and nothing waits for it.

    Of the address only the host is ever shown: the rest is often a secret.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            raise SpecError("the webhook is no address; write it as https://host/path, best in OPENLOOP_WEBHOOK")
        self.host = host
        self.why = "it did not answer in time"
        self._told = self._taken = 0
        self._url = url
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def send(self, alert: Alert, source: str) -> None:
        state = "firing" if alert.until_s is None else "resolved"
        told = {"text": f"openloop watch {source}: {alert}", "source": source, "state": state, **plain(alert)}
        self._told += 1
        with suppress(queue.Full):
            self._waiting.put_nowait(json.dumps(told, allow_nan=False).encode())

    def close(self, patience_s: float = 2 * TIMEOUT_S) -> None:
        """Wait a little for what is not delivered yet."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(patience_s)

    @property
    def note(self) -> str | None:
        """What it has not taken so far."""
        left = self._told - self._taken
        return f"the webhook at {self.host} did not take {left:,} alerts ({self.why})" if left else None

    def _deliver(self) -> None:
        while (body := self._waiting.get()) is not None:
            for tried in range(TRIES):
                if self._post(body):
                    self._taken += 1
                    break
                time.sleep(0.2 * 2**tried)

    def _post(self, body: bytes) -> bool:
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
            return True
        except urllib.error.HTTPError as error:
            self.why = f"status {error.code}"
            error.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)  # never the text of the error, which may hold the address
            self.why = getattr(reason, "strerror", None) or type(reason).__name__
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is posted goes where it was meant to go, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


class MetricsServer(ThreadingHTTPServer):
    """The latest frame as a page in Prometheus' format, on loopback unless another host is named."""

    daemon_threads = True

    def __init__(self, where: str, token: str | None = None) -> None:
        host, port = parse_listen(where)
        self.text, self.token = "", token
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SpecError(f"{where} cannot be listened on: {error.strerror}") from None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/metrics"

    def handle_error(self, *_: Any) -> None:
        """Somebody went away in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.token and not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self.send_error(401)
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        data = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def metrics_page(frame: Frame) -> str:
    """Attainment and goodput first."""
    return prometheus_page((name, labels, float(value)) for name, labels, value in _samples(frame) if value is not None)


def _samples(frame: Frame) -> Iterator[tuple[str, dict[str, str], float | None]]:
    shares = {"all": PassedShare(0.0, frame.attainment, frame.attainment_at_most), **frame.gates}
    for name, what in (("attainment", "attainment"), ("attainment_at_most", "at_most")):
        yield from ((name, {"gate": gate}, getattr(each, what)) for gate, each in shares.items())
    for name in ("goodput_rps", "goodput_rps_at_most", "throughput_rps", "tokens_per_s", "offered_rps", "in_flight"):
        yield name, {}, getattr(frame, name)
    for metric, ladder in frame.tails.items():
        for quantile, value in (("0.5", ladder.p50_s), ("0.95", ladder.p95_s), ("0.99", ladder.p99_s)):
            yield "latency_seconds", {"metric": metric, "quantile": quantile}, value
    yield from (("replica_attainment", {"replica": each.replica}, each.attainment) for each in frame.replicas)
    for each in frame.replicas:
        for metric, ladder in each.tails.items():
            yield "replica_p95_seconds", {"replica": each.replica, "metric": metric}, ladder.p95_s
    yield from (
        ("replica_straggles", {"replica": each.replica}, float(bool(each.straggler))) for each in frame.replicas
    )
    for window in ("long", "short"):
        for burn in frame.burns:
            labels = {"signal": burn.signal, "rule": str(burn.rule), "window": window}
            yield "burn_rate", labels, getattr(burn, window)
    yield from (("alert", {"signal": b.signal, "rule": str(b.rule)}, float(b.firing)) for b in frame.burns)
    yield "watched_seconds", {}, frame.at_s


class Audience:
    """With `quiet`, nothing is shown before `sum_up`; the webhook and the page hear of everything."""

    def __init__(
        self,
        feed: Feed,
        window_s: float,
        *,
        as_json: bool,
        quiet: bool,
        webhook: str | None,
        page: MetricsServer | None,
    ) -> None:
        self._feed, self._window_s, self._json, self._quiet = feed, window_s, as_json, quiet
        self._hook = Webhook(webhook) if webhook else None
        self._page = page
        self._notes: set[str] = set()
        self.told: list[Alert] = []
        self.frame: Frame | None = None
        drawn = sys.stdout.isatty() and not as_json and not quiet
        self._live = Live(console=Console(), auto_refresh=False) if drawn else None

    def __enter__(self) -> "Audience":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        if self._hook:
            self._hook.close()

    @property
    def began(self) -> int:
        return sum(alert.until_s is None for alert in self.told)

    def tell(self, frame: Frame, changed: list[Alert]) -> None:
        self.frame = frame
        self.told += changed
        for alert in changed:
            if self._hook:
                self._hook.send(alert, self._feed.source)
            if self._json:
                _say({"type": "alert", **plain(alert)})
            elif not self._live and not self._quiet:
                _say(str(alert))
        if self._page:
            self._page.text = metrics_page(frame)
        if self._live:
            self._live.update(self._picture(frame), refresh=True)
        elif not self._quiet:
            self._line(frame)

    def sum_up(self) -> None:
        """All of it, where nothing was shown on the way; and what the webhook did not take."""
        if self._quiet and self.frame is not None:
            if self._json:
                self._line(self.frame)
            else:
                Console(soft_wrap=not sys.stdout.isatty()).print(self._picture(self.frame))
        if self._hook and self._hook.note:
            _say(self._hook.note, sys.stderr)

    def _line(self, frame: Frame) -> None:
        if self._json:
            _say({"type": "frame", **plain(frame)})
            return
        for note in frame.notes:
            if note not in self._notes:
                _say(f"note: {note}", sys.stderr)
                self._notes.add(note)
        _say(line(frame))

    def _picture(self, frame: Frame) -> Any:
        past = history(self._feed.ledger, self._feed.signals, frame.at_s, self._window_s)
        return picture(frame, past, self.told, self._feed.source)


def _say(what: str | dict[str, Any], where: TextIO | None = None) -> None:
    print(what if isinstance(what, str) else json.dumps(what, allow_nan=False), file=where, flush=True)
