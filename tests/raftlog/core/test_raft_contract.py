"""The contract of RawNode: what it refuses, what it gives out and when, and what stops the node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.errors import FrameError, InvariantViolationError
from raftlog.frame import FRAME_LENGTH_MAX
from raftlog.messages import AppendEntries, AppendEntriesReply, Heartbeat, InstallSnapshot
from raftlog.types import NOBODY, EntryId, EntryType, HardState, NodeId, Role
from tests.support.raft_group import Disk, Group, chain, members_of, raw_of
from tests.support.rows import each_row

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
CONFIG = RaftConfig(ONE, 1)


def settle(group: Group) -> None:
    busy = True
    while busy:
        busy = bool(group.network)
        for node, raw in group.nodes.items():
            while raw.has_ready():
                group.take_ready(node)
                busy = True
            while group.disks[node].writes:
                group.sync(node)
        network, group.network = group.network, []
        for message in network:
            group.deliver(message)


def led_group(config: RaftConfig = CONFIG) -> Group:
    group = Group(lambda node: replace(config, node_id=node), {n: Disk() for n in (ONE, TWO, THREE)})
    group.act(ONE, RawNode.campaign)
    settle(group)
    assert group.nodes[ONE].role is Role.LEADER
    return group


def follower(disk: Disk) -> RawNode:
    return raw_of(disk, CONFIG)


@each_row(
    ("change", "name"),
    [
        ({"node_id": NOBODY}, "node_id"),
        ({"heartbeat_ticks": 0}, "heartbeat_ticks"),
        ({"election_ticks": 2}, "election_ticks"),
        ({"segment_size": 0}, "segment_size"),
        ({"inflight_messages_max": 0}, "inflight_messages_max"),
        ({"append_bytes_max": FRAME_LENGTH_MAX + 1}, "append_bytes_max"),
    ],
)
def test_bad_settings_are_named(change: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is .*: give"):
        replace(CONFIG, **change).validate()  # type: ignore[arg-type]


@pytest.mark.parametrize("indexes", [(), (0, 0), (0, 3, 2)])
def test_members_out_of_order_are_refused(indexes: tuple[int, ...]) -> None:
    members = [members_of((1, 2, 3))._replace(index=index) for index in indexes]
    with pytest.raises(ValueError, match="give at least one, each at a higher index"):
        raw_of(Disk(), CONFIG, members=members)


def test_members_that_the_log_does_not_reach_stop_the_start() -> None:
    members = [members_of((1, 2, 3)), members_of((1, 2))._replace(index=3)]
    with pytest.raises(InvariantViolationError, match="members changed at index 3, the log on disk ends at 0"):
        raw_of(Disk(), CONFIG, members=members)


def test_entries_of_a_term_that_is_not_on_disk_are_refused() -> None:
    with pytest.raises(InvariantViolationError, match="log ends in term 4, the hard state is at term 3"):
        follower(Disk(chain([1, 4]), HardState(3, NOBODY, 0)))


def test_a_payload_that_is_too_long_changes_nothing() -> None:
    node = led_group().nodes[ONE]
    tail = node.tail
    with pytest.raises(FrameError, match="longer than the limit"):
        node.propose(EntryType.MESSAGES, bytes(FRAME_LENGTH_MAX), 0)
    assert node.tail == tail
    assert not node.has_ready()


def test_an_idle_node_has_nothing_to_say() -> None:
    group = led_group()
    for node in group.nodes.values():
        assert not node.has_ready()
        ready = node.ready()
        assert not any(ready), ready


def test_the_hard_state_is_written_for_term_and_vote_only() -> None:
    group = led_group()
    for _ in range(5):
        group.act(ONE, lambda raw: raw.propose(EntryType.MESSAGES, b"x", 0))
        ready = group.take_ready(ONE)
        assert ready.entries
        assert ready.hard_state is None
        settle(group)
    assert group.nodes[ONE].commit_index == 6


def test_apply_is_bounded_per_ready_and_in_total() -> None:
    entry_size = 64 + 100
    config = replace(CONFIG, apply_bytes_max=2 * entry_size, applying_bytes_max=4 * entry_size)
    group = Group(lambda node: replace(config, node_id=node), {ONE: Disk()})
    group.act(ONE, RawNode.campaign)
    settle(group)
    node = group.nodes[ONE]
    for _ in range(10):
        node.propose(EntryType.MESSAGES, bytes(100), 0)
    node.persisted(node.ready().entries[-1].id)
    handed = [len(node.ready().committed_entries) for _ in range(4)]
    assert handed == [2, 2, 0, 0]
    assert not node.has_ready()
    node.applied(node.applied_index + 2)
    assert node.has_ready()
    assert len(node.ready().committed_entries) == 2


def test_applied_beyond_what_was_handed_out_stops_the_node() -> None:
    node = led_group().nodes[ONE]
    with pytest.raises(InvariantViolationError, match="never given out"):
        node.applied(node.commit_index + 1)


def test_a_follower_commits_only_up_to_the_last_entry_of_the_message() -> None:
    # What lies above may still conflict: "min(leaderCommit, index of last new entry)".
    node = follower(Disk(chain([1, 1, 1]), HardState(1, NOBODY, 0)))
    entries = chain([1, 1])
    node.step(AppendEntries(TWO, ONE, 2, EntryId(1, 1), 3, (entries[2],)))
    assert node.commit_index == 2


def test_a_follower_knows_how_far_it_is_behind_before_it_has_the_entries() -> None:
    node = follower(Disk(chain([1]), HardState(1, NOBODY, 0)))
    node.step(AppendEntries(TWO, ONE, 1, EntryId(1, 40), 35, ()))  # a probe, which is refused
    assert (node.commit_index, node.status().behind) == (0, 35 - node.applied_index)
    node.step(AppendEntries(TWO, ONE, 1, EntryId(1, 20), 30, ()))  # a late one
    assert node.status().behind == 35 - node.applied_index
    node.step(InstallSnapshot(TWO, ONE, 1, 51, EntryId(1, 50)))
    assert node.status().behind == 50 - node.applied_index


def test_a_commit_index_that_this_log_never_acknowledged_stops_the_node() -> None:
    node = follower(Disk(chain([1]), HardState(1, NOBODY, 0)))
    with pytest.raises(InvariantViolationError, match="acknowledged are missing"):
        node.step(Heartbeat(TWO, ONE, 1, 5, 0))


def test_a_second_leader_in_the_term_stops_the_leader() -> None:
    node = led_group().nodes[ONE]
    with pytest.raises(InvariantViolationError, match="two leaders in term 1: 1 and 2"):
        node.step(Heartbeat(TWO, ONE, 1, 0, 0))


def test_an_acknowledgement_beyond_the_log_stops_the_leader() -> None:
    node = led_group().nodes[ONE]
    with pytest.raises(InvariantViolationError, match="acknowledges index 99"):
        node.step(AppendEntriesReply(TWO, ONE, 1, False, 99, EntryId(0, -1)))


def test_replies_of_strangers_are_ignored() -> None:
    node = led_group().nodes[ONE]
    node.step(AppendEntriesReply(NodeId(9), ONE, 1, False, 99, EntryId(0, -1)))
    assert not node.has_ready()


def test_a_follower_far_behind_is_served_from_disk() -> None:
    group = led_group(replace(CONFIG, cache_bytes_max=2000, append_bytes_max=1000, inflight_messages_max=3))
    group.crash(THREE)
    for _ in range(60):
        group.act(ONE, lambda raw: raw.propose(EntryType.MESSAGES, bytes(300), 0))
        settle(group)
    assert group.nodes[ONE].raft.log.cache.first_index > 55
    group.start(THREE)
    for _ in range(3):
        group.act(ONE, RawNode.tick)
        settle(group)
    assert group.disks[THREE].tail == group.disks[ONE].tail
    assert group.nodes[THREE].applied_index == group.nodes[ONE].applied_index


def test_a_follower_below_the_trimmed_log_waits_for_a_snapshot() -> None:
    group = led_group()
    group.crash(THREE)
    for _ in range(5):
        group.act(ONE, lambda raw: raw.propose(EntryType.MESSAGES, b"x", 0))
        settle(group)
    # A leader that kept only the newest entries: what node 3 needs is gone, and nothing wrong is sent instead.
    trimmed = Disk(group.disks[ONE].entries, group.disks[ONE].hard_state, applied_index=6, first_index=5)
    node = raw_of(trimmed, CONFIG, applied_index=6)
    group.nodes[ONE], group.disks[ONE] = node, trimmed
    group.start(THREE)
    group.act(ONE, RawNode.campaign)
    for _ in range(6):
        settle(group)
        group.act(ONE, RawNode.tick)
    peers = {peer.node_id: peer for peer in node.status().peers}
    assert peers[TWO].lag == 0
    assert (peers[THREE].state, peers[THREE].lag) == ("SNAPSHOT", 8)
    assert node.commit_index == 7


def test_node_ids_are_compared_by_value() -> None:
    """Small integers are one object each; ids that came over the wire are not."""
    ids = [NodeId(int(text)) for text in ("60001", "60002", "60003")]
    group = Group(lambda node: replace(CONFIG, node_id=NodeId(int(str(node)))), {node: Disk() for node in ids})
    group.act(ids[0], RawNode.campaign)
    settle(group)
    raw = group.nodes[ids[0]]
    assert raw.role is Role.LEADER
    group.act(ids[0], lambda raw: raw.transfer_leadership(NodeId(int("60001"))))
    assert raw.raft.transferee == NOBODY, "to itself: there is nothing to do"
    group.act(ids[0], lambda raw: raw.transfer_leadership(NodeId(int("60002"))))
    settle(group)
    assert group.leaders() == [60002]
