"""The members in force, as the transport, the routes and the operator of one node see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from cluster.config.loading import load
from cluster.members.service import MembersService
from cluster.peer.allowed_peers import LEVEL, REMOVED, Addresses, Refusal, RemovedMember
from cluster.peer.allowed_peers import Membership as Handshake
from cluster.runtime.alarms import Alarms
from raftlog.membership import Address, Membership, promoted, with_learner, without
from raftlog.storage.files.identity import Identity
from raftlog.types import NodeId, Voter
from tests.support.contexts import context_of
from tests.support.samples import sample

UUIDS = {NodeId(node): UUID(int=node) for node in range(1, 6)}
GENESIS = Membership(UUID(int=99), tuple(Voter(NodeId(node), UUIDS[NodeId(node)]) for node in (1, 2, 3)))
FOUR = Address(NodeId(4), "ten", 10914, "ten:9644", (("broker", "ten:10911"),))


class Raw:
    """The core: what is in force, and how far it is committed."""

    def __init__(self) -> None:
        self.raft: Any = SimpleNamespace(members=SimpleNamespace(history=[GENESIS]))
        self.committed_membership_index = 0
        self.held: dict[str, bool] = {}

    @property
    def membership(self) -> Membership:
        return cast(Membership, self.raft.members.history[-1])

    @property
    def memberships_that_count(self) -> list[Membership]:
        return [each for each in self.raft.members.history if each.index >= self.committed_membership_index]

    def append(self, membership: Membership, index: int) -> None:
        self.raft.members.history.append(membership._replace(index=index))

    def hold_campaigns(self, reason: str, held: bool) -> None:
        self.held[reason] = held


class Follows:
    def __init__(self) -> None:
        self.told: list[tuple[Handshake, Addresses]] = []
        self.levels: dict[NodeId, int] = {}

    def set_members(self, membership: Handshake, addresses: Addresses) -> None:
        self.told.append((membership, addresses))


class World:
    """Node `own` of three, and what follows its members."""

    def __init__(self, own: int = 1) -> None:
        self.raw = Raw()
        self.alarms = Alarms(lambda: 0)
        self.follows = Follows()
        peers = [{"id": n, "port": 10900 + n, "listeners": {"broker": f"127.0.0.1:{10800 + n}"}} for n in (1, 2, 3, 4)]
        listeners = [{"name": "broker", "port": 10800 + own}]
        config = load(None, {}, {"node.id": own, "node.data_dir": "/d", "peers": peers, "listeners": listeners})
        identity = Identity(GENESIS.cluster_uuid, 1, NodeId(own), UUIDS[NodeId(own)], 0)
        raw: Any = self.raw
        context = context_of(raw, self.alarms, config=config)
        first_ids = map(NodeId, (1, 2, 3, 5))
        self.service = MembersService(context, identity, first_ids, self.follows.levels)
        self.service.changed.add(self.follows.set_members)

    def change(self, membership: Membership, index: int, *, commit: bool = True) -> None:
        self.raw.append(membership, index)
        if commit:
            self.raw.committed_membership_index = index
        self.service.on_members()

    def removed_since(self) -> int | None:
        return self.service.removed_since

    def dialled(self) -> set[int]:
        handshake, addresses = self.follows.told[-1]
        return {int(node) for node in handshake.members if addresses.get(node)}


def test_ids_of_whoever_was_there_before_are_not_given_again() -> None:
    """GENESIS had a node 5; the one survivor of it that goes on alone does not know."""
    world = World()
    assert (world.service.taken_ids, world.service.next_id) == ([1, 2, 3, 5], 6)
    joined = with_learner(GENESIS, Voter(NodeId(9), UUID(int=9)), FOUR._replace(id=NodeId(9)))
    world.change(without(joined, NodeId(9)), 7)
    assert world.service.next_id == 10


def test_who_joins_is_known_at_once_and_where_the_log_says_it_is() -> None:
    world = World()
    world.change(with_learner(GENESIS, Voter(NodeId(4), UUIDS[NodeId(4)]), FOUR), 7, commit=False)
    assert world.follows.told[-1][0].members[NodeId(4)] == str(UUIDS[NodeId(4)])
    assert world.follows.told[-1][1][NodeId(4)] == (("ten", 10914), ("127.0.0.1", 10904)), "then by configuration"
    assert world.service.addresses[NodeId(4)].admin == "ten:9644"


def test_a_member_that_is_not_connected_has_announced_nothing() -> None:
    world = World()
    assert world.service.announced(NodeId(2)) is None
    world.follows.levels.update({NodeId(2): 11, NodeId(3): 0})
    assert (world.service.announced(NodeId(2)), world.service.announced(NodeId(3))) == (11, None)


def test_a_node_that_is_refused_for_its_level_says_so() -> None:
    world = World()
    world.service.refused(NodeId(2), Refusal("the cluster has level 12", LEVEL))
    assert [(alarm.key, "level 12" in alarm.text) for alarm in world.alarms.all()] == [("level_too_low", True)]


def test_routes_have_voters_only() -> None:
    world = World()
    joined = with_learner(GENESIS, Voter(NodeId(4), UUIDS[NodeId(4)]), FOUR)
    world.change(joined, 7)
    assert list(world.service.broker_addresses("broker")) == [1, 2, 3], "a learner's rows may be far behind"
    assert sample(world.service.part().metrics, "raftmq_members", role="learner") == 1
    world.change(promoted(joined, NodeId(4)), 8, commit=False)
    assert sample(world.service.part().metrics, "raftmq_members", role="voter") == 4
    assert sample(world.service.part().metrics, "raftmq_membership_pending") == 1
    assert world.service.broker_addresses("broker")[NodeId(4)] == "ten:10911"
    world.change(without(world.raw.membership, NodeId(2)), 9)
    assert sample(world.service.part().metrics, "raftmq_membership_index") == 9
    assert sample(world.service.part().metrics, "raftmq_membership_pending") == 0
    assert list(world.service.broker_addresses("broker")) == [1, 3, 4]
    assert world.service.broker_addresses("other") == {}


def test_who_is_leaving_is_talked_to_until_that_is_committed() -> None:
    """It may be the leader that waits for this very node's answer, or the only one that has the entry."""
    world = World()
    world.change(without(GENESIS, NodeId(2)), 9, commit=False)
    assert world.dialled() == {1, 2, 3}
    assert world.follows.told[-1][0].removed == {}
    told = len(world.follows.told)
    world.service.tick(0)
    assert len(world.follows.told) == told, "nothing is new"
    world.raw.committed_membership_index = 9
    world.service.tick(50)
    assert world.dialled() == {1, 3}
    assert world.follows.told[-1][0].removed == {NodeId(2): RemovedMember(str(UUIDS[NodeId(2)]), 9)}


def test_a_removal_that_is_cut_off_has_removed_nobody() -> None:
    world = World()
    world.change(without(GENESIS, NodeId(2)), 9, commit=False)
    del world.raw.raft.members.history[-1]
    world.service.on_members()
    assert world.dialled() == {1, 2, 3}
    assert world.service.is_committed


def test_a_node_that_was_removed_says_so_and_serves_nobody() -> None:
    world = World(own=3)
    told: list[str] = []
    world.service.removed.add(lambda: told.append("removed"))
    world.change(without(GENESIS, NodeId(3)), 9, commit=False)
    assert world.removed_since() is None
    world.raw.committed_membership_index = 9
    world.service.tick(0)
    assert (world.removed_since(), world.service.own_role) == (9, "removed")
    world.service.on_members()
    assert told == ["removed"], "once"
    assert world.raw.held == {"removed": True}
    assert "raftmq node add" in world.alarms.all()[0].text
    assert world.alarms.all()[0].stops_service
    assert sample(world.service.part().metrics, "raftmq_removed") == 1
    assert list(world.service.broker_addresses("broker")) == [1, 2]


def test_a_node_that_missed_its_removal_hears_it_from_those_that_do_not_let_it_in() -> None:
    world = World(own=3)
    world.service.refused(NodeId(1), Refusal("another disk"))
    assert world.removed_since() is None
    for peer in (1, 2):
        world.service.refused(NodeId(peer), Refusal("removed", REMOVED, 12))
    assert world.removed_since() == 12
    assert list(world.service.broker_addresses("broker")) == [1, 2], "though its own log knows nothing of it"
    back = with_learner(without(GENESIS, NodeId(3)), Voter(NodeId(3), UUIDS[NodeId(3)]), FOUR._replace(id=NodeId(3)))
    world.change(back, 11)
    assert world.removed_since() == 12, "that was before"
    world.change(back, 20)
    assert world.removed_since() is None
    assert world.raw.held == {"removed": False}
    assert world.alarms.all() == []


def test_a_node_that_has_not_heard_yet_that_it_joined_is_not_removed() -> None:
    world = World(own=4)
    assert world.service.own_role == "none"
    joined = with_learner(GENESIS, Voter(NodeId(4), UUIDS[NodeId(4)]), FOUR)
    world.change(joined, 7)
    assert (world.service.own_role, world.removed_since()) == ("learner", None)
    assert 4 not in world.service.broker_addresses("broker")


def test_a_node_that_joins_a_cluster_which_went_on_from_another_knows_nobody_before_it_hears_of_it() -> None:
    """Found when a node was added to a restored cluster: it refused all others, whose ids were other nodes' before."""
    world = World()
    world.service.identity = world.service.identity._replace(cluster_uuid=UUID(int=100))
    assert world.service.handshake().members == {}
    restored = GENESIS._replace(
        cluster_uuid=UUID(int=100), voters=tuple(Voter(NodeId(node), UUID(int=50 + node)) for node in (1, 2, 3))
    )
    world.change(restored, 20)
    assert world.follows.told[-1][0].members == {NodeId(node): str(UUID(int=50 + node)) for node in (1, 2, 3)}
