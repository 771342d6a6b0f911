"""Routes and topic lists, byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.remoting.handlers.route import HOLD_MS
from cluster.requests.table import ROWS
from raftlog.types import NOBODY, NodeId
from raftmq.client.route import QueueData, read_route
from raftmq_wire.codes import GROUPS_FIELD, RETIRED_FIELD
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup, RetireBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.levels import DRAINS_LEVEL, GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth

BROKER = (
    b'{"brokerAddrs":{"0":"10.0.0.2:10911","1":"10.0.0.1:10911","3":"10.0.0.3:10911"},"brokerName":"raftmq",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}'
)


ALIASES = b"".join(
    b'{"brokerAddrs":{"0":"10.0.0.%d:10911"},"brokerName":"raftmq-%d","cluster":"DefaultCluster",'
    b'"enableActingMaster":false},' % (node, node)
    for node in (1, 2, 3)
)


def test_route_bytes(node: Any) -> None:
    node.create_topic("T", queues=3)
    queues = b"".join(
        b',{"brokerName":"raftmq-%d","perm":6,"readQueueNums":0,"topicSysFlag":0,"writeQueueNums":3}' % node
        for node in (1, 2, 3)
    )
    assert node.ask(105, topic="T").answer == (
        0,
        None,
        {},
        b'{"brokerDatas":[' + ALIASES + BROKER + b'],"filterServerTable":{},"queueDatas":[{"brokerName":"raftmq",'
        b'"perm":4,"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":3}' + queues + b"]}",
    )


@pytest.mark.parametrize(
    ("on", "language", "version"), [(False, "JAVA", 479), (False, "CPP", 401), (False, "CPP", 63), (True, "JAVA", 121)]
)
def test_route_bytes_without_aliases(node_with: Any, on: bool, language: str, version: int) -> None:
    node = node_with(**{"cluster.producer_aliases": on})
    node.create_topic("T", queues=3)
    assert node.ask(105, topic="T", language=language, version=version).answer == (
        0,
        None,
        {},
        b'{"brokerDatas":[' + BROKER + b'],"filterServerTable":{},"queueDatas":[{"brokerName":"raftmq","perm":6,'
        b'"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":3}]}',
    )


@pytest.mark.parametrize(("language", "version"), [("JAVA", 212), ("JAVA", 479), ("GO", 317), ("DOTNET", 401)])
def test_who_gets_aliases(node: Any, language: str, version: int) -> None:
    node.create_topic("T")
    route = json.loads(node.ask(105, topic="T", language=language, version=version).answer.body)
    assert [b["brokerName"] for b in route["brokerDatas"]] == ["raftmq-1", "raftmq-2", "raftmq-3", "raftmq"]


def test_the_route_of_a_topic_in_two_groups(node: Any, connect: Any) -> None:
    """Rows are in the order of the names as text, the first group's queues and the second's; a key's place is
    `hash % (groups * aliases * queues)`, and neither nodes nor groups that come change it."""
    node.command(Finalize(GROUPS_LEVEL))
    node.command(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
    node.command(CreateTopic({"name": "T", "place": [[1, 4, 2], [2, 8, 2]], "order": True}, False))
    unknown = node.ask(105, topic="T").answer
    assert (unknown.code, "does not know yet where all queues" in unknown.remark) == (14, True)
    later = node.ask(105, topic="T", language="CPP", version=49)
    node.advance(HOLD_MS)
    assert later.answer.code == 14
    members = [GroupMember(each, "h", 1, "", {"broker": f"10.0.1.{each}:10911"}) for each in (1, 2, 3)]
    node.other_groups[2] = GroupRecord(2, "raftmq-g02", Epoch(1, 1), 2, members)

    def route() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(node.ask(105, topic="T").answer.body)
        return found

    before = route()
    names = [f"{group}-{slot}" for group in ("raftmq", "raftmq-g02") for slot in (1, 2, 3)]
    assert [each["brokerName"] for each in before["brokerDatas"]] == [*names, "raftmq", "raftmq-g02"]
    writes = [(each["brokerName"], each["writeQueueNums"]) for each in before["queueDatas"] if each["perm"] & 2]
    assert writes == [(name, 2) for name in names]
    reads = [(each["brokerName"], each["readQueueNums"]) for each in before["queueDatas"] if each["readQueueNums"]]
    assert reads == [("raftmq", 4), ("raftmq-g02", 8)]
    assert before["orderTopicConf"] == ";".join(f"{name}:2" for name in names)
    assert {each["brokerName"]: each["brokerAddrs"] for each in before["brokerDatas"]}["raftmq-g02"] == {
        "0": "10.0.1.2:10911",
        "1": "10.0.1.1:10911",
        "3": "10.0.1.3:10911",
    }
    asked = connect("broker")
    node.ask(105, topic="T", connection=asked)
    table = json.loads(node.ask(106, connection=asked).answer.body)["brokerAddrTable"]
    assert {*table} == {*names, "raftmq", "raftmq-g02"}, "Java tools look up the names of a route there"
    node.command(AddBrokerGroup(3, "another", None))
    node.other_groups[3] = GroupRecord(3, "another", Epoch(1, 1), 1, members)
    node.other_groups[2] = GroupRecord(2, "raftmq-g02", Epoch(2, 1), 1, members[:1])
    node.unreached = {NodeId(3)}
    after = route()
    assert after["queueDatas"] == before["queueDatas"]
    assert all("0" in each["brokerAddrs"] for each in after["brokerDatas"])


@pytest.fixture
def drained(node: Any) -> Any:
    """A node of the first group, whose second group drains; it knows both."""
    node.command(Finalize(DRAINS_LEVEL))
    node.command(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
    for name, place in {"T": [[1, 4, 2], [2, 8, 2]], "there": [[2, 8, 2]], "%RETRY%g": [[2, 1, 1]]}.items():
        node.command(CreateTopic({"name": name, "place": place, "order": True}, False))
    members = [GroupMember(each, "h", 1, "", {"broker": f"10.0.1.{each}:10911"}) for each in (1, 2, 3)]
    node.other_groups[2] = GroupRecord(2, "raftmq-g02", Epoch(1, 1), 2, members)
    node.command(DrainBrokerGroup(2, draining=True))
    return node


def queues_of(node: Any, topic: str) -> dict[str, tuple[int, int, int]]:
    """Broker name -> permission, read queues and write queues."""
    rows = json.loads(node.ask(105, topic=topic).answer.body)["queueDatas"]
    return {row["brokerName"]: (row["perm"], row["readQueueNums"], row["writeQueueNums"]) for row in rows}


def test_a_group_that_drains_is_read_and_not_written(drained: Any) -> None:
    aliases = {f"raftmq-{slot}": (6, 0, 2) for slot in (1, 2, 3)}
    assert queues_of(drained, "T") == {**aliases, "raftmq": (4, 4, 2), "raftmq-g02": (4, 8, 0)}
    assert queues_of(drained, "there") == {"raftmq-g02": (4, 8, 0)}
    route = json.loads(drained.ask(105, topic="T").answer.body)
    assert route["orderTopicConf"] == "raftmq-1:2;raftmq-2:2;raftmq-3:2"
    assert [each["brokerName"] for each in route["brokerDatas"]] == [*aliases, "raftmq", "raftmq-g02"]
    value = drained.ask(101, namespace="ORDER_TOPIC_CONFIG", key="T").answer.ext["value"]
    assert value == route["orderTopicConf"]
    found = read_route("T", [QueueData(**row) for row in map(known_fields, route["queueDatas"])], 0.0, True, group_of)
    assert found is not None
    assert [(each.group, each.read, each.write) for each in found.groups] == [(1, 4, 2), (2, 8, 0)], "our client's view"


def known_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in QueueData.__struct_fields__}


def group_of(name: str) -> int:
    return 2 if name.startswith("raftmq-g02") else 1


def test_what_is_consumed_in_vain_is_sent_to_the_group_that_drains(drained: Any) -> None:
    assert queues_of(drained, "%RETRY%g")["raftmq-g02-1"] == (6, 0, 1)


def test_a_drain_that_is_cancelled_leaves_the_route_of_before(drained: Any) -> None:
    drained.command(DrainBrokerGroup(2, draining=False))
    assert queues_of(drained, "T")["raftmq-g02-1"] == (6, 0, 2)
    assert queues_of(drained, "T")["raftmq-g02"] == (4, 8, 2)


def test_a_group_that_has_retired_is_left_out(drained: Any) -> None:
    drained.command(RetireBrokerGroup(2))
    aliases = {f"raftmq-{slot}" for slot in (1, 2, 3)}
    assert {*queues_of(drained, "T")} == {"raftmq", *aliases}
    answer = drained.ask(106).answer
    table = json.loads(answer.body)
    assert (table["clusterAddrTable"], {*table["brokerAddrTable"]} - aliases) == (
        {"DefaultCluster": ["raftmq"]},
        {"raftmq"},
    )
    assert (answer.ext.get(RETIRED_FIELD), answer.ext.get(GROUPS_FIELD)) == ("2", None)
    for topic in ("there", "%RETRY%g"):
        body = drained.ask(105, topic=topic).answer.body
        assert not body or json.loads(body)["queueDatas"] == []


def test_a_topic_to_be_made_is_made_in_another_group(node_with: Any, drained: Any) -> None:
    """The own group drains, and the node knows the first one."""
    assert {*queues_of(drained, "TBW102")} == {"raftmq", "raftmq-1", "raftmq-2", "raftmq-3"}
    own = {"cluster.group": 2, "cluster.broker_name": "raftmq-g02", "cluster.first_group": ["h:1"]}
    node = node_with(**own, **{"cluster.id": str(UUID(int=7)), "peer.secret_file": "/SECRET"})
    node.command(Finalize(DRAINS_LEVEL))
    rows = [(TruthKind.BROKER_GROUP, 1, ["raftmq", 3]), (TruthKind.BROKER_GROUP, 2, ["raftmq-g02", 3, 1, 5])]
    node.command(CopyTruth(0, 1, rows))
    assert {*queues_of(node, "TBW102")} == {"raftmq-g02", *(f"raftmq-g02-{slot}" for slot in (1, 2, 3))}, "none known"
    members = [GroupMember(each, "h", 1, "", {"broker": f"10.0.1.{each}:10911"}) for each in (1, 2, 3)]
    node.other_groups[1] = GroupRecord(1, "raftmq", Epoch(1, 1), 2, members)
    assert {*queues_of(node, "TBW102")} == {"raftmq", "raftmq-1", "raftmq-2", "raftmq-3"}


def test_the_name_of_a_node_that_the_leader_does_not_reach_leads_to_another(node: Any) -> None:
    """Names, their number and their queues stay: a key keeps its queue."""
    node.create_topic("T")

    def route() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(node.ask(105, topic="T").answer.body)
        return found

    before = route()
    node.unreached = {NodeId(3)}
    during = route()
    assert during["queueDatas"] == before["queueDatas"]
    *aliases, group = during["brokerDatas"]
    assert group == before["brokerDatas"][-1], "readers are shown every node"
    assert [(alias["brokerName"], alias["brokerAddrs"]) for alias in aliases] == [
        ("raftmq-1", {"0": "10.0.0.1:10911"}),
        ("raftmq-2", {"0": "10.0.0.2:10911"}),
        ("raftmq-3", {"0": "10.0.0.1:10911"}),
    ]
    node.leader = NOBODY
    assert route() == during, "nobody leads: the last one stays"
    node.leader, node.unreached = NodeId(2), set()
    assert route() == before


def test_the_first_route_of_a_cpp_client_comes_after_its_first_heartbeat(node: Any, connect: Any) -> None:
    node.create_topic("T")
    connection = connect("broker")
    first = node.ask(105, topic="T", language="CPP", version=35, connection=connection)
    node.advance(HOLD_MS - 1)
    assert not first.replies
    node.advance(1)
    names = [row["brokerName"] for row in json.loads(first.answer.body)["brokerDatas"]]
    assert names == ["raftmq-1", "raftmq-2", "raftmq-3", "raftmq"]
    assert node.ask(105, topic="T", language="CPP", version=35, connection=connection).answer.code == 0
    again = node.ask(105, topic="U", language="CPP", version=35, connection=connect("broker"))
    node.advance(HOLD_MS)
    assert again.answer.code == 17


def changed_perm(node: Any, address: str, perm: int) -> str:
    """What `mqadmin updateTopicPerm -t T -b ADDRESS -p PERM` does (4.9.8, 5.5.0): it takes the numbers of queues from
    the first row, and compares permissions with the row of the first name of which the address is the master."""
    route = json.loads(node.ask(105, topic="T").answer.body)
    first = route["queueDatas"][0]
    names = [each["brokerName"] for each in route["brokerDatas"] if each["brokerAddrs"].get("0") == address]
    if not names:
        return "not a master"
    (before,) = (row["perm"] for row in route["queueDatas"] if row["brokerName"] == names[0])
    if perm == before:
        return "equals"
    numbers = {name: first[name] for name in ("readQueueNums", "writeQueueNums", "topicSysFlag")}
    assert node.ask(17, topic="T", perm=perm, order="false", **numbers).answer.code == 0
    return f"from {before} to {perm}"


@pytest.mark.parametrize("code", [106, 206])
def test_a_tool_sees_one_broker_name(node: Any, connect: Any, code: int) -> None:
    """`mqadmin topicList -c` looks up the first name of a route in the table of brokers; `statsAll` asks every name of
    it for its figures, and adds them up (4.9.8, 5.5.0)."""
    node.create_topic("T", queues=3, order=True)
    connection, other = connect("broker"), connect("broker")
    node.ask(code, language="JAVA", connection=connection)
    route = json.loads(node.ask(105, topic="T", connection=connection).answer.body)
    assert [each["brokerName"] for each in route["brokerDatas"]] == ["raftmq"]
    assert [(row["brokerName"], row["perm"], row["writeQueueNums"]) for row in route["queueDatas"]] == [
        ("raftmq", 6, 3)
    ]
    assert route["orderTopicConf"] == "raftmq:3"
    again = json.loads(node.ask(105, topic="T", connection=other).answer.body)["brokerDatas"][0]
    assert again["brokerName"] == "raftmq-1", "updateTopicPerm asks for no table"


@pytest.mark.parametrize("code", [106, 206])
@pytest.mark.parametrize("language", ["CPP", "GO", "PYTHON"])
def test_programs_in_other_languages_keep_a_name_for_each_node(
    node: Any, connect: Any, language: str, code: int
) -> None:
    """Who has asked for the table of brokers (106) gets the group's name first, as before."""
    node.create_topic("T")

    def route(connection: Any) -> Any:
        request = node.ask(105, topic="T", language=language, version=401, connection=connection)
        node.advance(HOLD_MS)
        return json.loads(request.answer.body)

    connection = connect("broker")
    before = route(connection)
    node.ask(code, language=language, version=401, connection=connection)
    after = route(connection)
    assert after["queueDatas"] == before["queueDatas"]
    *aliases, group = before["brokerDatas"]
    assert len(aliases) == 3
    assert after["brokerDatas"] == ([group, *aliases] if code == 106 else [*aliases, group])


@pytest.mark.parametrize("language", ["aliases", "one name"])
def test_a_tool_changes_every_permission_to_every_other(node: Any, node_with: Any, language: str) -> None:
    node = node if language == "aliases" else node_with(**{"cluster.producer_aliases": False})
    node.create_topic("T", queues=3)
    leader, now = "10.0.0.2:10911", 6
    for perm in (6, 4, 4, 2, 2, 6, 2, 4, 6):
        assert changed_perm(node, leader, perm) == ("equals" if perm == now else f"from {now} to {perm}")
        now = perm
        stored = node.state.topics["T"]
        assert (stored.perm, stored.read_queues, stored.write_queues) == (perm, 3, 3)


def test_a_topic_without_write_permission_has_no_aliases(node: Any) -> None:
    node.create_topic("T", perm=4)
    route = json.loads(node.ask(105, topic="T").answer.body)
    assert [(q["brokerName"], q["perm"]) for q in route["queueDatas"]] == [("raftmq", 4)]
    assert [b["brokerName"] for b in route["brokerDatas"]] == ["raftmq"]


def test_a_hash_selects_the_same_queue_whoever_leads(node: Any) -> None:
    """Java's choice: names in order, every write queue of each, `hash % length` picks."""
    node.create_topic("T", queues=5)

    def queue_of(key: int) -> int:
        route = json.loads(node.ask(105, topic="T").answer.body)["queueDatas"]
        writable = [q for q in sorted(route, key=lambda q: q["brokerName"]) if q["perm"] & 2]
        listed = [queue for q in writable for queue in range(q["writeQueueNums"])]
        return listed[key % len(listed)]

    for leader in (1, 2, 3):
        node.leader = NodeId(leader)
        assert [queue_of(key) for key in range(40)] == [key % 5 for key in range(40)]


def test_addresses_follow_leader_and_listener(node: Any, connect: Any) -> None:
    node.create_topic("T")

    def addresses(listener: str = "broker") -> dict[str, str]:
        body = node.ask(105, topic="T", connection=connect(listener)).answer.body
        *aliases, group = json.loads(body)["brokerDatas"]
        known = set(group["brokerAddrs"].values())
        assert [len(alias["brokerAddrs"]) for alias in aliases] == [1, 1, 1]
        assert {alias["brokerAddrs"]["0"] for alias in aliases} == known, "aliases do not move with the leader"
        return group["brokerAddrs"]

    node.leader = NOBODY
    assert addresses() == {"1": "10.0.0.1:10911", "2": "10.0.0.2:10911", "3": "10.0.0.3:10911"}
    node.leader = NodeId(3)
    assert addresses() == {"0": "10.0.0.3:10911", "1": "10.0.0.1:10911", "2": "10.0.0.2:10911"}
    assert addresses("outside") == {"0": "10.0.0.3:20911", "1": "10.0.0.1:20911", "2": "10.0.0.2:20911"}
    node.leader = NOBODY
    assert addresses()["0"] == "10.0.0.3:10911", "the last known map stays"


def test_unknown_topic_is_asked_of_the_group_first(node: Any) -> None:
    asked: list[Any] = []
    node.read_index = asked.append
    request = node.ask(105, topic="T")
    assert not request.replies
    node.create_topic("T")
    asked.pop()(True)
    assert request.answer.code == 0

    request = node.ask(105, topic="U")
    asked.pop()(True)
    assert request.answer.code == 17


def test_without_leader_known_topics_are_answered_and_unknown_ones_never_17(node: Any) -> None:
    node.create_topic("T")
    node.leader, node.confirms = NOBODY, False
    assert node.ask(105, topic="T").answer.code == 0
    assert node.ask(105, topic="U").answer.code == 14
    assert node.ask(351, topic="U").answer.code == 14


def test_the_auto_create_topic_is_routed_with_inherit(node_with: Any) -> None:
    queues = json.loads(node_with().ask(105, topic="TBW102").answer.body)["queueDatas"]
    assert [(q["perm"], q["readQueueNums"], q["writeQueueNums"]) for q in queues] == [(5, 8, 8), *[(3, 8, 8)] * 3]
    alone = node_with(**{"cluster.producer_aliases": False})
    queues = json.loads(alone.ask(105, topic="TBW102").answer.body)["queueDatas"]
    assert [(q["perm"], q["readQueueNums"], q["writeQueueNums"]) for q in queues] == [(7, 8, 8)]
    closed = node_with(**{"topics.auto_create": False})
    assert closed.ask(105, topic="TBW102").answer.code == 17


def test_a_stored_topic_of_that_name_takes_nothing_from_its_route(node_with: Any) -> None:
    """HTTP created one in earlier releases; without the bit to inherit, no producer creates a topic from it."""
    node = node_with(**{"cluster.producer_aliases": False})
    node.create_topic("TBW102", queues=1)
    queues = json.loads(node.ask(105, topic="TBW102").answer.body)["queueDatas"]
    assert [(q["perm"], q["readQueueNums"], q["writeQueueNums"]) for q in queues] == [(7, 8, 8)]


def test_cluster_and_topic_lists(node: Any) -> None:
    node.create_topic("b")
    node.create_topic("a")
    assert node.ask(106, language="PYTHON").answer.body == (
        b'{"brokerAddrTable":{"raftmq":' + BROKER + b'},"clusterAddrTable":{"DefaultCluster":["raftmq"]}}'
    )
    assert node.ask(106).answer.ext["raftmqClusters"] == "cluster-uuid older-uuid"
    assert node.ask(206).answer.body == b'{"topicList":["a","b"]}'
    assert node.ask(224, cluster="DefaultCluster").answer.body == b'{"topicList":["a","b"]}'
    assert node.ask(224, cluster="other").answer.body == b'{"topicList":[]}'
    system = json.loads(node.ask(304).answer.body)["topicList"]
    assert {"TBW102", "DefaultCluster", "raftmq", "raftmq-1", "raftmq-2", "raftmq-3"} <= set(system)
    assert len(system) == len(set(system))
    assert "a" not in system


def test_java_tools_find_the_aliases_of_a_route_in_the_cluster_info(node: Any, node_with: Any, connect: Any) -> None:
    """rocketmq-dashboard looks up the names of a route. The group stays the cluster's only broker, so that tools that
    add up brokers count it once."""
    node.create_topic("T")
    connection = connect("broker")
    route = json.loads(node.ask(105, topic="T", connection=connection).answer.body)["brokerDatas"]
    info = json.loads(node.ask(106, connection=connection).answer.body)
    assert info["brokerAddrTable"] == {broker["brokerName"]: broker for broker in route}
    assert info["clusterAddrTable"] == {"DefaultCluster": ["raftmq"]}
    for other in (node.ask(106, language="GO"), node_with(**{"cluster.producer_aliases": False}).ask(106)):
        assert list(json.loads(other.answer.body)["brokerAddrTable"]) == ["raftmq"]


def test_every_broker_in_the_table_is_in_a_cluster(node: Any, connect: Any) -> None:
    """`mqadmin getConsumerConfig` prints the cluster of each name in the table, without a route: it was "null"."""
    info = json.loads(node.ask(106, language="JAVA", connection=connect("broker")).answer.body)
    assert list(info["brokerAddrTable"]) == info["clusterAddrTable"]["DefaultCluster"]


def test_the_cluster_info_has_every_group_that_the_listener_leads_to(node: Any, connect: Any) -> None:
    """In the order of the names as text. A topic's route still has its own group alone."""
    node.create_topic("T")

    def record(group: int, name: str, listener: str) -> GroupRecord:
        members = [GroupMember(at, "h", 1, "", {listener: f"{name}-{at}:1"}) for at in (1, 2)]
        return GroupRecord(group, name, Epoch(1, 1), 2, members)

    route = node.ask(105, topic="T").answer.body
    node.other_groups = {2: record(2, "z", "broker"), 3: record(3, "a", "broker"), 4: record(4, "m", "inside")}
    info = json.loads(node.ask(106, language="GO").answer.body)
    table = info["brokerAddrTable"]
    assert list(table) == info["clusterAddrTable"]["DefaultCluster"] == ["a", "raftmq", "z"]
    assert table["a"] == {
        "brokerAddrs": {"0": "a-2:1", "1": "a-1:1"},
        "brokerName": "a",
        "cluster": "DefaultCluster",
        "enableActingMaster": False,
    }
    assert node.ask(105, topic="T").answer.body == route
    connection = connect("broker")
    node.ask(105, topic="T", connection=connection)
    shown = json.loads(node.ask(106, connection=connection).answer.body)["brokerAddrTable"]
    assert list(shown) == ["a", "raftmq", "raftmq-1", "raftmq-2", "raftmq-3", "z"]
    assert {"a", "m", "z"} <= set(json.loads(node.ask(304).answer.body)["topicList"])


def test_key_values_and_name_server_deletes(node: Any) -> None:
    assert node.ask(101, namespace="ORDER_TOPIC_CONFIG", key="T").answer.code == 22
    assert node.ask(219, namespace="ORDER_TOPIC_CONFIG").answer.code == 22
    assert node.ask(216, topic="T", clusterName="DefaultCluster").answer.code == 0


def test_topic_config(node: Any) -> None:
    node.create_topic("T", queues=2, order=True, attributes={"dedup": "off"})
    assert node.ask(351, topic="T").answer.body == (
        b'{"attributes":{"dedup":"off"},"order":true,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":2}'
    )
    assert node.ask(351, topic="U").answer.code == 17


def test_missing_fields_are_named(node: Any) -> None:
    answer = node.ask(105).answer
    assert (answer.code, "topic" in (answer.remark or "")) == (29, True)


def test_the_page_lists_every_code_and_who_answers_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "wire-protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([A-Z_0-9]+) \| (leader|any) \|", page, re.MULTILINE)
    told = {(int(code), name, where == "leader") for code, name, where in rows}
    assert told == {(verb.code, verb.name, verb.serves.is_leader) for verb in ROWS}


def test_a_topic_with_order_names_the_queues_that_producers_use(node: Any) -> None:
    """The order is that of the route's own queues: Java takes `orderTopicConf` in their place."""
    node.create_topic("T", queues=3, order=True)
    node.create_topic("U", queues=3)
    body = json.loads(node.ask(105, topic="T").answer.body)
    assert body["orderTopicConf"] == "raftmq-1:3;raftmq-2:3;raftmq-3:3"
    written = [row for row in body["queueDatas"] if row["perm"] & 2]
    assert body["orderTopicConf"] == ";".join(f"{row['brokerName']}:{row['writeQueueNums']}" for row in written)
    assert json.loads(node.ask(105, topic="T", version=121).answer.body)["orderTopicConf"] == "raftmq:3"
    assert b"orderTopicConf" not in node.ask(105, topic="U").answer.body
    assert b"orderTopicConf" not in node.ask(105, topic="TBW102").answer.body


def test_order_configurations_are_the_only_rows_of_the_key_value_table(node: Any) -> None:
    node.create_topic("U", queues=3)
    space = {"namespace": "ORDER_TOPIC_CONFIG"}
    assert node.ask(219, **space).answer.code == 22
    node.create_topic("T", queues=2, order=True)
    conf = "raftmq-1:2;raftmq-2:2;raftmq-3:2"
    assert node.ask(101, key="T", **space).answer.ext == {"value": conf}
    assert json.loads(node.ask(219, **space).answer.body) == {"table": {"T": conf}}
    for key, namespace in (("U", "ORDER_TOPIC_CONFIG"), ("V", "ORDER_TOPIC_CONFIG"), ("T", "OTHER")):
        assert node.ask(101, key=key, namespace=namespace).answer.code == 22
    assert node.ask(219, namespace="OTHER").answer.code == 22
    assert node.ask(101, key="T").answer.code == 29


@pytest.mark.parametrize("follower_reads", [True, False])
def test_where_followers_are_read_the_id_of_a_dead_one_leads_to_another(node_with: Any, follower_reads: bool) -> None:
    node = node_with(**{"modes.slave_read_enable": follower_reads})
    node.create_topic("T")
    own = ["10.0.0.2:10911", "10.0.0.1:10911", "10.0.0.3:10911"]

    def addresses(code: int) -> list[str]:
        body = json.loads(node.ask(code, topic="T").answer.body)
        data = body["brokerDatas"][-1] if code == 105 else body["brokerAddrTable"]["raftmq"]
        assert list(data["brokerAddrs"]) == ["0", "1", "3"]
        return list(data["brokerAddrs"].values())

    assert addresses(105) == own
    node.unreached = {NodeId(3)}
    assert addresses(105) == ([*own[:2], "10.0.0.1:10911"] if follower_reads else own)
    assert addresses(106) == own, "who asks for the nodes themselves is told of each"
