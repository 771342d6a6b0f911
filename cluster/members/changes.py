"""Changes the membership on the leader: checks and proposes changes, promotes learners, and moves leadership to a
preferred node.

Only one change is made at a time. Each is a MEMBERSHIP entry. The request is answered when this node has applied the
entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from uuid import UUID

from cluster.config.local_layout import node_object
from cluster.members import checks
from cluster.members.address_change import MemberPlace, place_of
from cluster.members.addresses import MemberAddresses
from cluster.members.checks import Group
from cluster.members.service import MembersService
from cluster.peer.reachability import DRAINED, MAINTAINED
from cluster.peer.slow_leader_transfer import SlowTurns
from cluster.runtime.context import NodeContext
from cluster.runtime.leader_handover import Succession
from cluster.runtime.service_lifecycle import AppliedRun, Part
from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.errors import RaftLogError
from raftlog.membership import Membership, promoted, with_address, with_learner, without
from raftlog.types import FIRST_GROUP, NOBODY, EntryId, NodeId, Role, Voter
from raftmq_wire.errors import LocalError

logger = logging.getLogger(__name__)

DISK_LAG_MS = 1000
"""Milliseconds. If an entry is committed and is not on the leader's own disk after this time, the leader transfers
leadership."""


class ChangeOutcome(Enum):
    """The outcome of a change that was proposed."""

    DONE = "done"
    REPLACED = "replaced"
    """Another leader's entry took the place of the change, so nothing was changed."""


class MemberChanges:
    """Makes membership changes. Event loop only. Methods that change the members work only on the leader."""

    def __init__(
        self,
        context: NodeContext,
        service: MembersService,
        *,
        transfer: Callable[[NodeId], None],
        slow_turns: SlowTurns | None = None,
    ) -> None:
        """`transfer` transfers leadership to a node. `slow_turns` knows the nodes with long turns of the event loop. A
        preferred node gets no leadership if it is one of them, or if a leader has recently handed leadership over
        because of its long turns."""
        raft = context.config.raft
        self._raw = context.raw
        self._service = service
        self._wake = context.wake
        self._transfer = transfer
        self._succession = context.succession
        self._rounds = Rounds(raft.election_ticks * raft.tick_ms)
        self._caught_up: set[NodeId] = set()
        self._preference = Preference(service.own_id, raft.preferred_leaders, raft.preferred_lag_entries)
        self._waiting: dict[int, list[tuple[int, Callable[[ChangeOutcome], None]]]] = {}
        self._slow_turns = slow_turns
        self._drain_due = False
        self.drained = False
        """True while this node is drained. It must not lead then."""
        self.maintained = False
        """True while this node is in maintenance by the log's state. It must not lead then."""

    def part(self) -> Part:
        """Returns the functions through which the node starts, informs and closes this service."""
        return Part(
            name="changes",
            tick=self.tick,
            applied=self.on_applied,
            reload=lambda config: self.reload(config.raft.preferred_leaders, config.raft.preferred_lag_entries),
        )

    def reload(self, preferred: str, lag_max: int) -> None:
        """Applies other preferred leaders, and another limit of their lag in entries. The times of the last election
        and transfer are kept."""
        self._preference.reload(preferred, lag_max)

    @property
    def preferred(self) -> Collection[NodeId]:
        """Ids of the nodes that should lead if they can."""
        return self._preference.wished

    def _object_of(self, node: NodeId) -> str:
        return node_object(self._service.identity.group_id, node)

    # --- what an operator asks for -----------------------------------------------------------------------------------

    def group(self) -> Group:
        """Returns the group as this leader sees it."""
        raw = self._raw
        peers = {peer.node_id: peer for peer in raw.status().peers}
        live = frozenset(node for node, progress in raw.raft.members.peers.items() if progress.is_live)
        service = self._service
        return Group(
            raw.raft.id,
            service.in_force,
            raw.committed_membership_index,
            peers,
            live,
            service.addresses,
            service.next_id,
            service.identity.group_id,
        )

    def is_caught_up(self, node: NodeId) -> bool:
        """Returns True if that learner could be promoted now."""
        return node in self._caught_up

    def add(
        self,
        node: NodeId,
        uuid: UUID,
        addresses: MemberAddresses,
        *,
        manual: bool,
        done: Callable[[ChangeOutcome], None],
    ) -> EntryId:
        """Adds a learner, or moves a member that has another address; returns the id of the MEMBERSHIP entry. If
        nothing changes, the outcome is DONE at once. Raises LocalError if a check fails, RaftLogError if the entry
        cannot be proposed."""
        group = self.group()
        members, address = group.membership, addresses.as_address(node)
        # If nothing would change, an earlier request was carried out, and its answer may have been lost. So this one
        # succeeds.
        if not checks.add(group, node, uuid, addresses):
            done(ChangeOutcome.DONE)
            return EntryId(self._raw.term, members.index)
        # A node with the same disk keeps its vote at the new address. Another disk with this id could vote twice.
        if members.node_uuids.get(node) == uuid:
            return self._propose(with_address(members, address), done)
        return self._propose(with_learner(members, Voter(node, uuid), address, manual=manual), done)

    def check_add(self, node: NodeId, uuid: UUID, addresses: MemberAddresses) -> MemberPlace | None:
        """Returns the new addresses of a member that would move; None if a node would be added, or nothing would
        change. Raises LocalError as `add` does."""
        group = self.group()
        if not checks.add(group, node, uuid, addresses) or group.membership.node_uuids.get(node) != uuid:
            return None
        return place_of(node, str(uuid), group.addresses.get(node), addresses)

    def check_hand_over(self) -> NodeId:
        """Returns the voter that will lead before this leader's own address changes; NOBODY if this node is the only
        voter. Raises LocalError if there are other voters, and none of them could lead now."""
        group = self.group()
        return checks.successor(group, self._succession.slower) if len(group.voters) > 1 else NOBODY

    def promote(self, node: NodeId, done: Callable[[ChangeOutcome], None]) -> EntryId:
        """Makes a learner a voter; returns the id of the MEMBERSHIP entry. Raises LocalError if a check fails,
        RaftLogError if the entry cannot be proposed."""
        group = self.group()
        checks.promote(group, node, self.is_caught_up(node))
        return self._propose(promoted(group.membership, node), done)

    def remove(self, node: NodeId, done: Callable[[ChangeOutcome], None], *, below_three: bool = True) -> EntryId:
        """Removes a member; returns the id of the MEMBERSHIP entry. If the member is this leader, it leads until the
        entry is committed. Raises LocalError if a check fails, RaftLogError if the entry cannot be proposed."""
        group = self.group()
        checks.remove(group, node, below_three=below_three)
        return self._propose(without(group.membership, node), done)

    def check_removal(self, node: NodeId, *, below_three: bool) -> None:
        """Raises LocalError if the remaining voters would have no majority, or if they would survive no failure and the
        caller has not confirmed that (`below_three`)."""
        checks.remove(self.group(), node, below_three=below_three)

    def successor(self) -> NodeId:
        """Returns the voter that could take over from this leader at once; NOBODY if there is none."""
        try:
            return checks.successor(self.group(), self._succession.slower)
        except LocalError:
            return NOBODY

    def check_transfer(self, to: NodeId) -> None:
        """Raises LocalError unless the node `to` could lead at once."""
        checks.transfer(self.group(), to)

    def drain(self, held: bool) -> None:
        """With `held`, keeps this node from leading until it restarts or this is called with False; a leader transfers
        leadership. Raises LocalError if this node leads and no other node could."""
        # Raises LocalError if there is no successor, because the group would then take no writes.
        if held and self._raw.role is Role.LEADER:
            checks.successor(self.group(), self._succession.slower)
        self.drained = held
        self._raw.hold_campaigns(DRAINED, held)
        self._leave()

    def maintain(self, held: bool) -> None:
        """Records if this node is in maintenance, as the log says. A leader in maintenance transfers leadership as soon
        as it can."""
        if held != self.maintained:
            self.maintained = held
            self._raw.hold_campaigns(MAINTAINED, held)
            self._leave()

    def _leave(self) -> None:
        self._drain_due = self.drained or self.maintained
        self._wake()

    def _propose(self, members: Membership, done: Callable[[ChangeOutcome], None]) -> EntryId:
        # Until an operator has acknowledged that unsafe-recover may have lost messages, another change would hide it.
        if self._service.has_unread_event:
            raise checks.refusal(
                "the members were changed by unsafe-recover, and no operator has acknowledged that yet",
                "messages may be lost by it (raftmq alarm list); after another change that would not show any more",
                "raftmq alarm ack unsafe_recovered    (then repeat the command)",
            )
        entry = self._raw.propose_membership(members, self._raw.log_time_ms())
        self._waiting.setdefault(entry.index, []).append((entry.term, done))
        self._wake()
        return entry.id

    # --- as time goes on ---------------------------------------------------------------------------------------------

    def on_applied(self, applied: AppliedRun) -> None:
        """Answers the waiting requests whose entries are applied."""
        if not self._waiting:
            return
        for entry in applied.entries:
            # Compares the term, too: the entry at this index may be another leader's.
            for term, done in self._waiting.pop(entry.index, ()):
                done(ChangeOutcome.DONE if entry.term == term else ChangeOutcome.REPLACED)

    def tick(self, now_ms: int) -> None:
        """Transfers leadership if this node must not or should not lead, and promotes learners that have caught up.
        Called several times a second. It is cheap while there is no learner and no preferred leader."""
        if self._raw.role is not Role.LEADER:
            self._drain_due = False
            self._rounds.keep(set())
            self._caught_up = set()
            return
        if self._drain_due:
            self._hand_over()
        self._promote_those_that_caught_up(now_ms)
        status = self._raw.status()
        to = self._preference.choose(status.term, status.voters, status.peers, now_ms)
        if to != NOBODY and not (self.drained or self.maintained) and self._may_go_to(to):
            logger.info("%s is preferred and near: it should lead", self._object_of(to))
            self._try(lambda: self._transfer(to))

    def _may_go_to(self, node: NodeId) -> bool:
        slow = self._slow_turns
        # A preferred node that would soon lose leadership again does not get it.
        if slow is not None and (slow.paused or slow.is_slow(node)):
            return False
        return not self._succession.slower(node, (self._service.own_id,))

    def _hand_over(self) -> None:
        if self._raw.status().transferee != NOBODY:
            return
        to = self.successor()
        # If no node can take over, this node goes on leading, because that is better than no leader.
        if to == NOBODY:
            return  # tried again at the next tick
        logger.info("this node is drained or in maintenance, %s should lead", self._object_of(to))
        self._try(lambda: self._transfer(to))

    def _promote_those_that_caught_up(self, now_ms: int) -> None:
        members = self._service.in_force
        learners = set(members.learner_ids)
        self._rounds.keep(learners)
        self._caught_up = self._measure(learners, now_ms)
        # Only one change at a time, and none before the first entry of the own term is committed: otherwise two
        # majorities might have no node in common.
        if not self._service.is_committed or self._raw.commit_index < self._raw.term_start_index:
            return
        for node in sorted(self._caught_up - set(members.manual)):
            logger.info("%s has caught up: it becomes a voter", self._object_of(node))
            if self._try(lambda node=node: self._propose(promoted(members, node), lambda _: None)):  # type: ignore[misc]
                return

    def _measure(self, learners: set[NodeId], now_ms: int) -> set[NodeId]:
        if not learners:
            return set()
        status = self._raw.status()
        near: set[NodeId] = set()
        for peer in status.peers:
            if peer.node_id not in learners:
                continue
            is_short = self._rounds.observe(peer.node_id, peer.match_index, status.last_index, now_ms)
            # A voter that is far behind counts in every quorum, but cannot help to commit. The group might have to wait
            # for it.
            if is_short and peer.fit and peer.caught_up:
                near.add(peer.node_id)
        return near

    def _try(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except (RaftLogError, LocalError, ValueError) as error:  # ValueError: the node can no longer lead
            logger.info("not now: %s", error)
            return False
        return True


AFTER_ELECTION_MS = 30_000
"""Milliseconds for which a newly elected leader stays the leader, because there was a reason for its election."""
BETWEEN_MS = 60_000
"""Milliseconds between two transfers to a preferred node, successful or not."""
STEADY_MS = 5_000
"""Milliseconds for which a preferred node must have been caught up before it gets leadership."""


class Preference:
    """Chooses when one leader transfers leadership to a preferred node (`[raft] preferred_leaders`). Times are
    monotonic milliseconds."""

    def __init__(self, own: NodeId, wished: str, lag_max: int) -> None:
        """`own` is this node's id. `wished` lists ids of nodes, the best first, such as "2;1". `lag_max` is the
        most entries by which a node may be behind to get leadership."""
        self._own = own
        self.reload(wished, lag_max)
        self._term = -1
        self._elected_ms = 0
        self._tried_ms: int | None = None
        self._candidate = NOBODY
        self._since_ms = 0

    def reload(self, wished: str, lag_max: int) -> None:
        """Applies another list of preferred leaders and another limit."""
        self.wished = [NodeId(int(node)) for node in wished.split(";") if node]
        self._lag_max = lag_max

    def choose(self, term: int, voters: Sequence[NodeId], peers: Sequence[PeerStatus], now_ms: int) -> NodeId:
        """Returns the node to which this leader of `term` should transfer leadership; NOBODY if to none. Must be called
        periodically."""
        if term != self._term:
            self._term, self._elected_ms, self._candidate = term, now_ms, NOBODY
        best = self._best(voters, {peer.node_id: peer for peer in peers})
        if best != self._candidate:
            self._candidate, self._since_ms = best, now_ms
        if best in (NOBODY, self._own) or not self._is_time(now_ms):
            return NOBODY
        self._tried_ms = now_ms
        return best

    def _best(self, voters: Sequence[NodeId], peers: dict[NodeId, PeerStatus]) -> NodeId:
        for node in self.wished:
            if node in voters and (node == self._own or (node in peers and self._is_near(peers[node]))):
                return node
        return NOBODY

    def _is_near(self, peer: PeerStatus) -> bool:
        return peer.fit and peer.caught_up and peer.lag <= self._lag_max

    def _is_time(self, now_ms: int) -> bool:
        return (
            now_ms - self._elected_ms >= AFTER_ELECTION_MS
            and now_ms - self._since_ms >= STEADY_MS
            and (self._tried_ms is None or now_ms - self._tried_ms >= BETWEEN_MS)
        )


# Decides when a learner has caught up. The leader replicates to it in rounds; it has caught up when the last round was
# short (Raft thesis 4.2.1).
#
# A round covers the leader's log as it is when the round begins. The next round begins when the learner's disk has all
# of it. A learner that needs less than an election timeout for a round delays clients no longer than a failed leader
# does, so it may vote.


class Rounds:
    """Measures the rounds in which each learner catches up. Times are monotonic milliseconds."""

    def __init__(self, short_ms: int) -> None:
        """`short_ms`: a learner has caught up after a round that took fewer milliseconds."""
        self._short_ms = short_ms
        self._began: dict[NodeId, tuple[int, int]] = {}
        """Learner -> (index at which its present round ends, time when that round began)."""
        self._caught_up: set[NodeId] = set()

    def observe(self, node: NodeId, match_index: int, last_index: int, now_ms: int) -> bool:
        """Records a learner's progress; returns True if it has caught up. `match_index` is the end of the log on the
        learner's disk, `last_index` the end of the leader's log."""
        target, began_ms = self._began.setdefault(node, (last_index, now_ms))
        if match_index >= target:
            self._note(node, now_ms - began_ms < self._short_ms)
            self._began[node] = (last_index, now_ms)
        elif now_ms - began_ms >= self._short_ms:
            self._note(node, False)
        return node in self._caught_up

    def _note(self, node: NodeId, is_short: bool) -> None:
        if is_short:
            self._caught_up.add(node)
        else:
            self._caught_up.discard(node)

    def keep(self, learners: set[NodeId]) -> None:
        """Forgets all learners that are not among these."""
        self._began = {node: began for node, began in self._began.items() if node in learners}
        self._caught_up &= learners


class DiskLag:
    """Detects that the leader's own disk is behind the disks of the followers. Such a leader answers its clients late,
    so another node should lead.

    It measures how long it takes from the commit of an entry until the entry is on the leader's disk. The number of
    entries by which the disk is behind means nothing: under load, a majority of fast disks is always a little ahead of
    any single one (simulator, seed 130787013).
    """

    def __init__(self, raw: RawNode, succession: Succession, group: int = FIRST_GROUP) -> None:
        """`group`: the number of the group of brokers."""
        self._raw = raw
        self._succession = succession
        self._group = group
        self._awaited = -1
        """The index for which it waits: the commit index at `_since_ms`."""
        self._since_ms = 0

    def tick(self, now_ms: int) -> None:
        """Transfers leadership if a committed entry has not reached this leader's disk for DISK_LAG_MS."""
        raw = self._raw
        commit_index = raw.commit_index
        if raw.role is not Role.LEADER or raw.persisted_index >= self._awaited:
            self._awaited, self._since_ms = commit_index, now_ms
            return
        if now_ms - self._since_ms < DISK_LAG_MS:
            return
        self._since_ms = now_ms
        to = self._succession.choose(lambda peer: peer.match_index >= commit_index)
        if to != NOBODY:
            heir = node_object(self._group, to)
            logger.warning("this node's disk lags behind its followers' disks; %s should lead", heir)
            self._succession.transfer(to)
