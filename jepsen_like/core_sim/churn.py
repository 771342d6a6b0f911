"""The operator's actions during a run, while faults happen: members join and leave, logs are trimmed, snapshots
installed.

A node's own part in these actions is here too: it installs the snapshot that it is offered, fetches the older part of
its log afterwards, and stops for good when it is no longer a member.
"""

from __future__ import annotations

import random
from uuid import UUID

from jepsen_like.core_sim.faults import Faults
from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.world import CoreWorld
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
"""Probability that a leader that has proposed its own removal is cut off before any other node hears of the removal."""


class Churn:
    """Changes members and trims logs at random times until the faults stop; installs snapshots as long as they are
    offered."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.world: CoreWorld = faults.world
        self.rng = random.Random(f"{self.world.seed}/churn")
        self.corners = random.Random(f"{self.world.seed}/churn/corners")
        """A separate random source, so that its draws change no other draws of a run."""
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

    def _propose(self, leader: CoreMachine, new: Membership) -> None:
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

    def _next_members(self, leader: CoreMachine) -> Membership | None:
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
        """Returns a new node to add, or one that was removed and not stopped yet; None if there is none."""
        back = [voter for voter in members.removed if not self.world.machines[voter.id].left]
        if back and self.rng.random() < 0.3:
            self.world.seen["member comes back"] += 1
            return self.rng.choice(back)
        if self.joined == _JOINING_MAX:
            return None
        self.joined += 1
        node = self.world.join().id
        return Voter(node, UUID(int=node))

    def _changed(self, entry: Entry, members: Membership) -> None:
        """Handles a committed change of members: a node that left is stopped some time later, and may disturb the
        others until then.
        """
        self.world.seen[f"members: {members.reason}"] += 1
        for machine in (self.world.machines[node] for node in members.node_uuids):
            if machine.left:  # the node was stopped before the group learned that it would come back
                machine.left = False
                self.world.start(machine)
                if machine.backfilling:  # its last attempt came while it was stopped, and scheduled no further one
                    self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, machine)
        for voter in members.removed:
            if voter.id not in self.leaving:
                self.leaving.add(voter.id)
                self.world.at(self._soon(_LEAVES_WITHIN_TICKS), self._leaves, self.world.machines[voter.id])

    def _leaves(self, machine: CoreMachine) -> None:
        self.leaving.discard(machine.id)
        if machine.id not in self.world.newest.node_uuids:
            self.world.crash(machine)
            machine.left = True

    # -- logs

    def _trim(self) -> None:
        """Takes a checkpoint at a member and trims the log below it. The core learns of the trim at once, or sometimes
        later.
        """
        machine = self.faults.victim()
        state = machine.state
        state.durable_index = self.rng.randint(state.durable_index, state.applied_index)
        first_index = self.rng.randint(machine.disk.first_index, max(machine.disk.first_index, state.durable_index))
        if first_index > machine.disk.first_index:
            self.world.tell(f"trim {machine.id} to {first_index}")
            self.world.seen["log trimmed"] += 1
            machine.disk.trim(first_index)
            late = self._soon(5) if self.rng.random() < 0.3 else 0
            self.world.at(late, self._tell_trimmed, machine, machine.starts)

    def _tell_trimmed(self, machine: CoreMachine, starts: int) -> None:
        if machine.up and machine.starts == starts:
            machine.act(machine.raw.trimmed)

    def _offered(self, machine: CoreMachine, offer: InstallSnapshot) -> None:
        self.world.seen["snapshot offered"] += 1
        if machine.id not in self.offers:
            self.world.at(self._soon(_INSTALLS_WITHIN_TICKS), self._install, machine)
        self.offers[machine.id] = offer

    def _install(self, machine: CoreMachine) -> None:
        """Installs a snapshot from any peer that the member reaches and whose checkpoint is new enough; if there is
        none, the next offer tries again."""
        offer = self.offers.pop(machine.id)
        sources = [
            peer
            for peer in self.world.up()
            if peer is not machine
            and peer.state.durable_index >= offer.last.index
            and (peer.id, machine.id) not in self.world.network.cuts
        ]
        if not sources or not machine.up or machine.paused:
            return
        source = self.rng.choice(sources)
        self.world.tell(f"{machine.id} installs from {source.id}, index {source.state.durable_index}")
        self.world.crash(machine)
        self.world.seen["snapshot installed" if machine.install(source) else "snapshot not needed any more"] += 1
        self.world.start(machine)
        self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, machine)

    def _backfill(self, machine: CoreMachine) -> None:
        """Fetches the older part of the member's log, as far as others have it. After that the member may lead."""
        if machine.up and not machine.paused:
            longer = [peer.disk for peer in self.world.up() if peer.disk.first_index < machine.disk.first_index]
            if longer and machine.disk.prepend(self.rng.choice(longer)):
                self.world.seen["log backfilled"] += 1
                machine.act(machine.raw.trimmed)
            else:
                machine.backfilled()
        if machine.backfilling and not machine.left:
            self.world.at(self._soon(_BACKFILLS_WITHIN_TICKS), self._backfill, machine)
