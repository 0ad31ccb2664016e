"""What caches know of a run's prompts: salts that make them new, and a pass over prefixes before the clock starts."""

import hashlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from openloop.load.address import Place
from openloop.load.exchange import exchange
from openloop.load.plan import Load
from openloop.load.targets import HttpTarget, Target
from openloop.load.wire import WireError
from openloop.said import without_secrets
from openloop.workload import Ask, Demand, Prompts, Warming, Words, priming

AT_ONCE = 4
FIRST = 1 << 40  # numbers that no request of a run has


class Salter:
    """Gives prompts a start that no earlier run had, and that changes as the warmth says."""

    def __init__(self, warming: Warming, seconds: float, *, as_field: bool) -> None:
        self.warming = warming
        self._seconds = seconds
        self._as_field = as_field
        self._run = os.urandom(8)

    def salted(self, ask: Ask, number: int, due_s: float) -> Ask:
        return self._with(ask, self.warming.salt(number, due_s, self._seconds))

    def primes(self, demand: Demand, words: Words) -> list[Ask]:
        """What is asked before the clock starts; where caches are to stay empty, one request that loads the model."""
        if not self.warming.touches:
            return []
        first = priming(demand) if self.warming.primes else demand
        prompts = Prompts(first, words)
        count = len(first) if self.warming.primes else 1
        salt = 0 if self.warming.primes else -1
        return [self._with(prompts.ask(place), salt) for place in range(count)]

    def _with(self, ask: Ask, salt: int) -> Ask:
        word = hashlib.blake2b(self._run + salt.to_bytes(8, "big", signed=True), digest_size=4).hexdigest()
        if self._as_field:
            return ask._replace(body={**(ask.body or {}), "cache_salt": word})
        (role, text), *rest = ask.messages
        return ask._replace(messages=((role, f"{word} {text}"), *rest))


def prime(load: Load, demand: Demand, salter: Salter, words: Words, stop: Callable[[], bool]) -> tuple[list[str], bool]:
    """Ask every server, before the clock starts, what its cache is to know; what to say of that, and whether it does.

    Not being able to is a note, and no such state.
    """

    def one(job: tuple[int, tuple[Ask, tuple[Place, Target]]]) -> str | None:
        number, (ask, (place, target)) = job
        if stop():
            return "interrupted"
        if not isinstance(target, HttpTarget):
            return "only servers over HTTP can be primed"
        request = target.encode(ask._replace(output_tokens=target.fewest), number)
        try:
            found = target.decode(exchange(place, request, load.timeout_s))
        except (OSError, WireError) as error:
            return without_secrets(str(error), target.secrets) or type(error).__name__
        return None if found.status == "ok" else found.error or found.status

    jobs = list(itertools.product(salter.primes(demand, words), load.sites))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        whys = [why for why in pool.map(one, enumerate(jobs, FIRST)) if why is not None]
    why = f": {whys[0]}" if whys else ""
    note = f"primed with {len(jobs) - len(whys):,} of {len(jobs):,} prefixes{why}"
    if not salter.warming.primes:
        note = f"the model could not be asked beforehand{why}"
    return [note] if salter.warming.primes or whys else [], not whys
