"""Scores for people to read."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that a user has no home is no concern of the reader
