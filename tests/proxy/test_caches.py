"""Replicas that publish what their caches hold, over real sockets."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from openloop.errors import SpecError
from openloop.proxy import read_proxy
from tests.proxy.fakes import CHAT, DONE, Fake, World, last, refuses, token, until, world

zmq = pytest.importorskip("zmq")

SIZE = 4


def stored(text: str, parent: int | None = None) -> dict[str, Any]:
    hashes = [hash(text[: end + SIZE]) for end in range(0, len(text) // SIZE * SIZE, SIZE)]
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "lora_id": None,
            "token_ids": [ord(each) for each in text[: len(hashes) * SIZE]], "block_size": SIZE}  # fmt: skip


class Publisher:
    """As vLLM has it: batches with numbers, and the last ones once more for who asks."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.out, self.again = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (self.out, self.again)]
        self.keys = dict(zip(("kv_events", "kv_replay"), (f"tcp://127.0.0.1:{port}" for port in ports), strict=True))
        self.kept: list[tuple[int, bytes]] = []
        self.number = self.asked = 0

    def publish(self, *events: dict[str, Any], lost: bool = False) -> None:
        payload = msgspec.msgpack.encode([float(1000 * self.asked + len(self.kept)), list(events), 0])
        self.kept.append((self.number, payload))
        if not lost:
            self.out.send_multipart([b"", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    async def serve(self) -> None:
        while True:
            if self.again.poll(0):
                who, _, start = self.again.recv_multipart()
                self.asked += 1
                for number, payload in self.kept:
                    if number >= int.from_bytes(start, "big"):
                        self.again.send_multipart([who, b"", b"", number.to_bytes(8, "big"), payload])
                self.again.send_multipart([who, b"", b"", b"\xff" * 8, b""])
            await asyncio.sleep(0.005)


async def reads(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    """A token is a letter."""
    said = msgspec.json.decode(await request.read())
    if request.path == "/tokenize":
        return web.json_response({"tokens": [ord(each) for each in said["messages"][0]["content"]]})
    return web.Response(body=token("one") + last(1) + DONE, content_type="text/event-stream")


async def thought(w: World, prompt: str) -> list[int]:
    """What the policy sees of a prompt in the caches."""
    assert (await w.ask(prompt))[0] == 200
    return [int(each) for each in w.proxy.fleet.router.views["cached"]]


def test_a_proxy_knows_what_caches_hold(tmp_path: Path) -> None:
    async def main(here: Publisher, there: Publisher) -> None:
        here.publish(stored("before the proxy"))
        serving = [asyncio.create_task(each.serve()) for each in (here, there)]
        keys = {"routing": "kv-aware", "replica_keys": [here.keys, there.keys]}
        async with world(tmp_path, reads, reads, **keys) as w:
            a, b = w.proxy.fleet.replicas
            await until(lambda: a.blocks == 4)  # what was before is told again
            assert await thought(w, "before the proxy was there") == [16, 0]
            while b.blocks == 0:  # a subscription takes a moment
                there.publish(stored("on the other side"))
                await asyncio.sleep(0.05)
            assert await thought(w, "on the other side") == [0, 16]
            there.publish(stored("missed, but kept"), lost=True)
            there.publish(stored("and seen"))
            await until(lambda: b.blocks == 10)
            assert await thought(w, "missed, but kept") == [0, 16]
            here.kept, here.number, asked = [], 0, here.asked  # it is started again, with an empty cache
            while a.blocks == 4:
                here.publish(stored("afresh!!"))
                await asyncio.sleep(0.05)
            assert (a.blocks, here.asked) == (2, asked + 1)
            assert await thought(w, "before the proxy") == [0, 0]
            here.publish({"type": "BlockStored", "nonsense": 1})
            await until(lambda: a.blocks == 0)
            here.publish(stored("and on it goes.."))
            await until(lambda: a.blocks == 4)
            salted = {"messages": [{"content": "and on it goes.."}], "cache_salt": "x"}
            async with w.session.post(w.url + CHAT, json=salted) as reply:
                assert reply.status == 200
            assert w.proxy.fleet.router.views["cached"].tolist() == [0, 0]  # it is nobody's
            w.fakes[0].handler = w.fakes[1].handler = refuses
            assert (await w.ask("and on it goes.."))[0] == 503  # with no tokens, by load
        for task, each in zip(serving, (here, there), strict=True):
            task.cancel()
            each.context.destroy(linger=0)

    asyncio.run(main(Publisher(), Publisher()))


def test_what_is_wrong_with_events_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = {"url": "http://127.0.0.1:1", "kv_events": "127.0.0.1:5557"}
    with pytest.raises(SpecError, match="'127.0.0.1:5557' is nowhere to listen to events"):
        read_proxy({"replicas": [replica]})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    replica["kv_events"] = "tcp://127.0.0.1:5557"
    read_proxy({"replicas": [replica], "routing": "prefix-aware"})  # which does not look at caches
    with pytest.raises(SpecError, match="pyzmq"):
        read_proxy({"replicas": [replica], "routing": "kv-aware"})
