"""What a client asks, as far as a proxy must know it."""

from typing import Any

import msgspec

from openloop.said import NO_SENSE

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
LETTERS_PER_TOKEN = 4  # a guess, to weigh requests by


class Ask(msgspec.Struct):
    """The prompt stays as it came: equal beginnings are equal bytes. What makes no sense is the replica's to refuse."""

    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: msgspec.Raw = msgspec.Raw(b"")  # nobody else's blocks are its own

    @property
    def text(self) -> bytes:
        return bytes(self.messages or self.prompt or self.input)

    @property
    def prompt_tokens(self) -> int:
        return max(len(self.text) // LETTERS_PER_TOKEN, 1)

    @property
    def most_tokens(self) -> int | None:
        found = self.max_completion_tokens or self.max_tokens
        return found if isinstance(found, int) and 0 < found < 2**31 else None


_DECODER: "msgspec.json.Decoder[Ask]" = msgspec.json.Decoder(Ask)


def read_ask(body: bytes) -> Ask | None:
    """None: it is no JSON that makes sense."""
    try:
        return _DECODER.decode(body)
    except NO_SENSE:
        return None
