"""The table every producer writes and every reader reads."""

from openloop.records.beside import GRADES, MEASURES, SERVER, TEXTS, Labels, Reading
from openloop.records.manifest import MANIFEST_FILE, Manifest, Prices, Stay, TimedEvent, Warmth, checked, read_prices
from openloop.records.remote import copy_run, is_url, locate
from openloop.records.run import PARTS, Run, open_run
from openloop.records.schema import COLUMNS, LARGEST_EVENT, MISSING, ints, make_batch, make_lists, make_words, split
from openloop.records.tables import SideWriter
from openloop.records.tail import Now, forget_now, read_now, write_now
from openloop.records.writer import RunWriter, relabel

__all__ = [
    "COLUMNS",
    "GRADES",
    "LARGEST_EVENT",
    "MANIFEST_FILE",
    "MEASURES",
    "MISSING",
    "PARTS",
    "SERVER",
    "TEXTS",
    "Labels",
    "Manifest",
    "Now",
    "Prices",
    "Reading",
    "Run",
    "RunWriter",
    "SideWriter",
    "Stay",
    "TimedEvent",
    "Warmth",
    "checked",
    "copy_run",
    "forget_now",
    "ints",
    "is_url",
    "locate",
    "make_batch",
    "make_lists",
    "make_words",
    "open_run",
    "read_now",
    "read_prices",
    "relabel",
    "split",
    "write_now",
]
