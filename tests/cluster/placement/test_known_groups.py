"""What nodes of different groups tell each other, over real sockets: who hears what, and when nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.config import ConfigError
from cluster.config.local_layout import REGISTRY_GROUP
from cluster.members.addresses import MemberAddresses
from cluster.placement import known_groups
from cluster.placement.group_map import Epoch, GroupRecord, encode
from cluster.placement.groups_file import GroupsFile
from cluster.placement.known_groups import ALARM, added, own_record
from cluster.runtime.peer_frames import Kind
from raftlog.storage.files.fs import OsFileSystem
from raftlog.types import NodeId
from statemachine.cluster_wide.broker_groups import BrokerGroup, GroupState
from statemachine.levels import GROUPS_LEVEL
from tests.support.group_node import QUICK, Node, looked
from tests.support.wait_until import until

FS = OsFileSystem()


BY_NEWS_ALONE = QUICK | {"whole_every": 1 << 30}


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    nodes: list[Node] = []

    async def make(group: int, first: int = 0, **changes: Any) -> Node:
        nodes.append(Node(tmp_path, group, first, **changes))
        return await nodes[-1].start()

    yield make
    for node in nodes:
        await node.close()
    await asyncio.sleep(0.05)


async def test_all_groups_hear_of_each_other_and_of_every_change(made: Callable[..., Any]) -> None:
    one = await made(1, looks=BY_NEWS_ALONE)
    nodes = [one, *[await made(group, one.port, looks=BY_NEWS_ALONE) for group in (2, 3, 7, 20)]]
    await until(lambda: all(node.knows(*nodes) for node in nodes))
    for node in nodes:
        node.rises(leader=2)
        await until(lambda: all(each.knows(*nodes) for each in nodes))
    assert nodes[2].known.leader(20) == 2
    assert nodes[2].known.leader(9) == 0


def test_only_groups_that_were_added_are_routed_to() -> None:
    """A node that proves the secret may tell of groups that were never added, or are gone with a backup."""
    told = {number: GroupRecord(number, f"g{number}", Epoch(1, 0), 1, []) for number in (2, 3, 64)}
    rows = {number: BrokerGroup(f"g{number}", 3) for number in (1, 2, 3, 4)}
    rows[4] = rows[4]._replace(state=GroupState.RETIRED, since_ms=5)
    assert added({**told, 4: told[2]}, rows) == {2: told[2], 3: told[3]}, "nor to one that has retired"
    assert added(told, {}) == told, "before the first copy nothing else is known"


RETIRED = BrokerGroup("g2", 3, GroupState.RETIRED, 5)


@pytest.mark.parametrize("teller", [1, 3])
async def test_a_node_that_was_down_when_its_group_retired_ends(made: Callable[..., Any], teller: int) -> None:
    one = await made(1)
    two, three = await made(2, one.port), await made(3, one.port)
    await until(lambda: all(node.knows(one, two, three) for node in (one, two, three)))
    for node in (one, two, three):
        node.add(1, 2, 3)
    {1: one, 3: three}[teller].rows |= {2: RETIRED}
    await looked(two.known, 3 * known_groups.RETIRED_LOOKS)
    assert two.ends == 0, "it has a leader, from which it learns"
    two.record = None
    await until(lambda: two.ends)
    assert (one.ends, two.ends, three.ends) == (0, 1, 0)
    assert not [each for node in (one, two, three) for each in node.file.load().values() if each.retired]


async def test_what_others_pass_on_ends_no_node(made: Callable[..., Any]) -> None:
    """A record that says it, as a node that lies or the registry may send it on: each says what it knows itself."""
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two) and two.knows(one, two))
    lie = encode([replace(two.record, epoch=Epoch(9, 9), retired=True)])
    one.links.on_frame(SimpleNamespace(group=3, node=1), Kind.GROUPS, [], lie)
    two.links.on_frame(SimpleNamespace(group=REGISTRY_GROUP, node=1), Kind.GROUPS, [], lie)
    two.record = None
    await looked(two.known, 3 * known_groups.RETIRED_LOOKS)
    assert two.ends == 0
    two.links.on_frame(SimpleNamespace(group=3, node=1), Kind.GROUPS, [], lie)
    await until(lambda: two.ends)


async def test_groups_with_nodes_at_the_same_host_are_counted(made: Callable[..., Any]) -> None:
    one = await made(1)
    two, three = await made(2, one.port), await made(3, one.port)
    assert one.known.groups_here == 1
    await until(lambda: all(node.known.groups_here == 3 for node in (one, two, three)))
    member = three.record.members[0]
    three.rises(members=[replace(member, host="10.0.0.3")])
    await until(lambda: one.known.groups_here == two.known.groups_here == 2)
    await until(lambda: three.known.groups_here == 1)


async def test_who_is_out_of_reach_is_told_each_time_it_changes(made: Callable[..., Any]) -> None:
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two))
    for away, change in (([1], 1), ([], 2), ([1], 3)):
        two.record = replace(two.record, away=away)
        await until(lambda away=away: one.known.others()[2].away == away)  # type: ignore[misc]
        assert one.known.others()[2].epoch == Epoch(1, 0, change)
    two.rises()
    await until(lambda: one.known.others()[2].epoch == Epoch(2, 0))
    assert one.known.others()[2].away == [1]


async def test_a_level_is_told_when_it_rises_and_who_is_below_is_named(made: Callable[..., Any]) -> None:
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two))
    said = ["group 2 has not told its level", "group 3 has not told its level"]
    one.add(1, 2, 3)
    assert one.known.below(14) == said, "group 3 was added and has never run"
    two.record = replace(two.record, level=13)
    await until(lambda: one.known.others()[2].level == 13)
    assert one.known.others()[2].epoch == Epoch(1, 0, 1), "the leader counts it"
    one.add(1, 2)
    assert one.known.below(14) == ["group 2 has level 13, as it told last"]
    assert one.known.below(13) == []
    one.rows[2] = one.rows[2]._replace(state=GroupState.RETIRED, since_ms=5)
    assert one.known.below(14) == [], "nobody waits for a group that has retired"
    assert one.known.others() == {}
    one.add(1, 2)
    two.record = replace(two.record, level=14, leader=7)
    await until(lambda: one.known.others()[2].level == 14)
    assert one.known.others()[2].epoch == Epoch(1, 0, 1), "others than the leader do not"
    assert one.known.below(14) == []


async def test_who_leads_a_group_beside_another_leader_says_so_while_it_lasts(made: Callable[..., Any]) -> None:
    """Two survivors of a group were recovered into one cluster. The one of the earlier term hears of the other."""
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two))
    (link,) = one.links.to(2)
    record = two.record
    for other in (record, replace(record, leader=5), replace(record, epoch=Epoch(9, 0))):
        link.send(Kind.GROUPS, [], encode([other]))
    await looked(two.known, 10)
    assert two.alarms.all() == [], "it is its own, of a term that it has left, or of one in which it leads"
    link.send(Kind.GROUPS, [], encode([replace(record, epoch=Epoch(10, 0), leader=5)]))
    await until(lambda: two.alarms.raised(ALARM))
    assert "node 2/5 leads group 2 too, in term 10" in two.alarms.all()[0].text
    two.record = replace(record, leader=5)
    await until(lambda: not two.alarms.all())
    two.record = replace(record, epoch=Epoch(11, 0))
    await looked(two.known, 10)
    assert two.alarms.all() == [], "it was elected since"


async def test_a_group_that_the_first_one_refuses_says_why(made: Callable[..., Any], tmp_path: Path) -> None:
    one = await made(1)
    one.level = GROUPS_LEVEL - 1
    two = await made(2, one.port)
    await until(lambda: two.alarms.all())
    [alarm] = two.alarms.all()
    assert "group 1 has level 13, and several groups of brokers need level 14" in alarm.text
    assert "raftmq upgrade finalize" in alarm.text
    assert (one.known.others(), list((tmp_path / "g1").iterdir())) == ({}, []), "nothing of groups is there below 14"
    one.level = GROUPS_LEVEL
    await until(lambda: one.knows(one, two) and not two.alarms.all())


async def test_without_the_first_group_news_goes_on_and_a_restart_has_the_map(
    made: Callable[..., Any], tmp_path: Path
) -> None:
    one = await made(1)
    nodes = [one, *[await made(group, one.port) for group in (2, 3, 4)]]
    await until(lambda: all(node.knows(*nodes) for node in nodes))
    await one.close()
    nodes[2].rises()
    await until(lambda: all(node.knows(*nodes) for node in nodes[1:]))
    await nodes[1].close()
    again = await made(2, one.port)
    assert again.known.others().keys() == {1, 3, 4}, "from disk, before anybody is asked"
    again.rises()
    await until(lambda: all(node.knows(one, again, *nodes[2:]) for node in nodes[2:]))
    assert GroupsFile(FS, tmp_path / "g2", "c", 2).load().keys() == {1, 3, 4}


async def test_one_group_has_no_task_no_frame_and_no_file(made: Callable[..., Any], tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    one = await made(1)
    one.rises()
    await asyncio.sleep(0.1)
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()
    assert one.part.tick is None
    assert list((tmp_path / "g1").iterdir()) == []
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two))
    assert "other groups" in {task.get_name() for task in asyncio.all_tasks() - before}


async def test_what_replaces_nothing_changes_nothing(made: Callable[..., Any]) -> None:
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two) and two.knows(one, two))
    (link,) = two.links.all()
    before = one.known.others()
    foreign = replace(one.record, epoch=Epoch(99, 99), leader=9)
    older = replace(two.record, epoch=Epoch(0, 9), leader=9)
    for records in ([], [foreign], [older], [foreign, older]):
        assert link.send(Kind.GROUPS, [], encode(records))
    marker = replace(two.record, group=9)
    assert link.send(Kind.GROUPS, [], encode([marker]))
    await until(lambda: one.known.others() == {**before, 9: marker})


async def test_what_a_slow_node_missed_is_told_again(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one = await made(1, quiet_looks=1 << 30)
    two, three = [await made(group, one.port, is_dialled=False, quiet_looks=1 << 30) for group in (2, 3)]
    nodes = one, two, three
    await until(lambda: all(node.knows(*nodes) for node in nodes))
    (slow,) = one.links.to(3)
    with monkeypatch.context() as patch:
        patch.setattr(slow, "send", lambda *_: False)
        two.rises()
        await until(lambda: one.knows(*nodes))
        await asyncio.sleep(2 * known_groups.GATHER_S)
        assert not three.knows(*nodes)
    await until(lambda: three.knows(*nodes))


async def test_news_that_comes_together_is_passed_on_together(made: Callable[..., Any]) -> None:
    one = await made(1, looks=BY_NEWS_ALONE)
    two, three = [await made(group, one.port, is_dialled=False, looks=BY_NEWS_ALONE) for group in (2, 3)]
    await until(lambda: all(node.knows(one, two, three) for node in (one, two, three)))
    (link,) = two.links.all()
    for group in (7, 8, 9):
        link.send(Kind.GROUPS, [], encode([replace(two.record, group=group)]))
    await until(lambda: three.known.others().keys() == {1, 2, 7, 8, 9})


async def test_a_bad_map_ends_the_connection_and_nothing_else(made: Callable[..., Any]) -> None:
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two) and two.knows(one, two))
    (link,) = two.links.all()
    link.send(Kind.GROUPS, [], b"\xc1")
    await until(lambda: link not in two.links.all())
    await until(lambda: two.links.all())
    two.rises()
    await until(lambda: one.knows(one, two))


async def test_a_record_that_nodes_would_refuse_is_not_sent(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    one = await made(1)
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two))
    sound = two.record
    two.rises(name="two words")
    await until(lambda: "this node's group cannot be told to other groups" in caplog.text)
    assert one.known.others() == {2: sound}
    two.rises(name="better")
    await until(lambda: one.knows(one, two))


async def test_a_name_of_two_groups_is_an_alarm_while_it_lasts(made: Callable[..., Any]) -> None:
    one = await made(1)
    two, three = await made(2, one.port), await made(3, one.port)
    two.rises(name="g3")
    for node in (one, two, three):
        await until(partial(node.alarms.raised, ALARM))
    (alarm,) = one.alarms.all()
    assert "group 3 has the name g3 of group 2" in alarm.text
    three.rises(name="another")
    await until(lambda: not any(node.alarms.raised(ALARM) for node in (one, two, three)))


async def test_a_node_that_is_registered_in_two_groups_is_an_alarm_while_it_is(made: Callable[..., Any]) -> None:
    one = await made(1)
    two, three = await made(2, one.port), await made(3, one.port)
    await until(lambda: one.knows(one, two, three))
    own, (member,) = three.record.members, two.record.members
    three.rises(members=[replace(own[0], host=member.host, port=member.port)])
    for node in (one, two, three):
        await until(partial(node.alarms.raised, ALARM))
    (alarm,) = one.alarms.all()
    assert "node 3/1 has the peer address of node 2/1" in alarm.text
    three.rises(members=own)
    await until(lambda: not any(node.alarms.raised(ALARM) for node in (one, two, three)))


async def test_without_addresses_a_map_is_enough_and_an_alarm_says_so(made: Callable[..., Any], tmp_path: Path) -> None:
    one = await made(1)
    with pytest.raises(ConfigError, match=r"cluster\.group is 2, and cluster\.first_group is empty"):
        Node(tmp_path, 2)
    assert one.record is not None
    GroupsFile(FS, tmp_path / "g2", "c", 2).save({1: one.record})
    two = await made(2)
    await until(lambda: one.knows(one, two))
    await until(lambda: two.alarms.raised(ALARM))
    assert "cluster.first_group is empty" in two.alarms.all()[0].text


async def test_a_disk_that_takes_nothing_stops_nothing(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    one = await made(1, looks={"look_s": 0.005})
    one.folder.rmdir()
    two = await made(2, one.port)
    await until(lambda: "the map of the groups cannot be kept on disk: [Errno 2]" in caplog.text)
    await until(lambda: one.knows(one, two))
    await looked(one.known, known_groups.SAVE_AGAIN)  # which fails again
    one.folder.mkdir()
    await until(lambda: one.file.load() == one.known.others())


async def test_what_is_not_written_yet_is_written_at_the_end(
    made: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = await made(1, looks={"look_s": 1.0})  # the next attempt after a failed one is a minute away
    one.folder.rmdir()
    two = await made(2, one.port)
    await until(lambda: one.knows(one, two) and "cannot be kept on disk" in caplog.text)
    one.folder.mkdir()
    record = two.rises()
    await until(lambda: one.knows(one, two))
    await one.close()
    assert GroupsFile(FS, tmp_path / "g1", "c", 1).load() == {2: record}


def test_the_own_record_is_made_only_with_a_leader() -> None:
    away = [NodeId(4), NodeId(1), NodeId(7)]
    at = {node: MemberAddresses(f"h{node}", 10912, "", {"broker": f"h{node}:1"}) for node in (3, 1, 2)}
    raw: Any = SimpleNamespace(leader_id=NodeId(2), term=7)
    members: Any = SimpleNamespace(
        is_removed=False,
        addresses=at,
        identity=SimpleNamespace(group_id=5),
        in_force=SimpleNamespace(voter_ids=(1, 2, 4), index=9),
        own_id=NodeId(1),
    )
    found = own_record(raw, members, "five", lambda: away, 14)
    assert found is not None
    assert (found.group, found.name, found.epoch, found.leader, found.away) == (5, "five", Epoch(7, 9), 2, [])
    assert found.level == 14
    assert [(each.node, each.host, each.listeners) for each in found.members] == [
        (1, "h1", {"broker": "h1:1"}),
        (2, "h2", {"broker": "h2:1"}),
    ]
    members.own_id = NodeId(2)
    found = own_record(raw, members, "five", lambda: away, 14)
    assert found is not None
    assert found.away == [1, 4], "the leader says it, and of voters alone"
    members.is_removed = True
    assert own_record(raw, members, "five", lambda: away, 14) is None
    members.is_removed, raw.leader_id = False, NodeId(0)
    assert own_record(raw, members, "five", lambda: away, 14) is None
    raw.leader_id, members.addresses = NodeId(2), {}
    assert own_record(raw, members, "five", lambda: away, 14) is None
