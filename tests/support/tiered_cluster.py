"""Three whole nodes in the simulator with an object store in memory, for tests of the tier."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any, Self

import msgspec
from xxhash import xxh3_128

from cluster.tier.manifest_format import Head, TierManifest, decode_page
from cluster.tier.object_names import HEAD
from jepsen_like.sim.machines.machine import CLUSTER
from jepsen_like.sim.machines.tier_store import CALM, SimStore, Weather
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import IndexMeta
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.index_file.index_reader import drive
from statemachine.tier import TierState
from tests.support.sim_cluster import SimCluster, send_frame

FOLDER = str(CLUSTER)
EVICTING: dict[str, Any] = {
    "retention.bytes_max": 1 << 15,
    "retention.every_ms": 100,
    "retention.delete_when": "",
    "tier.evict": True,
}
"""Nodes keep two segments or three."""


def checked(index: bytes) -> IndexMeta:
    """Returns the description in an intact index file of itself."""
    return drive(check_index(len(index)), lambda at, length: index[at : at + length]).meta


class Tiered:
    """The nodes, their store, and messages that fill segments."""

    def __init__(self, seed: int = 1, weather: Weather = CALM, **overrides: Any) -> None:
        self.sim = SimCluster(seed, segment_size=1 << 14, **({"tier.url": "memory:"} | overrides))
        self.store = SimStore(self.sim.loop, random.Random(seed), weather)
        for node in self.sim.nodes.values():
            node.open_store = lambda url: self.store
        self.sent = 0

    def __enter__(self) -> Self:
        self.sim.__enter__()
        self.sim.create_topic("t")
        return self

    def __exit__(self, *_: object) -> None:
        self.sim.__exit__()

    def send(self, count: int, size: int = 1000, *, keyed: bool = False) -> None:
        """Messages of so many bytes, through the leader, eight in flight; `keyed`: with the keys k1, k2, and so on."""
        path = self.sim.leader().connect()
        asked: list[int] = []

        def answered() -> bool:
            return len(path.replies) >= len(asked) or path.closed

        while len(asked) < count and not path.closed:
            for _ in range(min(8, count - len(asked))):
                self.sent += 1
                asked.append(self.sent)
                path.ask(send_frame(self.sent, "t", b"m" * size, key=f"k{self.sent}" if keyed else ""))
            self.sim.loop.run_until(answered, 30, "answers")

    def leader_state(self) -> Any:
        return self.sim.leader().state

    def sealed_end(self) -> int:
        return self.sim.leader().log.tail.segment_base

    def verified(self) -> int:
        state = self.leader_state()
        verified: int = state.tier.verified_to(state.trim_position)
        return verified

    def upload_all(self, limit_s: float = 60.0) -> None:
        end = self.sealed_end()
        self.sim.loop.run_until(lambda: self.verified() >= end, limit_s, "everything is verified")

    def object(self, name: str) -> bytes:
        return self.store.inner.objects[f"{FOLDER}/{name}"]

    def manifest(self) -> TierManifest:
        head = msgspec.json.decode(self.object(HEAD), type=Head)
        body = self.object(head.key)
        assert sha256(body).hexdigest() == head.sha256
        read = msgspec.json.decode(body, type=TierManifest)
        older = [segment for page in read.pages for segment in decode_page(page, self.object(page.name))]
        return msgspec.structs.replace(read, segments=older + read.segments)

    def wait_published(self) -> None:
        """Waits until the newest manifest lists every row."""
        rows = {(row.base, row.end) for row in self.leader_state().tier.rows}

        def listed() -> bool:
            is_there = f"{FOLDER}/{HEAD}" in self.store.inner.objects
            return is_there and rows <= {(s.base, s.end) for s in self.manifest().segments}

        self.sim.loop.run_until(listed, 30, "the manifest")

    def check(self) -> None:
        """The rows, the log and the store say the same."""
        node = self.sim.leader()
        at = 0
        for row in node.state.tier.rows:
            if row.state is not TierState.VERIFIED:
                continue
            assert row.base == at
            for part in row.parts:
                data = self.object(part.name)
                assert (len(data), xxh3_128(data).digest()) == (part.size, part.digest)
            whole = b"".join(self.object(part.name) for part in row.parts if part.name.startswith("log/"))
            assert len(whole) == row.end - row.base
            (index,) = [self.object(part.name) for part in row.parts if part.name.startswith("index/")]
            meta = checked(index)
            assert (meta.base, meta.end, meta.last_index) == (row.base, row.end, row.span.last_index)
            if row.base >= node.log.first_position:
                again = bytearray()
                entries = node.log.read_entries(meta.first_index, meta.last_index + 1, 1 << 30)
                write_index_of_log(entries, meta, again.extend)
                assert index == again
                assert whole == node.log.read_at(row.base, row.end - row.base)
            at = row.end
