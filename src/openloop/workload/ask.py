"""One request, as a target is told of it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for."""

    messages: tuple[tuple[str, str], ...]  # role and text, the oldest first
    output_tokens: int | None = None  # at most; None: as the server likes
    workload_class: str | None = None
    tenant: str | None = None
    session_id: int | None = None
    turn: int | None = None
    body: dict[str, Any] | None = None  # more for the body of this request
    reference: str | None = None  # the answer that is right, where one is known
    context: str | None = None  # what an answer is to be grounded in

    @property
    def text(self) -> str:
        """All of it as one text, for targets that know no roles."""
        return " ".join(text for _, text in self.messages)
