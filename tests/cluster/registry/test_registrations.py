"""Nodes register over proven links alone, the map only grows, and a process is ready when it knows enough."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from cluster.config.local_layout import REGISTRY_GROUP
from cluster.peer.keyring import OPEN, Keyring
from cluster.placement import known_groups
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, encode
from cluster.placement.groups_file import GroupsFile
from cluster.placement.registry_metrics import RegistryMetrics
from cluster.placement.registry_state import RegistryState, decode_state, encode_state
from cluster.registry import registrations
from cluster.registry.records import Records, TopicPlace
from cluster.registry.registrations import Registrations, RegistryIdentity
from cluster.runtime.peer_frames import Kind, WireError
from raftmq.local.process import free_base_port
from statemachine.cluster_wide.broker_groups import GroupState
from tests.support.group_node import FS, KEY, PATIENT_LOOKS, QUICK, Node, looked
from tests.support.samples import text_of
from tests.support.wait_until import until

CLUSTER = uuid.UUID(int=7)


STATE = RegistryState(
    ready=True,
    missing=[],
    living=2,
    has_majority=True,
    leader=1,
    operations=7,
    entries=3,
    accepted_ms=40,
    child_starts=1,
)


class Registry:
    """The links of one process, and what it hands to its child."""

    def __init__(self, number: int = 1, cluster: uuid.UUID = CLUSTER, ready_s: float = registrations.READY_S) -> None:
        self.port = free_base_port(1)
        self.records = Records(cluster.bytes)
        self.handed: list[GroupRecord] = []
        identity = RegistryIdentity(cluster, number, ("127.0.0.1", self.port))
        self.places: dict[str, TopicPlace] = {}
        self.links = Registrations(
            identity,
            KEY,
            self.records,
            os.urandom,
            self.handed.extend,
            self.places.update,
            lambda: self.state,
            look_s=QUICK["look_s"],
            quiet_looks=PATIENT_LOOKS,
            ready_s=ready_s,
        )
        self.state = STATE

    @property
    def groups(self) -> dict[int, GroupRecord]:
        return dict(self.records.view.groups)


Make = Callable[..., Awaitable[Any]]


@pytest.fixture
async def registry() -> AsyncIterator[Callable[..., Awaitable[Registry]]]:
    made: list[Registry] = []

    async def make(*arguments: Any, **times: Any) -> Registry:
        made.append(Registry(*arguments, **times))
        await made[-1].links.start()
        return made[-1]

    yield make
    for each in made:
        await each.links.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Make]:
    nodes: list[Node] = []

    async def make(group: int, *registries: Registry, added: tuple[int, ...] = (), **changes: Any) -> Node:
        first = 0 if group == 1 else free_base_port(1)  # where nobody listens: nodes meet through the registry alone
        at: dict[str, Any] = {"cluster.registry": [f"127.0.0.1:{each.port}" for each in registries]}
        nodes.append(Node(tmp_path, group, first, str(CLUSTER), quiet_looks=PATIENT_LOOKS, **at, **changes))
        nodes[-1].add(*added)
        return await nodes[-1].start()

    yield make
    for each in nodes:
        await each.close()
    await asyncio.sleep(0.05)


async def test_groups_that_reach_nobody_else_hear_of_each_other_and_of_changes(registry: Make, node: Make) -> None:
    one, two = await registry(1), await registry(2)
    nodes = [await node(1, one, two), await node(2, one, two)]
    await until(lambda: all(each.knows(*nodes) for each in nodes))
    assert one.groups == two.groups == {each.record.group: each.record for each in nodes}
    assert one.handed[-1] in one.groups.values()
    later = nodes[1].rises(leader=1, name="renamed")
    await until(lambda: nodes[0].known.others() == {2: later})
    await until(lambda: one.handed[-1] == two.handed[-1] == later)
    assert sorted(one.links.reached()) == [(1, 1), (2, 1)]


async def test_an_empty_registry_takes_nothing_away_and_is_filled_again(registry: Make, node: Make) -> None:
    first = await registry()
    nodes = [await node(1, first), await node(2, first)]
    await until(lambda: all(each.knows(*nodes) for each in nodes))
    before = first.groups
    first.records.view = Records(CLUSTER.bytes).view  # all disks lost
    await until(lambda: first.groups == before)
    assert all(each.knows(*nodes) for each in nodes)


async def test_a_node_that_runs_registers_with_others_when_its_settings_name_others(registry: Make, node: Make) -> None:
    first, second = await registry(), await registry(2)
    one = await node(1)
    context = SimpleNamespace(cluster=SimpleNamespace(registry=[f"127.0.0.1:{first.port}"]))
    one.part.reload(context)
    await until(lambda: first.groups.keys() == {1})
    (link,) = first.links.links.all()
    one.part.reload(context)
    context.cluster.registry = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
    one.part.reload(context)
    await until(lambda: second.groups.keys() == {1})
    assert first.links.links.all() == [link], "what is named as before keeps its connection"
    context.cluster.registry = [f"127.0.0.1:{free_base_port(1)}", f"127.0.0.1:{second.port}"]
    one.part.reload(context)
    await until(lambda: not first.links.links.all())
    assert [each.reached for each in one.known.registry()] == [False, True]
    context.cluster.registry = []
    one.part.reload(context)
    await until(lambda: not second.links.links.all())
    assert one.known.registry() == []


async def test_one_group_registers_as_well(registry: Make, node: Make) -> None:
    one = await registry()
    alone = await node(1, one)
    await until(lambda: one.groups == {1: alone.record})
    await until(one.links.ready.is_set)


async def test_an_older_epoch_changes_nothing(registry: Make, node: Make) -> None:
    one = await registry()
    first, second = await node(1, one), await node(2, one)
    await until(lambda: all(each.knows(first, second) for each in (first, second)))
    newest = second.rises()
    await until(lambda: one.groups[2] == newest)
    (link,) = first.links.to(REGISTRY_GROUP)
    link.send(Kind.GROUPS, [], encode([replace(newest, epoch=Epoch(0, 9), leader=9)]))
    marker = replace(newest, group=9)
    link.send(Kind.GROUPS, [], encode([marker]))
    await until(lambda: one.groups.get(9) == marker)
    assert one.groups[2] == newest


async def test_a_node_that_is_a_member_nowhere_registers_nothing(
    registry: Make, node: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = await registry()
    stranger = await node(2, one)
    stranger.record = replace(stranger.record, members=[replace(stranger.record.members[0], node=3)])
    stranger.rises()
    await until(lambda: "node 2/1 registers nothing" in caplog.text)
    newest = one.groups.get(2)
    stranger.rises()
    await asyncio.sleep(0.1)
    assert one.groups.get(2) == newest
    assert newest is None or newest.members[0].node == 1, "it was a member before"


@pytest.mark.parametrize("keyring", [OPEN, Keyring((b"x" * 32,))])
async def test_without_the_secret_nobody_registers(
    registry: Make, node: Make, keyring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    one = await registry()
    await node(1, one, keyring=keyring)
    await until(lambda: "registry node 1 is not reached at" in caplog.text)
    assert (one.groups, one.links.reached()) == ({}, [])
    assert not one.links.ready.is_set()


async def test_a_registry_of_another_cluster_or_another_number_is_none(
    registry: Make, node: Make, caplog: pytest.LogCaptureFixture
) -> None:
    foreign, second = await registry(1, uuid.UUID(int=8)), await registry(1)
    first = await node(1, foreign, second)
    await until(lambda: "registry node 1 is not reached at" in caplog.text)
    assert f"it belongs to cluster {CLUSTER}" in caplog.text
    await asyncio.sleep(0.1)
    assert (foreign.groups, second.groups) == ({}, {}), "the second address is that of the process with the id 2"
    assert first.known.others() == {}


def name_another(folder: Path, group: int, record: GroupRecord) -> None:
    """A node of `group` has the record in its map when it starts."""
    (folder / f"g{group}").mkdir(exist_ok=True)
    GroupsFile(FS, folder / f"g{group}", str(CLUSTER), group).save({record.group: record})


OTHER = GroupRecord(2, "g2", Epoch(1, 0), 1, [GroupMember(1, "127.0.0.1", 1, "", {"broker": "127.0.0.1:1"})])


@pytest.mark.parametrize("frame", [b"\x00" * 4096, (1 << 30).to_bytes(4) + bytes(4096), b"HTTP/1.1 200 OK\r\n" * 300])
async def test_an_address_that_answers_for_ever_is_given_up(registry: Make, node: Make, frame: bytes) -> None:
    """Whatever listens where a process of the registry should: the node ends the connection, and goes on."""
    ended: list[str] = []

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(frame)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError as error:
            ended.append(str(error))

    wrong, right = Registry(1), await registry(2)
    server = await asyncio.start_server(flood, "127.0.0.1", wrong.port)
    first = await node(1, wrong, right)
    await until(lambda: right.groups == {1: first.record})
    await until(lambda: len(ended) >= 2)
    assert [link.node for link in first.links.all()] == [2]
    server.close()


async def test_a_process_is_ready_when_each_group_that_was_named_has_registered(
    registry: Make, node: Make, tmp_path: Path
) -> None:
    one = await registry()
    name_another(tmp_path, 1, OTHER)
    await node(1, one)
    await until(lambda: one.groups.keys() == {1, 2})
    await asyncio.sleep(0.1)
    assert not one.links.ready.is_set(), "group 2 was named, and has not registered"
    await node(2, one)
    await until(one.links.ready.is_set)
    assert one.links.missing == ()


async def test_who_does_not_come_is_not_waited_for_for_ever(
    registry: Make, node: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    one = await registry(ready_s=0.5)
    name_another(tmp_path, 1, OTHER)
    await node(1, one)
    await until(one.links.ready.is_set)
    assert one.links.missing == (2,)
    assert "no node of these groups has registered in 0 s: 2; routes lack them" in caplog.text


async def test_a_start_does_not_wait_for_groups_that_are_not_there(registry: Make, node: Make, tmp_path: Path) -> None:
    """A node remembers a group that somebody told of and that was never added, or has retired: it tells nodes of it."""
    one = await registry()
    name_another(tmp_path, 1, OTHER)
    first = await node(1, one, added=(1,))
    await until(one.links.ready.is_set)
    assert one.groups == {1: first.record}
    first.add(1, 2)
    await until(lambda: one.groups.keys() == {1, 2})
    first.rows[2] = first.rows[2]._replace(state=GroupState.RETIRED, since_ms=5)
    again = await registry()
    first.part.reload(SimpleNamespace(cluster=SimpleNamespace(registry=[f"127.0.0.1:{again.port}"])))
    await until(again.links.ready.is_set)
    assert again.groups == {1: first.record}


async def test_without_a_majority_of_the_registry_there_is_an_alarm_while_it_lasts(registry: Make, node: Make) -> None:
    gone, one, two = Registry(1), await registry(2), await registry(3)
    first = await node(1, gone, one, two)
    await until(lambda: len(first.links.to(REGISTRY_GROUP)) == 2)
    await looked(first.known, 2 * known_groups.LOST_LOOKS)
    assert first.alarms.all() == [], "two are a majority of three"
    await two.links.close()
    await until(lambda: first.alarms.raised(known_groups.REGISTRY_ALARM))
    assert "1 of 3 processes of the registry are reached" in first.alarms.all()[0].text
    await gone.links.start()
    await until(lambda: not first.alarms.all())
    await gone.links.close()


async def test_the_first_group_tells_the_places_of_topics_and_nobody_else(registry: Make, node: Make) -> None:
    one = await registry()
    nodes = [await node(1, one), await node(2, one)]
    await until(lambda: one.groups.keys() == {1, 2})
    (first,), (second,) = (each.links.to(REGISTRY_GROUP) for each in nodes)
    second.send(Kind.PLACES, [], msgpack.packb([["t", 9, [2]]]))
    first.send(Kind.PLACES, [], msgpack.packb([["t", 5, [1, 2]], ["u", 6, [1]]]))
    await until(lambda: one.places == {"t": TopicPlace(5, (1, 2)), "u": TopicPlace(6, (1,))})
    one.places.clear()
    first.send(Kind.PLACES, [], msgpack.packb([["t", 4, [1]], ["u", 6, [1]], ["v", 7, [1, 64]]]))
    await until(lambda: one.places == {"v": TopicPlace(7, (1, 64))})
    assert one.records.view.topics["t"] == TopicPlace(5, (1, 2)), "an older version changes nothing"
    for bad in (b"\xc1", msgpack.packb([["t", 8, [2, 1]]]), msgpack.packb([["t", 8, []]]), bytes(40_000)):
        (link,) = nodes[0].links.to(REGISTRY_GROUP)
        link.send(Kind.PLACES, [], bad)
        await until(lambda link=link: link not in nodes[0].links.all())  # type: ignore[misc]
        await until(lambda: nodes[0].links.to(REGISTRY_GROUP))
    assert one.records.view.topics["t"] == TopicPlace(5, (1, 2))


async def test_a_bad_frame_ends_a_link_and_nothing_else(registry: Make, node: Make) -> None:
    one = await registry()
    first = await node(1, one)
    await until(lambda: one.groups.keys() == {1})
    for kind, payload in ((Kind.GROUPS, b"\xc1"), (Kind.TRUTH, b""), (Kind.ACT, b"")):
        (link,) = first.links.to(REGISTRY_GROUP)
        link.send(kind, [1, 2, 3], payload)
        await until(lambda link=link: link not in first.links.all())  # type: ignore[misc]
        await until(lambda: first.links.all())
    newest = first.rises()
    await until(lambda: one.groups == {1: newest})


async def test_a_registry_that_accepts_nothing_or_lacks_groups_is_an_alarm_while_it_lasts(
    registry: Make, node: Make
) -> None:
    one, two = await registry(1), await registry(2)
    first = await node(1, one, two)
    await until(lambda: [each.state for each in first.known.registry()] == [STATE, STATE])
    one.state = two.state = replace(STATE, has_majority=False)
    await until(lambda: first.alarms.raised(known_groups.REGISTRY_ALARM))
    assert "none has an operation accepted" in first.alarms.all()[0].text
    two.state = replace(STATE, missing=[2, 5])
    await until(lambda: [alarm.key for alarm in first.alarms.all()] == [known_groups.NOT_READY_ALARM])
    said = "registry node 2 answers clients without group 2, 5: none of its nodes has registered there"
    assert first.alarms.all()[0].text == said
    two.state = STATE
    await until(lambda: first.alarms.all() == [])


async def test_metrics_have_what_each_process_says_and_none_without_a_registry(registry: Make, node: Make) -> None:
    one = await registry(1)
    first = await node(1, one, Registry(2))
    await until(lambda: first.known.registry()[0].state == STATE)
    shown = [line for line in text_of(RegistryMetrics(first.known.registry)).splitlines() if not line.startswith("#")]
    assert sorted(shown) == [
        'raftmq_registry_accepted_age_seconds{process="1"} 0.04',
        'raftmq_registry_child_restarts_total{process="1"} 0.0',
        'raftmq_registry_journal_operations{process="1"} 3.0',
        'raftmq_registry_leader{process="1"} 1.0',
        'raftmq_registry_members_living{process="1"} 2.0',
        'raftmq_registry_operations_total{process="1"} 7.0',
        'raftmq_registry_reached{process="1"} 1.0',
        'raftmq_registry_reached{process="2"} 0.0',
        'raftmq_registry_ready{process="1"} 1.0',
    ]


async def test_only_a_process_of_the_registry_tells_its_state(registry: Make, node: Make) -> None:
    first, second = await node(1, await registry(1)), Registry(2)
    await until(lambda: first.known.registry()[0].state == STATE)
    (link,) = first.links.to(REGISTRY_GROUP)
    with pytest.raises(WireError, match="speaks as the registry"):
        first.links.on_frame(SimpleNamespace(group=2, node=1), Kind.REGISTRY_STATE, encode_state(STATE), b"")
    with pytest.raises(WireError):
        second.links.links.on_frame(link, Kind.REGISTRY_STATE, encode_state(STATE), b"")
    await second.links.close()
    assert decode_state([*encode_state(STATE), "of a later release"]) == STATE
    for at, bad in ((0, 1), (1, [65]), (1, [0]), (2, -1), (4, "1"), (7, -2), (7, None)):
        with pytest.raises(WireError):
            decode_state([bad if number == at else each for number, each in enumerate(encode_state(STATE))])
    with pytest.raises(WireError):
        decode_state([])
