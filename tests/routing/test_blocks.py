"""What replicas say of their caches, against caches that are there."""

from collections import OrderedDict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openloop.routing import Blocks, Router, read_events, token_names

SIZE, ROOM = 4, 6


class Engine:
    """A prefix cache of few blocks, which publishes as vLLM does; hashes are its own."""

    def __init__(self, as_lists: bool) -> None:
        self.held: OrderedDict[tuple[int, ...], int] = OrderedDict()  # a prefix to how many blocks have it
        self.published: list[Any] = []
        self.as_lists = as_lists

    def say(self, kind: str, **fields: Any) -> None:
        self.published.append([kind, *fields.values()] if self.as_lists else {"type": kind, **fields})

    def hits(self, tokens: list[int]) -> int:
        found = 0
        while found + SIZE <= len(tokens) and tuple(tokens[: found + SIZE]) in self.held:
            found += SIZE
        return found

    def serve(self, tokens: list[int], copies: int) -> None:
        """Requests at the same moment do not see each other, so each stores its own copy."""
        start = self.hits(tokens)
        whole = len(tokens) // SIZE * SIZE
        for _ in range(copies if whole > start else 0):
            prefixes = [tuple(tokens[:end]) for end in range(start + SIZE, whole + 1, SIZE)]
            parent = hash(tuple(tokens[:start])) if start else None
            self.say("BlockStored", block_hashes=[hash(each) for each in prefixes], parent_block_hash=parent,
                     token_ids=tokens[start:whole], block_size=SIZE, lora_id=None)  # fmt: skip
            for each in prefixes:
                self.held[each] = self.held.get(each, 0) + 1
        while sum(self.held.values()) > ROOM:  # leaves first, so that a prefix never outlives its beginning
            gone = max(self.held, key=len)
            self.say("BlockRemoved", block_hashes=[hash(gone)])
            self.held[gone] -= 1
            if not self.held[gone]:
                del self.held[gone]

    def batch(self) -> bytes:
        events, self.published = self.published, []
        return msgspec.msgpack.encode([1.5, events, 0])


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=18)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), prompts, st.integers(1, 2)), max_size=25), st.booleans())
def test_what_a_cache_holds_is_known_exactly(asked: list[tuple[int, list[int], int]], as_lists: bool) -> None:
    router, engines, blocks = Router("kv-aware", 2), [Engine(as_lists), Engine(as_lists)], [Blocks(), Blocks()]
    for place in range(2):
        router.cache_event(place)  # it publishes, and has nothing yet
    for place, prompt, copies in asked:
        router.route(0.0, len(prompt), names=token_names(prompt, SIZE), each=SIZE)
        assert router.views["cached"].tolist() == [each.hits(prompt) for each in engines]
        engines[place].serve(prompt, copies)
        at, events = read_events(engines[place].batch())
        assert at == 1.5
        for event in events:
            router.cache_event(place, *blocks[place].take(event))
    for place, each in enumerate(blocks):
        assert len(each) == len(engines[place].held)
        router.cache_event(place, *each.take({"type": "AllBlocksCleared"}))
    assert not router.held[:, :].any()


@pytest.mark.parametrize(
    "more",
    [{"lora_id": 1}, {"lora_name": "a"}, {"extra_keys": [["salt"]]}, {"medium": "CPU"}, {"group_idx": 1},
     {"parent_block_hash": 99}],
)  # fmt: skip
def test_a_block_that_its_tokens_do_not_tell_is_left_out(more: dict[str, Any]) -> None:
    event = {"type": "BlockStored", "block_hashes": [b"h"], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
             "block_size": 4, "lora_id": None, "medium": "GPU", "extra_keys": [None], "group_idx": 0}  # fmt: skip
    assert Blocks().take(event | more) == ([], [])
    assert Blocks().take(event) == (token_names([1, 2, 3, 4], 4), [])


def test_who_says_what_it_holds_is_not_guessed_at() -> None:
    router, names = Router("kv-aware:load=0", 2), token_names(range(64), 16)
    router.route(0.0, 64, names=names, each=16)  # goes to 0, and is thought to be there
    router.route(0.0, 64, names=names, each=16)
    assert router.views["cached"].tolist() == [64, 0]
    router.cache_event(0, names[:1])
    router.route(0.0, 64, names=names, each=16)
    assert router.views["cached"].tolist()[0] == 16
    router.forget(0)  # it was away for a while: it says itself when its cache is gone
    router.route(0.0, 64, names=names, each=16)
    assert router.views["cached"].tolist()[0] == 16
    router.forget_cache(0)
    router.route(0.0, 64, names=names, each=16)
    assert router.views["cached"].tolist()[0] == 0
