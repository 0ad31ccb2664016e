"""The tables that the compiled loop works on: few and wide, because each array that is handed to a compiled function
costs time; rows are records, because a field of a row is one address."""

import numpy as np

from openloop.arrays import row_kind

# How a batch is put together; in which order requests are taken into it; what a replica is there for.
STATIC, PREFILL_FIRST, CHUNKED, PREPONE = range(4)
FIRST, SHORTEST, DEADLINE, GOODPUT = range(4)
BOTH, PREFILL, DECODE = range(3)
# When a fleet refuses.
UNLIMITED, IN_FLIGHT, QUEUE, BUCKET, LIKELY_LATE = range(5)
# What a replica does, and where an attempt is.
IDLE, PREFILLING, DECODING = range(3)
FREE, WAITING, FILLING, RUNNING, MOVING, GONE, REFUSED = range(7)
NOT_YET, UNDER_WAY, DONE = range(3)  # of steps before a prefill
HERE, SWAPPED, MOVED = range(3)  # memory that is there, not any more, not yet
# How an attempt ends, and what kind it is.
STATUSES = ("ok", "shed", "error", "timeout", "cancelled")
OK, SHED, ERROR, TIMEOUT, CANCELLED = range(5)
FIRST_TRY, RETRY, HEDGE = range(3)
# What happens to a fleet at a given time, by plan or by a rule.
SLOW, CRASH, START, DRAIN, ROTATE, SCALE_OUT, SCALE_IN, LEFT = range(8)

REQUEST = row_kind(
    "prompt output follower "  # tokens; the request that comes after its answer, or -1
    "names named named_prompt "  # where the hashes of its blocks begin, how many there are, how many of the prompt
    "session tenant tries copies live done "
    "first second",  # who tries, and who tries beside
    "due think within "  # due NaN: `think` after the answer to the one before; within: its first token is wanted
    "late",  # how long its tokens take to its client
)

ATTEMPT = row_kind(
    "serial request kind attempt replica status where "
    "prompt output names named named_prompt salt "
    "left right "  # in the heap of those that wait
    "made "  # tokens so far
    "need done chunk "  # tokens to prefill, of which these are, and these will be by the end of the step
    "held "  # blocks with a name
    "before begin end "  # context when it began to decode, at which step that was, at which it will be done
    "away "  # its memory is swapped out, or on its way
    "cached recomputed preemptions "
    "known "  # tokens of its prompt that were expected to be cached when it was sent
    "open step ran",  # the last stretch of its tokens: whether there is one, from which step on, for how many
    "due within sent key started ended answered "
    "first "  # of the last stretch: when the token that a prefill made came; NaN: there is none
    "handed",  # when the first token would have been handed out last, with the others a `delay` apart from then on
)

REPLICA = row_kind(
    "number batching order sheds sequences tokens page padding blocks watermark ahead longest drafts role limited "
    "limit root waiting backlog running filling slots free step soonest phase steps preponed leaving freed refused "
    "first last unused spares salt up draining crashed "  # first and last in line; draining 2: then it is gone
    "kept_step",  # of a run that is held back because it will be spread over the prefill after it
    # A step lasts fixed + max(floor, token * tokens) + reading * sum of contexts + attention * sum of chunk *
    # (context + chunk / 2) + sequence * sequences + packed * tokens * tokens in memory, times `slow`.
    "fixed floor token reading attention sequence packed swap draft draft_step gain slow "
    "transfer transfer_token "  # to hand a prompt over to those that decode: once, and for each token
    "context start pace slope next busy up_since kept_start kept_pace "
    "admitted gap",  # when somebody was last taken from a queue, and how long that takes on average
)

SEAT = row_kind("attempt end filling")  # who decodes and when it is done; and, beside it, who is prefilled
BLOCK = np.dtype(  # of memory, with a name: small, because they are many
    [("name", np.int64), ("stamp", np.int64), ("chain", np.int32), ("users", np.int32), ("spare", np.int32)], align=True
)
LINE = row_kind("block stamp")  # of those that nobody uses, in the order in which they will be forgotten
LATER = row_kind("order kind number serial", "time")
RUN = row_kind("replica step", "start pace slope")  # from this step on, step j lasts pace + slope * j
SEGMENT = row_kind("serial replica step steps", "first")  # tokens of an attempt that moved or had to make room
EVENT = row_kind("kind replica", "time value every until")  # again every so often, until then
LOG = row_kind("kind replica", "time value")  # the value of one that left: since when it was there
WORLD = row_kind(
    "arrived scheduled waits order runs segments ended events live taken spare serial seed requests retries hedges "
    "answered answers slow ends good "  # the last four since a scaler looked
    "exact weighs stride",  # for routing: whether caches say what they have, and memory counts; blocks behind a name
    "now bucket bucket_time hedge_after "
    "viewed view_every "  # when routing saw the replicas last, and how often it does; 0: always
    "delay",  # between two tokens that are handed out, at least
)
CLIENT = row_kind(
    "tries on_error on_timeout on_shed",
    "timeout patience pause factor cap jitter budget hedge_after hedge_percentile hedge_budget "
    "bucket_rate bucket_burst tail",
)
SCALER = row_kind("signal least most", "target every delay idle")
