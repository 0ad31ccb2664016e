"""What clients do, what a fleet refuses, and when it grows: as a user writes it, and as the loop takes it."""

from typing import Any, Literal

import numpy as np

from openloop.admission import Admission, Bucket, Deadline, InFlight, Queue
from openloop.arrays import records
from openloop.errors import SpecError
from openloop.persistence import Hedge, Repair, Retry, read_hedge, read_repair, read_retry
from openloop.sim.tables import BUCKET, CLIENT, IN_FLIGHT, LIKELY_LATE, QUEUE, SCALER
from openloop.spec import Strict
from openloop.units import parse_number, parse_seconds, parse_share


class Client(Strict, frozen=True):
    """How users behave."""

    timeout: str | None = None  # an attempt is given up after this
    patience: str | None = None  # a user who has no token by then leaves for good
    retry: str | int | None = None
    hedge: str | None = None
    repair: str | int | None = None  # of answers that fail the fleet's quality

    @property
    def asks_only(self) -> bool:
        """Whether nobody leaves, tries again or sends a copy: the loop then needs to know nothing of them."""
        return self.timeout is self.patience is self.retry is self.hedge is None

    def persistence(self) -> str | None:
        """In a word, for the manifest."""
        return "; ".join(str(each) for each in (self.retries(), self.hedges(), self.repairs()) if each) or None

    def repairs(self) -> Repair | None:
        return None if self.repair is None else read_repair(str(self.repair))

    def retries(self) -> Retry | None:
        return None if self.retry is None else read_retry(str(self.retry))

    def hedges(self) -> Hedge | None:
        return None if self.hedge is None else read_hedge(str(self.hedge))


class Autoscaling(Strict, frozen=True):
    """One replica more when `on` is over (goodput: under) its target, one less when fewer than `idle` requests are in
    flight per replica. Looked at `every` so often; a new one serves after `delay`."""

    on: Literal["queue", "tail", "goodput"]
    target: str | float  # requests that wait per replica; seconds for 99 of 100 first tokens; a share that is in time
    most: int
    least: int = 1
    idle: float = 0.0
    every: str = "15s"
    delay: str = "60s"


MOST_REPLICAS = 10_000
LIMITS: dict[type[Admission], int] = {InFlight: IN_FLIGHT, Queue: QUEUE, Bucket: BUCKET, Deadline: LIKELY_LATE}


def client_row(client: Client | None, admission: Admission | None, scale: Autoscaling | None) -> Any:
    row = records(CLIENT, 1)
    c = row[0]
    c.timeout = c.patience = c.hedge_after = c.tail = np.inf
    if client is not None:
        c.timeout = _time("timeout", client.timeout)
        c.patience = _time("patience", client.patience)
        retry, hedge = client.retries(), client.hedges()
        if retry is not None:
            c.tries, c.pause, c.factor, c.cap, c.jitter = retry.most, retry.base, retry.factor, retry.cap, retry.jitter
            c.budget = np.inf if retry.budget is None else retry.budget
            c.on_error, c.on_timeout = retry.applies("error", 500), retry.applies("timeout", None)
            c.on_shed = retry.applies("shed", 429)
        if hedge is not None:
            if hedge.after.seconds is not None:
                c.hedge_after = hedge.after.seconds
            else:
                c.hedge_percentile = (hedge.after.percentile or 0.0) / 100
            c.hedge_budget = hedge.budget
    if isinstance(admission, Bucket):
        c.bucket_rate, c.bucket_burst = admission.rate, admission.burst
    if scale is not None and scale.on == "tail":
        c.tail = parse_seconds(str(scale.target))
    return row


def _time(what: str, text: str | None) -> float:
    found = np.inf if text is None else parse_seconds(text)
    if found <= 0:
        raise SpecError(f"client: {what} is {text}; it is more than nothing, such as 10s")
    return found


def scaler_row(scale: Autoscaling, fleet: int) -> Any:
    if not 1 <= scale.least <= fleet <= scale.most <= MOST_REPLICAS:
        raise SpecError(
            f"scale: at least {scale.least}, at most {scale.most}, and {fleet} to begin with; "
            f"they must rise from the first over the third to the second, which is {MOST_REPLICAS:,} or less"
        )
    row = records(SCALER, 1)
    c = row[0]
    c.signal = ("queue", "tail", "goodput").index(scale.on)
    c.least, c.most, c.idle = scale.least, scale.most, scale.idle
    c.every, c.delay = parse_seconds(scale.every), parse_seconds(scale.delay)
    if not c.every >= 1e-3:
        raise SpecError(f"scale: every is {scale.every}; how often is the fleet looked at? Such as every: 15s")
    if scale.on == "queue":
        c.target = parse_number(str(scale.target))
    elif scale.on == "goodput":
        c.target = parse_share(str(scale.target))
    return row
