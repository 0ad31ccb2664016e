"""From a row of a demand to the texts that a server is sent."""

from itertools import groupby
from typing import Any, NamedTuple

from openloop.workload.demand import ASSISTANT, SYSTEM, USER, Demand
from openloop.workload.words import Words

ROLES = {USER: "user", ASSISTANT: "assistant", SYSTEM: "system"}


class Ask(NamedTuple):
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


class Prompts:
    """Makes what each request asks, in any order; a turn of a conversation after the answer to the one before it."""

    def __init__(self, demand: Demand, words: Words) -> None:
        self._demand = demand
        self.words = words
        self._grows = demand.with_answers
        named = demand.session, demand.texts, demand.workload_class, demand.tenant
        self._plain = all(each is None for each in named)  # requests are nobody's, and made of words
        self._said: dict[int, list[tuple[str, str]]] = {}  # in conversations that go on, with what was really answered

    def ask(self, number: int) -> Ask:
        demand = self._demand
        if self._plain:
            return Ask(self._made(number), demand.output_tokens.item(number) or None)
        session = None if demand.session is None else int(demand.session[number])
        follows = demand.after is not None and bool(demand.after[number] >= 0)
        record = -1 if demand.texts is None else int(demand.texts[number])
        if record >= 0:
            pieces = demand.pieces.of(number)  # maybe only the first of them
            messages = demand.corpus[record][: pieces.stop - pieces.start]
        elif follows and session in self._said:
            messages = (*self._said[session], *self._made(number, last=True))
        else:
            messages = self._made(number)
        if session is not None and self._grows:
            self._said[session] = list(messages)
        known = demand.known[record] if record >= 0 and demand.known else (None, None)
        return self.bare(number, messages, *known)

    def bare(
        self,
        number: int,
        messages: tuple[tuple[str, str], ...] = (),
        reference: str | None = None,
        context: str | None = None,
    ) -> Ask:
        """Whose a request is, without its texts if these are not given."""
        demand = self._demand
        session = None if demand.session is None else int(demand.session[number])
        codes = (demand.workload_class, demand.classes), (demand.tenant, demand.tenants)
        kind, tenant = (
            names[int(places[number])] if places is not None and names and places[number] >= 0 else None
            for places, names in codes
        )
        alone = session is None or session < 0
        turn = None if alone or demand.turn is None else int(demand.turn[number])
        tokens = int(demand.output_tokens[number]) or None
        return Ask(messages, tokens, kind, tenant, None if alone else session, turn, None, reference, context)

    def _made(self, number: int, *, last: bool = False) -> tuple[tuple[str, str], ...]:
        """The messages of a request, or only the last of them."""
        pieces, overhead = self._demand.pieces, self.words.scale.overhead
        place = pieces.of(number)
        if place.stop - place.start == 1:
            tokens = max(pieces.tokens.item(place.start) - overhead, 1)
            return ((ROLES[pieces.role.item(place.start)], self.words.text(pieces.identity.item(place.start), tokens)),)
        roles, identities = pieces.role[place].tolist(), pieces.identity[place].tolist()
        tokens = pieces.tokens[place].tolist()
        tokens[-1] = max(tokens[-1] - overhead, 1)
        rows = list(zip(roles, identities, tokens, strict=True))
        groups = [(role, list(each)) for role, each in groupby(rows, key=lambda row: row[0])]
        return tuple(
            (ROLES[role], " ".join(self.words.text(identity, size) for _, identity, size in each))
            for role, each in (groups[-1:] if last else groups)
        )

    def answered(self, number: int, text: str | None) -> None:
        """What a request was answered; the next turn repeats it."""
        if self._demand.session is not None:
            said = self._said.get(int(self._demand.session[number]))
            if said is not None:
                said.append(("assistant", text or "yes"))

    def over(self, number: int) -> None:
        """Nothing follows this request."""
        if self._demand.session is not None:
            self._said.pop(int(self._demand.session[number]), None)
