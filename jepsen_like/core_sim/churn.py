"""The operator's actions during a run, while faults happen: members join and leave, logs are trimmed, snapshots
installed.

A node's own part in these actions is here too: it installs the snapshot that it is offered, fetches the older part of
its log afterwards, and stops for good when it is no longer a member.
"""

from __future__ import annotations

import random
from uuid import UUID

from jepsen_like.core_sim.faults import Faults
from jepsen_like.core_sim.member import Member
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.world import World
from raftlog.errors import MembershipError, NotLeaderError, ProposalDroppedError
from raftlog.membership import Address, Membership, promoted, with_learner, without
from raftlog.messages import InstallSnapshot
from raftlog.types import Entry, NodeId, Role, Voter

_JOINING_MAX = 4
"""The most nodes that join in a run, not counting those that come back."""
_LEARNERS_MAX = 2
_LEAVES_WITHIN_TICKS = 40
_INSTALLS_WITHIN_TICKS = 4
_BACKFILLS_WITHIN_TICKS = 6
_ALONE_WITH_ITS_REMOVAL = 0.5
"""Share of the leaders that are cut off, after removing themselves, before any other node hears of it."""


class Churn:
    """Changes members and trims logs at random times until the faults stop; installs snapshots as long as they are
    offered."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.world: World = faults.world
        self.rng = random.Random(f"{self.world.seed}/churn")
        self.corners = random.Random(f"{self.world.seed}/churn/corners")
        """A random source of its own, so that its draws change nothing else in a run."""
        knobs = self.world.knobs
        self.kinds = [self._change] * (3 * knobs.changes) + [self._trim] * (2 * knobs.trims)
        self.joined = 0
        self.offers: dict[NodeId, InstallSnapshot] = {}
        """Node that is to install a snapshot -> the last offer that it got."""
        self.leaving: set[NodeId] = set()
        self.world.on_offer = self._offered
        self.world.on_change = self._changed
        if self.kinds:
            self.world.at(self._gap(), self._next)

    def _gap(self) -> int:
        return int((0.3 + self.rng.random()) * self.world.knobs.churn_gap_us)

    def _soon(self, ticks: int) -> int:
        return int(self.rng.random() * ticks * TICK_US)

    def _next(self) -> None:
        if not self.faults.active:
            return
        if not self.faults.held:
            self.rng.choice(self.kinds)()
        self.world.at(self._gap(), self._next)

    # -- members

    def _change(self) -> None:
        """Proposes one change at a member that believes that it leads."""
        leaders = [m for m in self.world.up() if not m.paused and m.raw.role is Role.LEADER]
        if leaders:
            leader = self.rng.choice(leaders)
            new = self._next_members(leader)
            if new is not None:
                self.world.tell(f"at {leader.id}: {new.detail}")
                leader.act(self._propose, leader, new)

    def _propose(self, leader: Member, new: Membership) -> None:
        raw = leader.raw
        try:
            raw.propose_membership(new, raw.log_time_ms())
        except (MembershipError, ProposalDroppedError, NotLeaderError):
            self.world.seen["change refused"] += 1
            return
        if raw.raft.id not in new.voter_ids:
            self.world.seen["leader removes itself"] += 1
            if self.corners.random() < _ALONE_WITH_ITS_REMOVAL:
                self.faults.isolate(leader, self._soon(3 * raw.raft.config.election_ticks))

    def _next_members(self, leader: Member) -> Membership | None:
        members = leader.raw.membership
        if members.learners and self.rng.random() < 0.6:
            return promoted(members, self.rng.choice(members.learner_ids))
        may_leave = len(members.voters) > self.world.knobs.voters_min
        if may_leave and self.rng.random() < 0.5:
            itself = leader.id in members.voter_ids and self.rng.random() < 0.3
            return without(members, leader.id if itself else self.rng.choice(members.voter_ids))
        if len(members.learners) >= _LEARNERS_MAX:
            return without(members, self.rng.choice(members.learner_ids))
        voter = self._joining(members)
        return with_learner(members, voter, Address(voter.id, "host", 1)) if voter else None

    def _joining(self, members: Membership) -> Voter | None:
        """Returns a new node to add, or one that left and was not stopped yet; None if there is none."""
        back = [voter for voter in members.removed if not self.world.members[voter.id].left]
        if back and self.rng.random() < 0.3:
            self.world.seen["member comes back"] += 1
            return self.rng.choice(back)
        if self.joined == _JOINING_MAX:
            return None
        self.joined += 1
        node = self.world.join().id
        return Voter(node, UUID(int=node))

    def _changed(self, entry: Entry, members: Membership) -> None:
        """Called when a change is committed: a node that left is stopped some time later, and disturbs the others until
        then."""
        self.world.seen[f"members: {members.reason}"] += 1
        for member in (self.world.members[node] for node in members.node_uuids):
            if member.left:  # it was stopped before it was known to come back
                member.left = False
                self.world.start(member)
                if member.backfilling:  # its last try met a stopped node, and asked for no other
                    self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, member)
        for voter in members.removed:
            if voter.id not in self.leaving:
                self.leaving.add(voter.id)
                self.world.at(self._soon(_LEAVES_WITHIN_TICKS), self._leaves, self.world.members[voter.id])

    def _leaves(self, member: Member) -> None:
        self.leaving.discard(member.id)
        if member.id not in self.world.newest.node_uuids:
            self.world.crash(member)
            member.left = True

    # -- logs

    def _trim(self) -> None:
        """Takes a checkpoint at a member and trims the log below it. The core is told at once, or sometimes late."""
        member = self.faults.victim()
        machine = member.machine
        machine.durable_index = self.rng.randint(machine.durable_index, machine.applied_index)
        first_index = self.rng.randint(member.disk.first_index, max(member.disk.first_index, machine.durable_index))
        if first_index > member.disk.first_index:
            self.world.tell(f"trim {member.id} to {first_index}")
            self.world.seen["log trimmed"] += 1
            member.disk.trim(first_index)
            late = self._soon(5) if self.rng.random() < 0.3 else 0
            self.world.at(late, self._tell_trimmed, member, member.starts)

    def _tell_trimmed(self, member: Member, starts: int) -> None:
        if member.up and member.starts == starts:
            member.act(member.raw.trimmed)

    def _offered(self, member: Member, offer: InstallSnapshot) -> None:
        self.world.seen["snapshot offered"] += 1
        if member.id not in self.offers:
            self.world.at(self._soon(_INSTALLS_WITHIN_TICKS), self._install, member)
        self.offers[member.id] = offer

    def _install(self, member: Member) -> None:
        """Installs a snapshot from any peer that the member reaches and whose checkpoint is new enough; if there is
        none, the next offer tries again."""
        offer = self.offers.pop(member.id)
        sources = [
            peer
            for peer in self.world.up()
            if peer is not member
            and peer.machine.durable_index >= offer.last.index
            and (peer.id, member.id) not in self.world.network.cuts
        ]
        if not sources or not member.up or member.paused:
            return
        source = self.rng.choice(sources)
        self.world.tell(f"{member.id} installs from {source.id}, index {source.machine.durable_index}")
        self.world.crash(member)
        self.world.seen["snapshot installed" if member.install(source) else "snapshot not needed any more"] += 1
        self.world.start(member)
        self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, member)

    def _backfill(self, member: Member) -> None:
        """Fetches the older part of the log, as far as others have it; then the member may lead."""
        if member.up and not member.paused:
            longer = [peer.disk for peer in self.world.up() if peer.disk.first_index < member.disk.first_index]
            if longer and member.disk.prepend(self.rng.choice(longer)):
                self.world.seen["log backfilled"] += 1
                member.act(member.raw.trimmed)
            else:
                member.backfilled()
        if member.backfilling and not member.left:
            self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, member)
