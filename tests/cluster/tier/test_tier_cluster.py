"""Three whole nodes with a store: segments reach it whatever becomes of leaders, and none goes before it is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from cluster.tier.object_names import HEAD, parse
from cluster.tier.published_manifest import Head, Manifest
from cluster.tier.store.errors import Denied
from jepsen_like.sim.machine import CLUSTER
from jepsen_like.sim.tier_store import CALM, SimStore, Weather
from raftlog.types import EntryType
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import IndexMeta
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.index_file.index_reader import drive
from statemachine.tier import TierState
from tests.support.sim_cluster import SimCluster, SimNode, send_frame

FOLDER = str(CLUSTER)
STORM = Weather(refused=0.2, lost=0.15, late=0.1, torn=0.2)


def checked(index: bytes) -> IndexMeta:
    """What an intact index file says of itself."""
    return drive(check_index(len(index)), lambda at, length: index[at : at + length]).meta


class Tiered:
    """The nodes, their store, and messages that fill segments."""

    def __init__(self, seed: int = 1, weather: Weather = CALM, **overrides: Any) -> None:
        self.sim = SimCluster(seed, segment_size=1 << 14, **({"tier.url": "memory:"} | overrides))
        self.store = SimStore(self.sim.loop, random.Random(seed), weather)
        for node in self.sim.nodes.values():
            node.open_store = lambda url: self.store
        self.sent = 0

    def send(self, count: int, size: int = 1000) -> None:
        """Messages of so many bytes, through the leader, eight in flight."""
        path = self.sim.leader().connect()
        asked: list[int] = []

        def answered() -> bool:
            return len(path.replies) >= len(asked) or path.closed

        while len(asked) < count and not path.closed:
            for _ in range(min(8, count - len(asked))):
                self.sent += 1
                asked.append(self.sent)
                path.ask(send_frame(self.sent, "t", b"m" * size))
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

    def manifest(self) -> Manifest:
        head = msgspec.json.decode(self.object(HEAD), type=Head)
        body = self.object(head.key)
        assert sha256(body).hexdigest() == head.sha256
        return msgspec.json.decode(body, type=Manifest)

    def wait_published(self) -> None:
        """Until the newest manifest lists every row."""
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
                assert (len(data), sha256(data).digest()) == (part.size, part.sha256)
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


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    running: list[Tiered] = []

    def make(*arguments: Any, **named: Any) -> Tiered:
        made = Tiered(*arguments, **named)
        running.append(made)
        made.sim.__enter__()
        made.sim.create_topic("t")
        return made

    yield make
    for made in running:
        made.sim.__exit__()


def test_sealed_segments_are_uploaded_and_verified_in_their_order(tiered: Callable[..., Tiered]) -> None:
    all_of_it = tiered()
    all_of_it.send(60)
    all_of_it.upload_all()
    all_of_it.check()
    assert all_of_it.sealed_end() > 3 << 14
    all_of_it.wait_published()
    all_of_it.sim.settle()
    all_of_it.sim.check_equal()


def test_the_next_leader_goes_on_where_the_last_one_was_killed(tiered: Callable[..., Tiered]) -> None:
    made = tiered(2)
    made.send(60)
    for _ in range(4):
        made.sim.loop.run_for(0.03)
        leader = made.sim.leader()
        leader.kill(power=False)
        made.sim.leader(besides=leader)
        leader.start()
        made.send(15)
    made.upload_all()
    made.check()
    names = [name.removeprefix(f"{FOLDER}/") for name in made.store.inner.objects]
    parts = [(found.folder, found.base) for found in map(parse, names) if found is not None]
    assert len(parts) == len(set(parts)), "a part was written under two names"


def test_a_store_that_fails_and_tears_holds_uploads_up_and_no_more(tiered: Callable[..., Tiered]) -> None:
    made = tiered(3, STORM)
    made.send(80)
    made.sim.loop.run_for(20)
    made.store.weather = CALM
    made.upload_all(300)
    made.check()
    assert made.store.torn, "the seed tore nothing"


def test_nothing_is_trimmed_that_the_tier_does_not_hold(tiered: Callable[..., Tiered]) -> None:
    made = tiered(4, **{"retention.bytes_max": 1 << 15, "retention.every_ms": 100, "retention.delete_when": ""})
    made.store.weather = Weather(refused=1.0)
    made.send(80)
    made.sim.loop.run_for(10)
    assert made.leader_state().trim_position == 0
    made.store.weather = CALM
    made.upload_all(120)
    state = made.sim.leader().state
    made.sim.loop.run_until(lambda: made.leader_state().trim_position > 0, 200, "a TRIM")
    assert state.trim_position <= state.tier.rows[-1].end


def test_a_seal_closes_the_last_segment_on_every_node(tiered: Callable[..., Tiered]) -> None:
    made = tiered(5)
    made.send(3)
    leader = made.sim.leader()
    end = leader.log.tail.end_position
    entry = leader.run(leader.running.tier.seal)
    made.sim.loop.run_until(lambda: leader.state.applied.index >= entry.index, 10)
    made.upload_all()
    made.check()
    assert made.verified() >= end
    made.sim.settle()
    assert {node.log.segment_at(0).end_position for node in made.sim.running} == {leader.state.tier.rows[0].end}
    rolled = leader.log.read_entries(entry.index, entry.index + 1, 1 << 20)[0]
    assert (rolled.type, rolled.flags) == (EntryType.COMMAND, 1)


def test_an_alarm_says_that_nothing_reaches_the_store(tiered: Callable[..., Tiered]) -> None:
    made = tiered(6)

    async def denied(name: str, data: object) -> None:
        raise Denied("the key is not known", "export AWS_ACCESS_KEY_ID")

    made.store.create = denied  # type: ignore[method-assign]
    made.send(40)
    leader: SimNode = made.sim.leader()
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("tier_stuck"), 200, "the alarm")
    view = leader.running.tier.view("memory:")
    assert "the key is not known" in view.failing
    assert view.pending_bytes > 0 < view.failures
    del made.store.create
    made.upload_all(120)
    assert not leader.running.alarms.raised("tier_stuck")
