"""Who is told what goes on: a screen that is drawn anew, lines of text or JSON, a webhook, a page of metrics."""

import json
import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from openloop.spec import plain
from openloop.watch.burn import Alert
from openloop.watch.feeds import Feed
from openloop.watch.frame import Frame
from openloop.watch.outlets import MetricsServer, Webhook, metrics_page
from openloop.watch.show import history, line, picture


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
        self._page, self._live, self._stack = page, None, ExitStack()
        self._notes: set[str] = set()
        self.told: list[Alert] = []
        self.frame: Frame | None = None
        if sys.stdout.isatty() and not as_json and not quiet:
            self._live = self._stack.enter_context(Live(console=Console(), auto_refresh=False))

    def __enter__(self) -> "Audience":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()
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
