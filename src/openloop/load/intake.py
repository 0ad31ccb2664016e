"""The ordinary work of a worker in machine code: requests go out when they are due, and what comes back is stamped.

Waking up costs most where tokens are few, and Python most of that. So the code below waits, sends what it was given on
connections that are idle, reads every connection that has an answer on its way, and comes back when there is something
else to do: the clock is to be looked at, no connection is idle, or one is in trouble. What it read is whole chunks of a
response whose head was followed already, or else it is told of, to be followed before long.

This is Python that LLVM compiles, and it is run as machine code only: workers map it, and need neither. Where that
cannot be, they read everything themselves, with the same result.
"""

import os
from array import array
from collections.abc import Iterator
from typing import Any

from openloop.clock import EDGE, READ, TOGETHER_NS, Poller, Rest, Timer
from openloop.load import skim
from openloop.load.skim import hex_digit, note_events
from openloop.native import foreign, whole
from openloop.native.mapped import Located, Mapped, Shapes, find_in_libc

# Of a connection, whose place is its file's number: whether its reads are ordinary; whether its head is to come (0), is
# over and chunks come (1), or neither (-1); and of what is kept of it, whether it was told of; how many bytes, in how
# many reads; where the head ends among them; up to where they are whole chunks, and whether the last of all is there;
# how many stamps are the kernel's; and where its events are noted, if they are (see skim.py).
LINE = ("ours", "chunked", "told", "used", "reads", "head", "followed", "over", "kernel", "noted")
KEPT = 2  # of these come before what is kept
GAPS = ("rest_ns", "brisk_ns", "lively_ns", "gaps", "brisk", "lively")
POST = ("due_ns", "payload", "size", "fd", "sent_ns", "sent")  # to be sent; then: where and when, and how much
ASKED = 3  # of these are known before
C = (*skim.C, "clock_gettime", "clock_nanosleep", "epoll_wait", "recvmsg", "send", "timerfd_settime")
# Until when to read, and whether what is told of is urgent; when sockets were looked at and are to be next, and how
# long a rest is; the wall clock minus ours; how many are told of and in trouble; how many were posted, and are gone,
# since the beginning; how many connections are idle, and how many are few; between how many reads of a connection there
# was time, and how often less than two limits; whether events are to be noted; files.
TIMES = ("next_ns", "check_ns", "looked_ns", "read_ns", "offset_ns", "known_ns", "timer_ns")
STATE = (*TIMES, *GAPS, "eager", "told", "troubled", "posted", "gone", "idle", "few", "notes", "epoll", "timer", "data")
SIZE = 32768  # bytes of a connection that are kept here
MARKS = 250  # reads of it; not a power of two, or all marks would be wanted in the same places of a cache
READ_SIZE = 4096
EVENTS = 1024  # files that are ready, looked at in one go
MANY = 64  # connections to be followed at once: while Python does, nothing is read
POSTS = 1024  # at a time
IDLE = 128  # connections to send on, at a time
MOST_LINES = 32768

# Words that the kernel reads and writes: a message, where its bytes and stamp go, times, and a timer's setting.
MESSAGE, VECTOR, CONTROL, NOW, THEN, SETTING, WORDS = 0, 8, 16, 24, 26, 28, 32
ANCILLARY = 64
NAMES = b"chunkedlength"  # that heads are searched for
CHUNKED, LENGTH = 7, 6  # letters of these
STAMPED = 1 | 35 << 32  # SOL_SOCKET, SO_TIMESTAMPNS
REALTIME, MONOTONIC, ABSOLUTE = 0, 1, 1
SECOND = 1_000_000_000
EMPTY = array("q", bytes(8 * (len(LINE) - KEPT)))
SOON_NS = 20_000_000
NO_SIGNAL = 0x4000
NO_CHUNKS, MORE_CHUNKS, LAST_CHUNK = 0, 1, 2
NOTHING, SOME, ALL = 0, 1, 2
LONG_NS = 600_000_000_000
NEVER = 1 << 62


def gather(
    state: Any,
    words: Any,
    lines: Any,
    marks: Any,
    data: Any,
    events: Any,
    told: Any,
    troubled: Any,
    posts: Any,
    idle: Any,
    names: Any,
    keys: Any,
    stamps: Any,
    runs: Any,
    notes: Any,
    said: Any,
) -> None:
    """Send and read until there is something else to do."""
    w = state[0]
    looked = 0  # sockets are, at least once, however much else there is to do
    while True:
        due = send_due(w, words, lines, posts, idle)
        if w.check_ns == 0:
            return
        short = due == 0  # something was sent in part
        now = clock(w, words, MONOTONIC)
        until = min(due, w.next_ns, w.check_ns)
        if w.told >= MANY or w.idle < w.few or (w.told > 0 and w.eager):
            until = now
        if until <= now and looked:
            return
        if now < w.read_ns and w.eager == 0 and until > now:
            rest(w, words, min(until, w.read_ns))
            continue
        looked = 1
        ready = wait(w, words, events, until, now)
        now = clock(w, words, MONOTONIC)
        for n in range(ready):
            fd = events[3 * n + 1]
            if fd == w.timer:
                continue
            ordinary = fd < len(lines) and events[3 * n] == READ
            came = receive(w, words, lines, marks, data, told, names, fd) if ordinary else NOTHING
            if came == ALL and w.notes:
                line = lines[fd]
                line.noted = note_answer(state, line, fd, marks, data, keys, stamps, runs, notes, said)
            elif came == NOTHING:
                troubled[2 * w.troubled] = fd
                troubled[2 * w.troubled + 1] = events[3 * n]
                w.troubled += 1
            moment = clock(w, words, MONOTONIC)
            if moment >= due:
                due = send_due(w, words, lines, posts, idle)
            if moment >= w.next_ns or moment >= due:
                return
        w.read_ns = now + w.rest_ns if ready * w.rest_ns > 2 * (now - w.looked_ns) else 0
        w.looked_ns = now
        if w.troubled > 0 or short:
            return


def send_due(w: Any, words: Any, lines: Any, posts: Any, idle: Any) -> int:
    """Send whatever is due; when the next is: in the past, if somebody else must see to it."""
    while w.gone < w.posted:
        post = posts[w.gone % POSTS]
        now = clock(w, words, MONOTONIC)
        if post.due_ns > now or w.idle == 0:
            return int(post.due_ns)
        w.idle -= 1
        w.gone += 1
        post.fd = idle[w.idle]
        post.sent_ns = now
        line = lines[post.fd]
        line.ours = 1
        line.chunked = 0
        post.sent = foreign(w.send, post.fd, post.payload, post.size, NO_SIGNAL)
        if post.sent != post.size:
            return 0
    return NEVER


def clock(w: Any, words: Any, which: int) -> int:
    foreign(w.clock_gettime, which, words[NOW:])
    return int(words[NOW] * SECOND + words[NOW + 1])


def rest(w: Any, words: Any, until_ns: int) -> None:
    """Wait for the moment and for nothing else."""
    words[THEN] = until_ns // SECOND
    words[THEN + 1] = until_ns % SECOND
    foreign(w.clock_nanosleep, MONOTONIC, ABSOLUTE, words[THEN:], 0)


def wait(w: Any, words: Any, events: Any, until: int, now: int) -> int:
    """How many files are ready, before a moment."""
    ready = whole(foreign(w.epoll_wait, w.epoll, events, EVENTS, 0))
    if ready == 0 and until > now:
        if until != w.timer_ns:
            words[SETTING + 2] = until // SECOND
            words[SETTING + 3] = until % SECOND
            foreign(w.timerfd_settime, w.timer, ABSOLUTE, words[SETTING:], 0)
            w.timer_ns = until
        ready = whole(foreign(w.epoll_wait, w.epoll, events, EVENTS, -1))
    return max(ready, 0)


def receive(w: Any, words: Any, lines: Any, marks: Any, data: Any, told: Any, names: Any, fd: int) -> int:
    """One read: of an answer that is all there or not; or nothing ordinary."""
    line = lines[fd]
    if line.ours == 0 or line.used > SIZE - READ_SIZE or line.reads == MARKS:
        return NOTHING
    at = fd * SIZE + line.used
    words[VECTOR] = w.data + at
    words[VECTOR + 1] = READ_SIZE
    words[MESSAGE + 5] = ANCILLARY
    got = foreign(w.recvmsg, fd, words, 0)
    if got <= 0:
        return NOTHING
    stamp = stamp_of(w, words, line)
    mark = 2 * (fd * MARKS + line.reads)
    if line.reads > 0:
        note_gap(w, stamp - marks[mark - 1])
    line.used += got
    line.reads += 1
    marks[mark] = line.used
    marks[mark + 1] = stamp
    line.over = 0
    if line.told == 0:
        start = at
        urgent = 0
        if line.chunked == 0 and at == fd * SIZE:
            start = after_head(data, at, at + got)
            line.head = start - at
            line.chunked = -1
            if start < at + got and says(data, at, start, names, 0, CHUNKED):
                line.chunked = -1 if says(data, at, start, names, CHUNKED, LENGTH) else 1
            urgent = w.eager  # somebody wants to know that an answer has begun
        chunks = in_whole_chunks(data, start, at + got) if line.chunked == 1 else NO_CHUNKS
        if chunks == MORE_CHUNKS:
            line.followed = line.used
        if chunks != MORE_CHUNKS or urgent:
            line.over = 1 if chunks == LAST_CHUNK else 0
            line.told = 1
            told[w.told] = fd
            w.told += 1
    return ALL if line.over else SOME


def note_answer(
    state: Any, line: Any, fd: int, marks: Any, data: Any, keys: Any, stamps: Any, runs: Any, notes: Any, said: Any
) -> int:
    """Where its events are noted, if they are."""
    w = state[0]
    w.size = line.used
    w.raw = w.data + fd * SIZE
    w.reads = line.reads
    w.start = line.head
    raw = data[fd * SIZE : fd * SIZE + line.used]
    note_events(state, raw, marks[2 * fd * MARKS :], keys, stamps, runs, notes, said)
    return int(w.place)


def note_gap(w: Any, gap: int) -> None:
    if gap > TOGETHER_NS:
        w.gaps += 1
        w.brisk += 1 if gap < w.brisk_ns else 0
        w.lively += 1 if gap < w.lively_ns else 0


def stamp_of(w: Any, words: Any, line: Any) -> int:
    """When it had arrived by the kernel, on our clock; else now."""
    if words[MESSAGE + 5] < 32 or words[CONTROL + 1] != STAMPED:
        return clock(w, words, MONOTONIC)
    wall = words[CONTROL + 2] * SECOND + words[CONTROL + 3]
    stamp = wall - w.offset_ns
    if stamp > w.known_ns or stamp <= w.known_ns - SOON_NS:
        now = clock(w, words, MONOTONIC)
        w.known_ns = now
        if stamp > now or stamp <= now - SOON_NS:  # the wall clock was set, or nobody read for a while
            w.offset_ns = measure_offset(w, words)
            stamp = wall - w.offset_ns
            if stamp > now + SOON_NS or stamp <= now - LONG_NS:
                return now
    line.kernel += 1
    return int(stamp)


def measure_offset(w: Any, words: Any) -> int:
    """Between the wall clock and ours, by the tightest of three readings."""
    least = NEVER
    offset = 0
    for _ in range(3):
        before = clock(w, words, MONOTONIC)
        wall = clock(w, words, REALTIME)
        after = clock(w, words, MONOTONIC)
        if after - before < least:
            least = after - before
            offset = wall - (before + after) // 2
    return offset


def after_head(data: Any, at: int, stop: int) -> int:
    """Where a head is over: at an empty line."""
    while at + 4 <= stop:
        if data[at] == 13 and data[at + 1] == 10 and data[at + 2] == 13 and data[at + 3] == 10:
            return at + 4
        at += 1
    return stop


def says(data: Any, at: int, stop: int, names: Any, first: int, size: int) -> int:
    """Whether a name is in a head, in small or capital letters."""
    while at + size <= stop:
        same = 0
        while same < size and data[at + same] | 32 == names[first + same]:
            same += 1
        if same == size:
            return 1
        at += 1
    return 0


def in_whole_chunks(data: Any, at: int, stop: int) -> int:
    """Whether these bytes are chunks of a body, and one of them the last."""
    while at < stop:
        first = at
        size = 0
        most = min(at + 7, stop)
        while at < most:
            digit = hex_digit(data[at])
            if digit < 0:
                break
            size = size * 16 + digit
            at += 1
        if at == first or at + 2 > stop or data[at] != 13 or data[at + 1] != 10:
            return NO_CHUNKS
        if size == 0:
            return LAST_CHUNK if at + 4 == stop and data[at + 2] == 13 and data[at + 3] == 10 else NO_CHUNKS
        at += size + 4
    return MORE_CHUNKS if at == stop else NO_CHUNKS


IntakeLine = Any  # a row of the table of LINE


def tables(lines: int) -> Shapes:
    """What `gather` works on."""
    return {
        "state": ((*STATE, *skim.SKIM, *C), 1),
        "words": ("i8", WORDS),
        "lines": (LINE, lines),
        "marks": ("i8", 2 * MARKS * lines),
        "data": ("u1", SIZE * lines),
        "events": ("i4", 3 * EVENTS),
        "told": ("i8", lines),
        "troubled": ("i8", 2 * EVENTS),
        "posts": (POST, POSTS),
        "idle": ("i8", IDLE),
        "names": ("u1", len(NAMES)),
        **skim.OWN,
    }


class Intake:
    """What `gather` has read, and where it does."""

    def __init__(self, code: bytes, poller: Poller, *, notes: bool = False) -> None:
        """Raises something where code or memory cannot be mapped."""
        limit = os.sysconf("SC_OPEN_MAX")
        self.count = min(limit, MOST_LINES) if limit > 0 else MOST_LINES
        self.gather = mapped = Mapped(code, tables(self.count))
        names = ("lines", "marks", "told", "troubled", "idle", "data", "posts")
        self._lines, self._marks, self._told, self._troubled, self._idle, self._data, self._posts = map(
            mapped.view, names
        )
        self.lines = mapped.rows("lines")
        self.state = mapped.rows("state")[0]
        self.state.epoll, self.state.data = poller.fileno(), mapped.address("data")
        find_in_libc(self.state, C)
        mapped.view("names")[: len(NAMES)] = NAMES
        self._notes, self._held = skim.Notes(mapped), Located()
        words, at = mapped.view("words"), mapped.address("words")
        words[MESSAGE + 2], words[MESSAGE + 3], words[MESSAGE + 4] = at + 8 * VECTOR, 1, at + 8 * CONTROL
        self._timer = Timer()
        self.state.timer, self.state.notes = self._timer.fd, notes
        poller.watch(self._timer.fd, READ | EDGE)

    def note_gaps(self, rest: Rest) -> None:
        """Between its reads; and how long it is to rest, and what to count, from now on."""
        state = self.state
        rest.gaps += state.gaps
        rest.brisk += state.brisk
        rest.lively += state.lively
        rest.adapt()
        state.gaps = state.brisk = state.lively = 0
        state.rest_ns, state.brisk_ns, state.lively_ns = rest.ns, rest.brisk_ns, rest.lively_ns

    def post(self, due_ns: int, payload: bytes) -> None:
        """To be sent when it is due, which is not before the one that was posted last; the bytes must stay."""
        posted, posts = self.state.posted, self._posts
        at = posted % POSTS * len(POST)
        self._held.data = payload
        posts[at], posts[at + 1], posts[at + 2] = due_ns, self._held.address, len(payload)
        self.state.posted = posted + 1

    def gone(self, since: int) -> Iterator[tuple[int, int, int]]:
        """Of what was sent since so many were: on which file, when, and how much of it."""
        first, count = since % POSTS, self.state.gone - since
        for start, stop in ((first, min(first + count, POSTS)), (0, first + count - POSTS)):
            if start < stop:
                found = self._posts[start * len(POST) : stop * len(POST)].tolist()
                yield from zip(*(found[place :: len(POST)] for place in range(ASKED, len(POST))), strict=True)

    def offer(self, files: list[int]) -> None:
        """Connections to send on, the last of them first."""
        self.state.idle = len(files)
        self._idle[: len(files)] = array("q", files)

    def told(self) -> list[int]:
        """Files with something to be followed."""
        count, self.state.told = self.state.told, 0
        return self._told[:count].tolist()

    def troubled(self) -> Iterator[tuple[int, int]]:
        """Files that something else is to be done about, and what they are ready for."""
        count, self.state.troubled = self.state.troubled, 0
        return zip(*[iter(self._troubled[: 2 * count].tolist())] * 2, strict=True)

    def kept(self, fd: int) -> list[int]:
        """What is kept of a connection, as LINE has it."""
        at = fd * len(LINE)
        return self._lines[at + KEPT : at + len(LINE)].tolist()

    def data(self, fd: int, used: int) -> memoryview:
        """The bytes of that."""
        return self._data[fd * SIZE : fd * SIZE + used]

    def marks(self, fd: int, reads: int) -> memoryview:
        """Where each read of it ends and when it was, in turns."""
        return self._marks[2 * fd * MARKS : 2 * (fd * MARKS + reads)]

    def events(self, noted: int) -> skim.Skimmed:
        """What is noted of it."""
        return self._notes.read(noted)

    def begin_notes(self) -> None:
        """Those that there are have been read."""
        self.state.noted = self.state.said = 0

    def clear(self, fd: int) -> None:
        """Nothing of it is kept any more."""
        at = fd * len(LINE)
        self._lines[at + KEPT : at + len(LINE)] = EMPTY
