"""Goodput of what goes on: the last minute, who straggles, what burns its budget, and what disruptions cost."""

from openloop.watch.burn import RULES, Alarm, Alert, Rule, burn_rate, parse_rules
from openloop.watch.frame import Disruption, Frame, Share
from openloop.watch.ledger import Ledger
from openloop.watch.watcher import Settings, open_feed, watch

__all__ = [
    "RULES",
    "Alarm",
    "Alert",
    "Disruption",
    "Frame",
    "Ledger",
    "Rule",
    "Settings",
    "Share",
    "burn_rate",
    "open_feed",
    "parse_rules",
    "watch",
]
