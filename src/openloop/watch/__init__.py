"""Goodput of what goes on: the last minute, who straggles, what burns its budget, and what disruptions cost."""

from openloop.watch.burn import RULES, parse_rules
from openloop.watch.watcher import Settings, open_feed, watch

__all__ = ["RULES", "Settings", "open_feed", "parse_rules", "watch"]
