"""Goodput of what goes on: the last minute, who straggles, what burns its budget, and what disruptions cost."""

from openloop.watch.burn import RULES, Alarm, Alert, BurnRule, burn_rate, parse_rules
from openloop.watch.frame import DisruptionLoss, Frame, PassedShare, SecondCounts
from openloop.watch.watcher import Settings, open_feed, watch

__all__ = [
    "RULES",
    "Alarm",
    "Alert",
    "BurnRule",
    "DisruptionLoss",
    "Frame",
    "PassedShare",
    "SecondCounts",
    "Settings",
    "burn_rate",
    "open_feed",
    "parse_rules",
    "watch",
]
