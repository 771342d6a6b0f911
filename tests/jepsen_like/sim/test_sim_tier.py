"""The simulator's judgement of the tier, and the parts of machines that only a tier's seeds have needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.broker.reads.tier_read_policy import FORCE, LEVELS
from jepsen_like.sim.checks.tier_check import FOLDER, TierCheck
from jepsen_like.sim.machines.lane_steps import may_stop
from jepsen_like.sim.machines.lanes import DiskSpeed, SimLane
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import DATA, Machine
from jepsen_like.sim.machines.network import EdgeConditions, Network
from jepsen_like.sim.machines.tier_store import SimStore, Weather
from jepsen_like.sim.options import TIER_READS_FROM, draw, stream
from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.storage.files import layout
from raftlog.types import NodeId
from statemachine.rows.kv import META, Batch
from statemachine.tier import TierState

ONE, TWO = NodeId(1), NodeId(2)
UPLOADED = "nodes 3 tier=1 segment_size=12288\nlead 1\nsend 16 body=1000\nwait 1\nsettle\n"


def test_a_log_that_rots_is_no_witness_against_the_tier_and_a_sound_one_is() -> None:
    """Seed 2100063: the first node to apply VERIFIED had a rotten entry, which nothing had read yet."""

    def look(stage: ScriptedWorld) -> None:
        assert stage.store is not None
        one, two = stage.machines[ONE], stage.machines[TWO]
        assert one.node is not None
        assert two.node is not None
        rows = two.node.state.tier.rows
        assert rows[0].state is TierState.VERIFIED
        log = one.node.storage.directory.log
        one.rot(log.read_entries(rows[0].span.first_index + 1, rows[0].span.first_index + 2, 1)[0], log)
        found: list[str] = []
        check = TierCheck(stage.store, lambda checker, what: found.append(what), copies=False)
        check.applied(one)
        assert found == []
        name = f"{FOLDER}/{rows[0].parts[0].name}"
        stage.store.inner.objects[name] = bytes(len(stage.store.inner.objects[name]))
        check.applied(two)
        assert found == [f"the segment at {rows[0].base} is VERIFIED, and the tier holds other bytes than node 2"]

    class Looked(ScriptedWorld):
        def phases(self) -> None:
            super().phases()
            look(self)

    assert not Looked(UPLOADED).run().violations


def test_what_is_swept_is_an_orphan_and_what_a_segment_names_is_none() -> None:
    def look(stage: ScriptedWorld) -> None:
        assert stage.store is not None
        found: list[str] = []
        check = TierCheck(stage.store, lambda checker, what: found.append(what), copies=False)
        check.applied(stage.machines[ONE])
        node = stage.machines[ONE].node
        assert node is not None
        row, name = node.state.tier.rows[0], node.state.tier.rows[0].parts[0].name
        stage.store.on_removed(f"{FOLDER}/{name.replace('.seg', '-1.seg')}")
        assert (row.state, found) == (TierState.VERIFIED, [])
        unknown = f"log/{row.base + 1:020d}-{row.end:020d}.{0:016d}.seg"
        for removed in (name, unknown):
            stage.store.on_removed(f"{FOLDER}/{removed}")
        assert found == [f"{removed} was removed, and no row says that it may go" for removed in (name, unknown)]

    class Looked(ScriptedWorld):
        def phases(self) -> None:
            super().phases()
            look(self)

    assert not Looked(UPLOADED).run().violations


class _Stopping:
    """Stops once in each drain."""

    idle_after_s: float | None = None

    def drain(self, batch: Sequence[str]) -> list[str]:
        may_stop()
        return list(batch)

    def idle(self) -> None:
        """Nothing to do."""


class _Unwatched:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("stepped", [0.0, 1.0])
def test_a_lane_that_is_given_work_by_its_own_answer_does_all_of_it_in_order(stepped: float) -> None:
    """Seeds 2100032 and 2200007: a second drain began beside the first, whose answers were lost."""
    loop, process = SimLoop(10_000), Process("node", "10.0.0.1")
    answers: list[list[str]] = []

    def done(batch: list[str]) -> None:
        answers.append(batch)
        if batch == ["first"]:
            lane.submit("second")

    def failed(error: BaseException) -> None:
        raise AssertionError(error)

    speed = DiskSpeed((0.001, 0.004), (0.0, 0.003))
    lane = SimLane("a", _Stopping(), loop, random.Random(1), speed, lambda: 1.0, _Unwatched(), done, failed)
    lane.stepped = stepped
    process.run(lane.submit, "first")
    for name in ("third", "fourth"):
        loop.call_outside(0.006 if name == "third" else 0.012, process.run, lane.submit, name)
    loop.call_outside(1.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert [name for batch in answers for name in batch] == ["first", "second", "third", "fourth"]
    assert all(answers)


def test_rows_that_a_start_in_vain_has_closed_are_opened_by_the_next() -> None:
    """Seed 2100067: a node that fetched a checkpoint from a peer could not open its state again."""

    loop, options = SimLoop(10), draw(0)
    network = Network(loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
    machine = Machine(ONE, options, loop, network, _Unwatched())
    loop.close()
    rows = machine.open_kv(str(DATA / layout.STATE))
    batch = Batch()
    batch.put(META, b"row", b"kept")
    rows.write(batch)
    rows.close()
    assert machine.open_kv(str(DATA / layout.STATE)).get(META, b"row") == b"kept"


def test_where_pulls_read_and_how_pages_are_cut_is_drawn_last() -> None:
    """Earlier seeds mean what they meant: what they showed is recorded."""
    earlier = [draw(seed) for seed in range(TIER_READS_FROM - 60, TIER_READS_FROM)]
    assert {(each.tier_read, each.tier_page) for each in earlier} == {(0, 0)}
    drawn = [draw(seed) for seed in range(TIER_READS_FROM, TIER_READS_FROM + 120)]
    assert {each.tier_read for each in drawn if each.tier} == set(range(len(LEVELS)))
    assert {each.tier_page for each in drawn if each.tier} == {0, 2, 5}
    assert {(each.tier_read, each.tier_page) for each in drawn if not each.tier} == {(0, 0)}


def test_a_machine_reads_and_cuts_as_its_seed_says() -> None:
    loop = SimLoop(10)
    options = draw(0)._replace(tier=1, tier_read=LEVELS.index(FORCE), tier_page=2)
    network = Network(loop, EdgeConditions(stream(0, "network"), options.latency_s, options.split))
    machine = Machine(ONE, options, loop, network, _Unwatched())
    loop.close()
    assert machine.config.tier.read == FORCE


def test_a_store_lists_its_root_and_keeps_an_empty_object_whole() -> None:
    loop = SimLoop(10_000)
    store = SimStore(loop, random.Random(1), Weather(torn=1.0))

    async def listed() -> list[list[str]]:
        for name in ("a/1", "ab/2", "c"):
            await store.create(name, b"")
        return [[info.name async for info in store.list(folder)] for folder in ("", "a", "b")]

    task = Process("p", "h").run(loop.create_task, listed())
    loop.call_outside(1.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert task.result() == [["a/1", "ab/2", "c"], ["a/1"], []]
    assert store.torn == set()
