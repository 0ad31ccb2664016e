"""HdrHistogram: interval logs (`.hlog`), and the percentile table that wrk2 and many tools print.

A histogram counts values by their leading bits. Encoded (version 2) it is a header and counts as zig-zag numbers of
seven bits to a byte, a negative one standing for so many zeros; then zlib, another header and base64.
"""

import base64
import csv
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from openloop.errors import RunError
from openloop.importers.foreign import ENCODING, NOT_TOLD, Call, Runs, make_run, times, wall_clock
from openloop.records import Run
from openloop.units import parse_seconds, to_ns

COOKIE, COMPRESSED = 0x1C849303, 0x1C849304
TABLE = re.compile(r"^\s*([\d.]+)\s+([\d.]+)\s+(\d+)(?:\s+[\d.]+|\s+inf|\s*)$", re.MULTILINE)
NOTES = [
    "a histogram: no request is told apart, and when each was sent is not told",
    "no tokens, no failures, and times are rounded to the histogram's bins",
]


def looks_like(head: str) -> bool:
    return '"StartTimestamp","Interval_Length"' in head or ("Percentile" in head and "TotalCount" in head)


def read(path: Path) -> Runs:
    text = path.read_text(encoding=ENCODING)
    if '"StartTimestamp","Interval_Length"' not in text:
        yield _table(text)
        return
    tags: dict[str, list[list[str]]] = {}
    for row in csv.reader(line for line in text.splitlines() if line and line[0] not in '#"'):
        tags.setdefault(row[0] if len(row) > 4 else "", []).append(row[-4:])
    for rows in tags.values():
        yield _log(text, rows)


def _log(text: str, rows: list[list[str]]) -> Run:
    calls: list[Call] = []
    seconds = 0.0
    for _, length, most, packed in rows:
        counts = decode(packed)
        top = max((value for value, _ in counts), default=0)
        # Logs give the largest value in milliseconds, whatever the histogram counts in.
        unit_ns = 1e6 * float(most) / top if top and float(most) else 1.0
        unit_ns = min((1.0, 1e3, 1e6, 1e9), key=lambda unit: abs(unit - unit_ns))
        calls += [Call(ended_ns=round(value * unit_ns)) for value, count in counts for _ in times(count)]
        seconds += float(length)
    started = re.search(r"StartTime: ([\d.]+)", text)
    return make_run(
        "HdrHistogram",
        calls,
        notes=NOTES,
        seconds=seconds,
        arrivals=NOT_TOLD,
        started_at=wall_clock(to_ns(float(started[1]))) if started else None,
    )


def _table(text: str) -> Run:
    """Values between two rows of the table count as the upper one. wrk2 prints milliseconds."""
    spectrum = text[text.index("TotalCount") :].partition("#[Mean")[0]
    calls: list[Call] = []
    for value, _, total in TABLE.findall(spectrum):
        calls += [Call(ended_ns=round(float(value) * 1e6)) for _ in times(int(total) - len(calls))]
    took = re.search(r"requests in ([\d.]+[a-z]+)\b", text)
    return make_run(
        "wrk2",
        calls,
        notes=[*NOTES, "milliseconds, as wrk2 prints them; from wrk2 they count from when a request was due"],
        seconds=parse_seconds(took[1]) if took else None,
        arrivals=NOT_TOLD,
    )


def decode(text: str) -> list[tuple[int, int]]:
    """(value, count) of each bin that is not empty; a value is the middle of its bin."""
    try:
        packed = base64.b64decode(text)
        cookie, length = struct.unpack_from(">ii", packed)
        raw = zlib.decompress(packed[8 : 8 + length])
        _, size, _, digits, low, _, _ = struct.unpack_from(">iiiiqqd", raw)
    except (ValueError, struct.error, zlib.error):
        raise RunError(f"{text[:20]!r} is no compressed histogram") from None
    if cookie & ~0xF0 != COMPRESSED & ~0xF0:
        raise RunError(f"it holds a histogram with cookie {cookie:#x}; only compressed ones of version 2 are read")
    if not 0 <= digits <= 5:
        raise RunError(f"it holds a histogram of {digits} digits; they have up to 5")
    found, index, place = [], 0, 40
    while place < 40 + size:
        number, place = _unzigzag(raw, place)
        if number < 0:
            index -= number
            continue
        if index >= 64 * _half(digits):
            raise RunError("it holds a histogram of values that are too large for 64 bits")
        if number:
            found.append((_value_at(index, digits, low), number))
        index += 1
    return found


def encode(values: Sequence[int], highest: int, digits: int = 3) -> str:
    """The histogram of these values, none above `highest`, counted from 1."""
    half, shift = _half(digits), _half(digits).bit_length() - 1
    counts: dict[int, int] = {}
    for value in values:
        bucket = max(value.bit_length() - shift - 1, 0)
        index = (bucket + 1) * half + (value >> bucket) - half
        counts[index] = counts.get(index, 0) + 1
    body, at = bytearray(), 0
    for index in sorted(counts):
        if index > at:
            body += _zigzag(-(index - at))
        body += _zigzag(counts[index])
        at = index + 1
    raw = struct.pack(">iiiiqqd", COOKIE | 0x10, len(body), 0, digits, 1, highest, 1.0) + body
    packed = zlib.compress(raw)
    return base64.b64encode(struct.pack(">ii", COMPRESSED | 0x10, len(packed)) + packed).decode()


def _half(digits: int) -> int:
    """Bins to each power of two: enough for so many digits."""
    return 1 << ((2 * int(10**digits) - 1).bit_length() - 1)


def _value_at(index: int, digits: int, low: int) -> int:
    """The middle of a bin: bucket b counts in steps of 2**b times the lowest value's power of two."""
    half = _half(digits)
    bucket, sub = (index // half - 1, index % half + half) if index >= half else (0, index)
    unit = max(low, 1).bit_length() - 1
    width = 1 << (bucket + unit)
    return (sub << (bucket + unit)) + width // 2


def _zigzag(number: int) -> bytes:
    value, found = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while value > 0x7F and len(found) < 8:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _unzigzag(raw: bytes, place: int) -> tuple[int, int]:
    value = 0
    for step in range(9):
        byte = raw[place + step]
        value |= (byte if step == 8 else byte & 0x7F) << (7 * step)
        if byte < 0x80 or step == 8:
            break
    return (value >> 1) ^ -(value & 1), place + step + 1
