"""How the built-in endpoint misbehaves, on command."""

from typing import Annotated, Literal

import msgspec

from openloop.spec import Strict

Fault = Literal[
    "error", "unauthorized", "overloaded", "refuse", "hang", "cut", "reset", "drip", "garbage", "whole", "late"
]

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Behaviour(Strict, frozen=True):
    """A share of requests meets a fault; all of them meet stalls.

    error: status 500. unauthorized: 401. overloaded: 503. refuse: the connection is closed without a word. hang: no
    answer, ever. cut: the stream ends half way, without a finish reason. reset: the connection is reset half way. drip:
    one byte a second. garbage: events that are no JSON. whole: a plain answer to a streaming request. late: an error in
    the middle of the stream.
    """

    fault: Fault | None = None
    share: Share = 1.0
    stall_s: Seconds = 0.0  # everything that is sent stands still so long
    every_s: Seconds = 10.0  # at the start of each stretch of this length
    slowness: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0  # everything takes this many times as long
    early_role: bool = False  # the event that names the role comes with the request, long before a token

    def stalled_until(self, now_ns: int, since_ns: int) -> int:
        """When what is to be sent now may be sent."""
        if not self.stall_s:
            return now_ns
        every, stall = int(self.every_s * 1e9), int(self.stall_s * 1e9)
        into = (now_ns - since_ns) % every
        return now_ns - into + stall if into < stall else now_ns
