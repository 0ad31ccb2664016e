"""What servers say: the events and answers of those that speak as OpenAI's does, and what becomes of a reply."""

import re
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise, takewhile
from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

SHED = (429, 503, 529)
MOST_TOKENS = 1_000_000  # in one event
BOM = b"\xef\xbb\xbf"
STARTS = (b"data:", b"event:", b":")  # of a stream, whatever it is said to be
NO_SENSE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
LONGEST = 300  # characters that are kept of what a server says is wrong
HEARD = 8192  # and that are looked at before
SECRET = 8  # letters that a key has at least
PART = 12  # letters of its beginning that give it away
KEYS = re.compile("auth|key|token|secret|cookie|password|signature", re.IGNORECASE)  # names of what has one
PUBLIC = ("accept", "accept-encoding", "accept-language", "content-type", "user-agent")


def split_events(body: bytes) -> tuple[list[int], list[bytes]]:
    """Where each event ends, and its data."""
    plain = _plain(body)
    if plain is not None:
        return list(accumulate([len(data) + 8 for data in plain])), plain
    feeds, returns = body.count(b"\n"), body.count(b"\r")
    if body.startswith(BOM) or (returns and not feeds == returns == body.count(b"\r\n")):
        return _scan(body)
    gap = b"\r\n\r\n" if returns else b"\n\n"
    pieces = body.split(gap)
    pieces.pop()  # what follows the last whole event
    return list(accumulate([len(piece) + len(gap) for piece in pieces])), [_data(piece) for piece in pieces]


def _plain(body: bytes) -> list[bytes] | None:
    """The data of events, if each is `data: `, a line, and an empty line, as most streams have it."""
    if not (body.startswith(b"data: ") and body.endswith(b"\n\n")):
        return None
    found = body[6:-2].split(b"\n\ndata: ")
    lines = b"".join(found)
    return None if b"\n" in lines or b"\r" in lines else found


def _data(event: bytes) -> bytes:
    """The data lines of an event."""
    name, _, data = event.partition(b"\ndata: ")
    if data and name[:6] == b"event:" and b"\n" not in name and b"\n" not in data:
        return data
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _scan(body: bytes) -> tuple[list[int], list[bytes]]:
    """Events line by line, however lines end."""
    ends: list[int] = []
    found: list[bytes] = []
    begun = at = len(BOM) if body.startswith(BOM) else 0
    for line in re.finditer(rb"\r\n|\n|\r", body):
        if line.start() == at:  # an empty one
            ends.append(line.end())
            found.append(_data(body[begun:at]))
            begun = line.end()
        at = line.end()
    return ends, found


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None  # or its parts, as some write what was thought before
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None  # as it was before there were several
    refusal: str | None = None


class Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    index: int | None = 0
    logprobs: Any = None
    token_ids: Any = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class Said(msgspec.Struct, gc=False):
    """An event of a stream, or a whole answer."""

    choices: list[Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class Outcome(msgspec.Struct, gc=False):
    """What a reply says, once it is read at leisure."""

    status: str = "ok"
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    event_ns: "array[int]" = msgspec.field(default_factory=partial(array, "q"))
    event_tokens: list[int] | None = None
    first_any_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    merged_events: int = 0
    replica: str | None = None
    text: str | None = None  # the words, where they are kept


def _speaks(said: _Delta) -> bool:
    called = said.tool_calls or said.function_call
    words = any(map(_says, said.content)) if isinstance(said.content, list) else said.content
    return bool(words or said.reasoning_content or said.reasoning or called or said.refusal)


def _says(part: Any) -> bool:
    """Whether there is more to it than of which type it is."""
    return any(value for key, value in part.items() if key != "type") if isinstance(part, dict) else bool(part)


def text_of(choice: Choice) -> str:
    """Visible words; of several answers, those of the first."""
    said = choice.delta or choice.message
    found = choice.text or (said and said.content) or ""
    if isinstance(found, list):
        parts = [each.get("text") for each in found if isinstance(each, dict)]
        found = "".join(each for each in parts if isinstance(each, str))
    return found if not choice.index else ""


def _count(usage: _Usage, found: Outcome) -> None:
    """What was told before and is not now, stays."""
    prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
    if usage.prompt_tokens is not None:
        found.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        found.output_tokens = usage.completion_tokens
    if prompt is not None and prompt.cached_tokens is not None:
        found.cached_tokens = prompt.cached_tokens
    if output is not None and output.reasoning_tokens is not None:
        found.reasoning_tokens = output.reasoning_tokens


def _finish(choice: Choice, found: Outcome) -> None:
    """Why it ended; of several answers, the first."""
    if choice.finish_reason is not None and (not choice.index or found.finish_reason is None):
        found.finish_reason = choice.finish_reason


def hear(said: Said, data: bytes, found: Outcome) -> bool:
    """Read one event of a stream, which is there as it came as well; whether it has words.

    A role, an empty delta and usage are no words.
    """
    if said.error is not None:
        fail(found, f"an error in the stream: {message(data)}")
        return False
    if said.usage is not None:
        _count(said.usage, found)
    words = False
    for choice in said.choices or ():
        _finish(choice, found)
        delta = choice.delta
        if choice.text or (delta is not None and _speaks(delta)):
            words = True
    return words


def hear_all(said: Said, found: Outcome) -> None:
    """Read an answer that came at once."""
    if said.usage is not None:
        _count(said.usage, found)
    for choice in said.choices or ():
        _finish(choice, found)


def listed(said: Said) -> int:
    """Tokens of an event by the lists of them that it has; 0 where it has none."""
    found = 0
    for choice in said.choices or ():
        if choice.token_ids is None and choice.logprobs is None:
            continue
        logprobs = choice.logprobs if isinstance(choice.logprobs, dict) else {}
        lists = (choice.token_ids, *(logprobs.get(name) for name in ("content", "tokens", "refusal")))
        found += max(len(each) if isinstance(each, list) else 0 for each in lists)
    return found


def tokens_between(heard: Sequence[tuple[int | None, int | None]]) -> list[int] | None:
    """Tokens of each event with words, if the server tells: by usage so far in each, or by a list of tokens in each.
    Of each event, all tokens up to it are given, by either. Those of an event without words, as where a letter is not
    whole yet, come with the next."""
    for totals in zip(*heard, strict=True):
        known = [total for total in totals if total is not None]
        if len(known) == len(heard):
            return [after - before for before, after in pairwise([0, *known])]
    return None


def settle(found: Outcome) -> None:
    """A server that contradicts itself is not believed."""
    events, tokens, output = len(found.event_ns), found.event_tokens, found.output_tokens
    if tokens is not None:
        some = len(tokens) == events and all(0 < count <= MOST_TOKENS for count in tokens)
        if not some or (output is not None and sum(tokens) > output):
            found.event_tokens = None
    if output is not None and output < events:
        found.output_tokens = events  # what was delivered was generated
    if (
        found.cached_tokens is not None
        and found.prompt_tokens is not None
        and found.cached_tokens > found.prompt_tokens
    ):
        found.cached_tokens = None


def fail(found: Outcome, error: str, status: str = "error") -> None:
    found.status, found.error = status, error


def message(body: bytes) -> str:
    """What a server says is wrong, from wherever it puts it: it may repeat secrets."""
    try:
        said = msgspec.json.decode(body)
    except NO_SENSE:
        return short(body)
    for key in ("response", "error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return said[:HEARD] if isinstance(said, str) else short(msgspec.json.encode(said))


def short(data: bytes) -> str:
    text = " ".join(data[:HEARD].decode("utf-8", "replace").split())
    return text or "(nothing)"


def without_keys(answer: str, headers: Mapping[str, str]) -> str:
    """An answer without whole keys, and with all other words of our headers, for it may be graded."""
    for name, value in headers.items():
        if KEYS.search(name):
            for secret in filter(lambda word: len(word) >= SECRET, value.split()):
                answer = answer.replace(secret, "...")
    return answer


def without_secrets(text: str, headers: Mapping[str, str]) -> str:
    """As much as is kept of what else a server says, without what it repeats of our headers, be it only a beginning."""
    if len(text) < SECRET:
        return text
    values = {value for name, value in headers.items() if name.lower() not in PUBLIC}
    words = {word for value in values for word in (" ".join(value.split()), *value.split()) if len(word) >= SECRET}
    for secret in sorted(words, key=len, reverse=True):
        while (at := text.find(secret[:PART])) >= 0:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(text[at:], secret, strict=False))
            text = f"{text[:at]}...{text[at + len(list(same)) :]}"
    return text[:LONGEST]
