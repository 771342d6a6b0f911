"""Runs checks after every event: the cheap ones each time, and all of `jepsen_like.invariants.raft_group` every 50
events.

The cheap checks compare what changed: term, vote, role, tail, commit index. Promises are checked when they are sent: a
vote or an acknowledgement may leave only when the member's own disk holds what it promises.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jepsen_like.core_sim.violation import PromiseBroken, from_invariant
from jepsen_like.invariants.raft_group import Before, GroupInvariants, check_state
from raftlog.errors import InvariantViolationError
from raftlog.messages import AppendEntriesReply, Message, RequestVote, RequestVoteReply, TimeoutNow
from raftlog.types import NOBODY, Entry, NodeId, Role

if TYPE_CHECKING:
    from jepsen_like.core_sim.disk import SimDisk
    from jepsen_like.core_sim.machine import CoreMachine

FULL_EVERY = 50
LOG_TIME_SLACK_MS = 1_000


class CoreMonitor:
    """Checks one group through crashes and restarts."""

    def __init__(self, disks: dict[NodeId, SimDisk], seen: Counter[str]) -> None:
        self.group = GroupInvariants()
        self.disks = disks
        self.seen = seen
        self.sane_clock_ms = 1 << 60
        """The highest time of the clocks of a majority, set by the code that moves time. Only clocks of a minority may
        be ahead of it."""
        self._events = 0

    def started(self, machine: CoreMachine) -> None:
        """Records that `machine` has started. The values that must not go back (term, vote, tail) are now those of its
        disk.
        """
        machine.before = None
        machine.mark = (-1, NOBODY, Role.FOLLOWER, machine.raw.raft.log.tail, -1)
        self.after(machine)

    def after(self, machine: CoreMachine) -> None:
        """Runs the cheap checks after an event of `machine`."""
        raft = machine.raw.raft
        log = raft.log
        mark = (raft.term, raft.vote, raft.role, log.tail, log.commit_index)
        if mark != machine.mark:
            self._moved(machine, mark)

    def _moved(self, machine: CoreMachine, mark: tuple[int, NodeId, Role, object, int]) -> None:
        term, vote, role, tail, commit = machine.mark
        raft = machine.raw.raft
        machine.mark = (raft.term, raft.vote, raft.role, raft.log.tail, raft.log.commit_index)
        if raft.term < term:
            raise PromiseBroken("term-falls", f"node {raft.id}: from {term} to {raft.term}")
        if raft.log.commit_index < commit:
            raise PromiseBroken("commit-falls", f"node {raft.id}: from {commit} to {raft.log.commit_index}")
        if raft.term == term:
            if vote not in (NOBODY, raft.vote):
                raise PromiseBroken("one-vote", f"node {raft.id} voted for {vote}, then {raft.vote} in term {term}")
            cut = tail.index >= raft.log.first_index and not raft.log.matches(tail.id)
            if role is Role.LEADER and raft.role is Role.LEADER and cut:
                raise PromiseBroken("leader-append-only", f"leader {raft.id} lost {tail.id} in term {term}")
        if tail.index > raft.log.tail.index or (tail.index >= raft.log.first_index and not raft.log.matches(tail.id)):
            self.seen["suffix truncated"] += 1
        try:
            self.group.observe(raft, self.disks)
        except InvariantViolationError as error:
            raise from_invariant(error, "group") from error

    def full(self, members: list[CoreMachine]) -> None:
        """Checks every invariant of every member that is up."""
        try:
            for machine in members:
                if machine.up:
                    raft = machine.raw.raft
                    check_state(raft)
                    if machine.before is not None:
                        machine.before.check(raft)
                    machine.before = Before.of(raft)
                    self.group.observe(raft, self.disks)
            self.group.check_elections([machine.raw.raft for machine in members if machine.up])
        except InvariantViolationError as error:
            raise from_invariant(error, "member-state") from error

    def applied(self, machine: CoreMachine, entries: list[Entry]) -> None:
        """Checks the `entries` that are about to be applied on `machine`."""
        self.after(machine)
        if entries[0].index != machine.state.applied_index + 1:
            raise PromiseBroken(
                "apply-order",
                f"node {machine.id} applies {entries[0].index} after {machine.state.applied_index}",
            )
        last = entries[-1]
        disk = machine.disk
        if last.index > disk.tail.index or disk.entry(last.index).header_crc != last.header_crc:
            raise PromiseBroken(
                "apply-durable", f"node {machine.id} applies {last.id}, its disk ends at {disk.tail.id}"
            )
        if last.timestamp_ms > self.sane_clock_ms + LOG_TIME_SLACK_MS:
            raise PromiseBroken(
                "log-time", f"{last.id} is stamped {last.timestamp_ms}, clocks say {self.sane_clock_ms}"
            )
        try:
            self.group.applied(machine.raw.raft, entries)
        except InvariantViolationError as error:
            raise from_invariant(error, "group") from error

    def leaves(self, machine: CoreMachine, message: Message) -> None:
        """Checks a message that `machine` is about to send. The vote or entries that it promises must be on the disk by
        now. A leader may send TimeoutNow only to a member that has all of its log.
        """
        kind = type(message)
        if kind is AppendEntriesReply:
            if not message.rejected:  # type: ignore[union-attr]
                self._ack_leaves(machine, message)  # type: ignore[arg-type]
        elif kind is RequestVoteReply:
            if message.granted and not message.pre_vote:  # type: ignore[union-attr]
                self._vote_leaves(machine, message, message.to_id)
        elif kind is RequestVote:
            if not message.pre_vote:  # type: ignore[union-attr]
                self._vote_leaves(machine, message, message.from_id)
        elif kind is TimeoutNow:
            self._handover_leaves(machine, message)

    def _ack_leaves(self, machine: CoreMachine, message: AppendEntriesReply) -> None:
        disk = machine.disk
        if disk.tail.index < message.match_index or disk.hard_state.term < message.term:
            raise PromiseBroken(
                "promise-durable",
                f"node {machine.id} acknowledges {message.match_index} in term {message.term}, "
                f"its disk ends at {disk.tail.id} in term {disk.hard_state.term}",
            )

    def _vote_leaves(self, machine: CoreMachine, message: Message, candidate: NodeId) -> None:
        hard = machine.disk.hard_state
        if hard.term < message.term or (hard.term == message.term and hard.vote != candidate):
            raise PromiseBroken(
                "promise-durable",
                f"node {machine.id} sends {type(message).__name__} for {candidate} in term {message.term}, its disk "
                f"says vote {hard.vote} in term {hard.term}",
            )

    def _handover_leaves(self, machine: CoreMachine, message: Message) -> None:
        raft = machine.raw.raft
        disk = self.disks[message.to_id]
        if raft.role is Role.LEADER and disk.tail.id < raft.log.tail.id:
            raise PromiseBroken(
                "handover",
                f"leader {machine.id} tells node {message.to_id} to campaign, whose disk ends at {disk.tail.id}, "
                f"not {raft.log.tail.id}",
            )
