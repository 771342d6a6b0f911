"""What clients are shown of a group of brokers: names, ids and addresses, while nodes come, go and lead."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.peer.reachability import stand_ins
from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from cluster.placement.route_map import BrokerData, BrokerGroup, RouteMap
from raftlog.types import NOBODY, NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Ground:
    """What the node knows of its group, in the test's hands."""

    def __init__(self) -> None:
        self.leader = NOBODY
        self.nodes = [ONE, TWO, THREE]
        self.unreached: set[NodeId] = set()
        self.config = self.configured()
        self.slots = 0
        self.group = BrokerGroup(
            lambda: self.config,
            leader=lambda: self.leader,
            advertised=lambda listener: {node: f"{listener}-{node}:10911" for node in self.nodes},
            stand_ins=lambda nodes: stand_ins(nodes, self.unreached),
            http=lambda node: f"http-{node}:9600",
            slots=lambda: self.slots,
        )

    @staticmethod
    def configured(**keys: Any) -> Config:
        peers = [{"id": node, "port": 10900 + node} for node in (1, 2, 3)]
        return load(None, {}, {"node.id": 1, "node.data_dir": "/data", "peers": peers} | keys)


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_the_leader_has_id_0_and_keeps_it_while_there_is_none(ground: Ground) -> None:
    nobody_yet = {"1": "broker-1:10911", "2": "broker-2:10911", "3": "broker-3:10911"}
    assert ground.group.brokers("broker") == BrokerData("raftmq", "DefaultCluster", nobody_yet)
    ground.leader = TWO
    led = ground.group.brokers("broker").addresses
    assert list(led.items()) == [("0", "broker-2:10911"), ("1", "broker-1:10911"), ("3", "broker-3:10911")]
    ground.leader = NOBODY
    assert ground.group.brokers("broker").addresses == led
    ground.leader = THREE
    assert ground.group.brokers("broker").addresses["0"] == "broker-3:10911"


def test_readers_are_sent_away_from_a_lost_node_if_they_may_read_there(ground: Ground) -> None:
    ground.leader, ground.unreached = ONE, {THREE}
    assert ground.group.readers("broker") == ground.group.brokers("broker")
    ground.config = ground.configured(**{"modes.slave_read_enable": True})
    shown = ground.group.readers("broker").addresses
    assert shown == {"0": "broker-1:10911", "2": "broker-2:10911", "3": "broker-1:10911"}


def test_aliases_keep_their_number_and_lead_to_living_nodes(ground: Ground) -> None:
    ground.unreached = {ONE}
    found = {each.name: each.addresses for each in ground.group.aliases("broker")}
    assert found == {
        "raftmq-1": {"0": "broker-2:10911"},
        "raftmq-2": {"0": "broker-2:10911"},
        "raftmq-3": {"0": "broker-3:10911"},
    }
    assert {*found, "raftmq"} == ground.group.names("broker")


def test_there_are_no_aliases_for_one_node_nor_if_they_are_off(ground: Ground) -> None:
    assert (ground.group.has_aliases, ground.group.has_choice("broker")) == (True, True)
    ground.nodes = [TWO]
    assert (ground.group.aliases("broker"), ground.group.has_choice("broker")) == ([], False)
    ground.nodes, ground.config = [ONE, TWO], ground.configured(**{"cluster.producer_aliases": False})
    assert (ground.group.aliases("broker"), ground.group.has_aliases) == ([], False)
    assert ground.group.names("broker") == {"raftmq", "raftmq-1", "raftmq-2"}, "an older route may have shown them"


def test_each_listener_is_given_its_own_addresses_or_those_of_the_one_that_it_names(ground: Ground) -> None:
    listeners = [{"name": "broker", "port": 10911}, {"name": "inside", "port": 20911, "routes": "broker"}]
    own = {"broker": "a:10911"}
    peers = [{"id": node, "port": 10900 + node, "listeners": own} for node in (1, 2, 3)]
    ground.config = ground.configured(listeners=listeners, peers=peers)
    assert ground.group.brokers("inside") == ground.group.brokers("broker")
    assert ground.group.brokers("outside").addresses["1"] == "outside-1:10911"


def test_every_topic_is_in_the_one_group(ground: Ground) -> None:
    routes = RouteMap(ground.group)
    assert routes.groups() == (routes.own,) == (routes.group_of("orders"),)
    assert routes.own.http_address(TWO) == "http-2:9600"


def record(group: int, name: str, leader: int = 1, nodes: tuple[int, ...] = (1, 2)) -> GroupRecord:
    """Every node of it has a listener `broker`, and node 1 another one."""
    listeners = {node: {"broker": f"{name}-{node}:10911"} | ({"other": "o:1"} if node == 1 else {}) for node in nodes}
    members = [GroupMember(node, "h", 1, f"{name}-{node}:9644", listeners[node]) for node in nodes]
    return GroupRecord(group, name, Epoch(1, 1), leader, members)


def test_other_groups_are_what_their_records_say(ground: Ground) -> None:
    known: dict[int, GroupRecord] = {}
    routes = RouteMap(ground.group, lambda: known)
    assert routes.groups() == (routes.own,)
    known |= {3: record(3, "a", leader=2), 2: record(2, "b")}
    own, first, second = routes.groups()
    assert own is routes.own
    assert (first.name, second.name) == ("a", "b"), "in the order of text"
    assert first.brokers("broker") == BrokerData("a", "DefaultCluster", {"0": "a-2:10911", "1": "a-1:10911"})
    assert first.readers("broker") == first.brokers("broker")
    assert first.brokers("other").addresses == {"1": "o:1"}
    assert first.brokers("nowhere").addresses == {}
    assert (first.leader(), first.http_address(TWO), first.http_address(THREE)) == (TWO, "a-2:9644", "")
    assert (first.has_aliases, first.aliases("broker"), first.names("broker")) == (False, [], {"a"})
    assert first.has_choice("broker")
    known[3] = record(3, "a", leader=1)
    assert routes.groups()[1].brokers("broker").addresses["0"] == "a-1:10911"
    assert routes.group_of("orders") is routes.own


def test_with_several_groups_aliases_are_slots_which_stay_when_nodes_come_and_go(ground: Ground) -> None:
    known = {2: record(2, "raftmq-g02", nodes=(5, 7))}
    routes = RouteMap(ground.group, lambda: known)

    def leads_to() -> list[dict[str, str]]:
        return [{each.name: each.addresses["0"] for each in group.aliases("broker")} for group in routes.groups()]

    assert leads_to() == [{f"raftmq-{n}": f"broker-{n}:10911" for n in (1, 2, 3)}, {}]
    ground.slots = 3
    before = leads_to()
    assert before == [
        {f"raftmq-{n}": f"broker-{n}:10911" for n in (1, 2, 3)},
        {
            "raftmq-g02-1": "raftmq-g02-5:10911",
            "raftmq-g02-2": "raftmq-g02-7:10911",
            "raftmq-g02-3": "raftmq-g02-5:10911",
        },
    ]
    assert routes.groups()[1].names("broker") == {"raftmq-g02", *before[1]}
    known[2] = replace(known[2], away=[5])
    assert set(leads_to()[1].values()) == {"raftmq-g02-7:10911"}
    known[2] = replace(known[2], away=[])
    ground.nodes = [TWO, NodeId(9)]
    assert [list(each) for each in leads_to()] == [list(each) for each in before]
    assert leads_to()[0] == {"raftmq-1": "broker-2:10911", "raftmq-2": "broker-9:10911", "raftmq-3": "broker-2:10911"}
    ground.nodes = [TWO]
    assert list(leads_to()[0]) == list(before[0]), "a group of one node has as many names as the others"
    ground.slots = 11
    assert list(leads_to()[0])[:4] == ["raftmq-1", "raftmq-10", "raftmq-11", "raftmq-2"], "in the order of text"


def test_a_topic_is_where_its_place_says(ground: Ground) -> None:
    known = {3: record(3, "a"), 2: record(2, "z")}
    routes = RouteMap(ground.group, lambda: known)
    assert routes.placed({1: (4, 8)}) == [(routes.own, (4, 8))]
    found = routes.placed({1: (4, 8), 2: (1, 2), 3: (5, 5)})
    assert found is not None
    assert [(group.name, queues) for group, queues in found] == [("a", (5, 5)), ("raftmq", (4, 8)), ("z", (1, 2))]
    assert routes.placed({1: (4, 8), 4: (1, 1)}) is None, "nobody has told of group 4"


def test_a_name_stands_for_one_group(ground: Ground) -> None:
    known = {5: record(5, "b", nodes=(1,)), 4: record(4, "b", nodes=(2,)), 1: record(1, "raftmq")}
    own, other = RouteMap(ground.group, lambda: known).groups()
    assert own is ground.group
    assert other.brokers("broker").addresses == {"2": "b-2:10911"}, "that of group 4"
