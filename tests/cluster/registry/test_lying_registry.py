"""A process of the registry that lies: it has the secret, speaks the wire, and says whatever it likes. It takes nothing
away, and has nobody do anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from cluster.config.local_layout import REGISTRY_GROUP
from cluster.placement import known_groups
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, encode
from cluster.placement.known_groups import added
from cluster.placement.registry_state import RegistryState, encode_state
from cluster.runtime.peer_frames import GROUP_KINDS, REGISTRY_KINDS, Kind
from raftlog.types import NodeId
from statemachine.cluster_wide.broker_groups import BrokerGroup
from tests.cluster.registry.test_registrations import CLUSTER, STATE, Registry
from tests.support.group_node import PATIENT_LOOKS, Node
from tests.support.wait_until import until

Make = Callable[..., Awaitable[Node]]
ELSEWHERE = GroupMember(1, "10.9.9.9", 1, "", {"broker": "10.9.9.9:1"})
FRAMES: dict[Kind, tuple[list[Any], bytes]] = {
    Kind.TRUTH: ([1, 0, 15], b""),
    Kind.TRUTH_REPLY: ([1, 9, False], msgpack.packb([[1, "t", None]])),
    Kind.ACT: ([1, "ann"], msgpack.packb([["delete_topic", "orders"]])),
    Kind.ACT_REPLY: ([1, 0, 9, ""], msgpack.packb([[True, "", None]])),
    Kind.MEMBERS: ([1, "billing"], b""),
    Kind.MEMBERS_REPLY: ([1, True], msgpack.packb(["c@1"])),
    Kind.DEMANDS: ([], msgpack.packb([["topic=*", "topic=orders", "send_messages", 9.0]])),
    Kind.PLACES: ([], msgpack.packb([["orders", 9, [1]]])),
}


@pytest.fixture
async def liar() -> AsyncIterator[Registry]:
    made = Registry()
    await made.links.start()
    yield made
    await made.links.close()


@pytest.fixture
async def node(tmp_path: Path, liar: Registry) -> AsyncIterator[Make]:
    nodes: list[Node] = []

    async def make(group: int, first: int = 0) -> Node:
        at: dict[str, Any] = {"cluster.registry": [f"127.0.0.1:{liar.port}"]}
        nodes.append(await Node(tmp_path, group, first, str(CLUSTER), quiet_looks=PATIENT_LOOKS, **at).start())
        return nodes[-1]

    yield make
    for each in nodes:
        await each.close()
    await asyncio.sleep(0.05)


def say(liar: Registry, kind: Kind, header: list[Any], payload: bytes = b"") -> None:
    """Tells all nodes."""
    for link in liar.links.links.all():
        link.send(kind, header, payload)


async def test_older_epochs_and_foreign_groups_take_nothing_away(liar: Registry, node: Make) -> None:
    one = await node(1)
    two = await node(2, one.port)
    await until(lambda: one.knows(one, two) and two.knows(one, two) and len(liar.links.links.all()) == 2)
    for each in (one, two):
        each.rises()
    await until(lambda: one.knows(one, two) and two.knows(one, two))
    for record in (one.record, two.record):
        for back in (1, 2):
            assert record is not None
            epoch = Epoch(record.epoch.term - back, 1 << 40, 1 << 40)
            say(liar, Kind.GROUPS, [], encode([replace(record, epoch=epoch, members=[ELSEWHERE])]))
    say(liar, Kind.GROUPS, [], encode([]))
    foreign = [GroupRecord(number, f"f{number}", Epoch(1 << 40, 0), 1, [ELSEWHERE]) for number in range(3, 65)]
    say(liar, Kind.GROUPS, [], encode(foreign))
    await until(lambda: all(each.known.others().keys() >= set(range(3, 65)) for each in (one, two)))
    for each, other in ((one, two), (two, one)):
        known = each.known.others()
        rows = {number: BrokerGroup(f"g{number}", 3) for number in (1, 2)}
        assert added(known, rows).keys() == {other.record.group}  # type: ignore[union-attr]
        assert known[other.record.group] == other.record  # type: ignore[union-attr]


async def test_the_own_group_is_not_believed_to_be_led_by_whom_the_registry_names(liar: Registry, node: Make) -> None:
    one = await node(1)
    await until(lambda: bool(liar.links.links.all()))
    assert one.record is not None
    say(liar, Kind.GROUPS, [], encode([replace(one.record, epoch=Epoch(1 << 40, 0), members=[ELSEWHERE])]))
    say(liar, Kind.GROUPS, [], encode([GroupRecord(2, "two", Epoch(1, 0), 1, [ELSEWHERE])]))
    await until(lambda: 2 in one.known.others())
    assert 1 not in one.known.others()


@pytest.mark.parametrize("kind", sorted(GROUP_KINDS - REGISTRY_KINDS))
async def test_a_frame_of_nodes_is_obeyed_by_nobody_and_ends_the_connection(
    liar: Registry, node: Make, kind: int
) -> None:
    one = await node(1)
    obeyed: list[Any] = []
    if Kind(kind) != Kind.GROUPS:
        one.links.takes(Kind(kind), lambda *frame: obeyed.append(frame))
    await until(lambda: bool(one.links.to(REGISTRY_GROUP)))
    (link,) = one.links.to(REGISTRY_GROUP)
    header, payload = FRAMES[Kind(kind)]
    say(liar, Kind(kind), header, payload)
    await until(lambda: link not in one.links.all())
    assert obeyed == []
    await until(lambda: one.links.reaches(REGISTRY_GROUP, NodeId(1)))


async def test_what_it_says_of_itself_is_a_finding_at_most(liar: Registry, node: Make) -> None:
    one = await node(1)
    two = await node(2, one.port)
    await until(lambda: one.knows(one, two) and len(liar.links.links.all()) == 2)
    liar.state = RegistryState(
        ready=False,
        missing=list(range(1, 65)),
        living=(1 << 63) - 1,
        has_majority=False,
        leader=(1 << 63) - 1,
        operations=0,
        entries=(1 << 63) - 1,
        accepted_ms=(1 << 63) - 1,
        child_starts=0,
    )
    await until(lambda: one.alarms.raised(known_groups.NOT_READY_ALARM))
    assert one.knows(one, two)
    liar.state = STATE
    await until(lambda: not one.alarms.raised(known_groups.NOT_READY_ALARM))


async def test_a_node_does_not_pass_for_the_registry(liar: Registry, node: Make) -> None:
    one = await node(1)
    two = await node(2, one.port)
    await until(lambda: one.knows(one, two) and bool(two.links.to(1)))
    (link,) = two.links.to(1)
    link.send(Kind.REGISTRY_STATE, encode_state(STATE))
    await until(lambda: link not in two.links.all())
