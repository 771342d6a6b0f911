"""One member of the simulated group: a real core with a simulated disk and state machine. It carries out the duties of
`Ready`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from uuid import UUID

from jepsen_like.core_sim.disk import SimDisk
from jepsen_like.core_sim.list_state import ListState
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.invariants.raft_group import Before
from raftlog.core.raw_node import RawNode, Ready
from raftlog.core.state.config import RaftConfig
from raftlog.errors import InvariantViolationError
from raftlog.membership import Membership, decode
from raftlog.messages import InstallSnapshot, Message
from raftlog.types import NOBODY, Entry, LogTail, NodeId, Role, SoftState, Voter

_READYS_MAX = 5_000


class Surroundings(Protocol):
    """The interface from a member to the world around it, which moves messages, time and clients."""

    def send(self, machine: CoreMachine, message: Message) -> None:
        """Called when `machine` sends `message` to another node."""

    def wrote(self, machine: CoreMachine) -> None:
        """Called when `machine` has queued a write. The implementation starts a sync if the disk is idle."""

    def applied(self, machine: CoreMachine, entry: Entry, position: int) -> None:
        """Called when `entry` was applied. `position`: the place of its operation in the list; -1 if it has none."""

    def read_confirmed(self, machine: CoreMachine, context: int, index: int) -> None:
        """Called when the read with this `context` may be answered from a state that has applied `index`."""

    def role_changed(self, machine: CoreMachine, soft: SoftState) -> None:
        """Called when the role or the leader changed."""

    def members_changed(self, machine: CoreMachine, undone: bool) -> None:
        """Called when the members in force on `machine` have changed. `undone`: True if those of an earlier entry are
        in force again.
        """

    def offered(self, machine: CoreMachine, offer: InstallSnapshot) -> None:
        """Called when a leader offers `machine` a snapshot, because the leader's log no longer has the entries that
        `machine` needs.
        """


class CoreWatcher(Protocol):
    """An observer that examines a member's state after every step (`core_sim.monitor`)."""

    def started(self, machine: CoreMachine) -> None:
        """Called when `machine` has started."""

    def after(self, machine: CoreMachine) -> None:
        """Called after every event of `machine`."""

    def applied(self, machine: CoreMachine, entries: list[Entry]) -> None:
        """Called when `machine` applies these entries."""

    def leaves(self, machine: CoreMachine, message: Message) -> None:
        """Called before `message` leaves `machine`."""


def members_of(voters: Iterable[NodeId]) -> Membership:
    """Returns the members of a new group with these voters, as GENESIS names them. Each node's uuid is made from its
    id."""
    return Membership(UUID(int=1), tuple(Voter(node, UUID(int=node)) for node in voters))


class CoreMachine:
    """A member, running or not; its disk and state machine outlive its crashes."""

    __slots__ = (
        "backfilling",
        "before",
        "config",
        "disk",
        "halted",
        "id",
        "inbox",
        "left",
        "mark",
        "mark_members",
        "monitor",
        "paused",
        "raw",
        "starts",
        "state",
        "surroundings",
        "up",
    )

    raw: RawNode

    def __init__(
        self,
        config: RaftConfig,
        members: Membership,
        disk: SimDisk,
        monitor: CoreWatcher | None,
        surroundings: Surroundings,
    ) -> None:
        self.id = config.node_id
        self.config = config
        self.disk = disk
        self.state = ListState(members)
        self.monitor = monitor
        """The monitor that examines its state; None in black-box runs."""
        self.surroundings = surroundings
        self.up = False
        self.halted = False
        """True if an assertion of the member's own code failed and the member stopped, as a node would; only in
        black-box runs.
        """
        self.left = False
        """True if its operator stopped it for good, because it is no longer a member."""
        self.backfilling = False
        """True if it installed a snapshot and its log is still shorter than that of others: it may not lead."""
        self.paused = False
        self.inbox: list[Message] = []
        self.starts = 0
        self.mark_members = -1
        """Index of the MEMBERSHIP entry that was in force at the last Ready."""
        self.before: Before | None = None
        self.mark: tuple[int, NodeId, Role, LogTail, int] = (-1, NOBODY, Role.FOLLOWER, disk.tail, -1)

    # -- life

    def start(self, rng: random.Random) -> None:
        """Starts the member from its disk and its durable state. If an assertion of the core fails, the member halts in
        a black-box run; else raises PromiseBroken.
        """
        self.starts += 1
        self.mark_members = -1
        try:
            self.raw = RawNode(
                self.config,
                hard_state=self.disk.hard_state,
                log=self.disk,
                members=self.members_at_start(),
                applied_index=self.state.applied_index,
                rng=rng,
                vote_withheld_since=self.disk.withheld,
            )
        except InvariantViolationError as error:
            self._asserted(error)
            return
        self.up = True
        self.raw.hold_campaigns("backfill", self.backfilling)
        if self.monitor is not None:
            self.monitor.started(self)

    def members_at_start(self) -> list[Membership]:
        """Returns the members of the newest applied entry, and those of all MEMBERSHIP entries above it in the log."""
        return [self.state.members[-1], *map(decode, self.disk.changes_above(self.state.applied_index))]

    def install(self, source: CoreMachine) -> bool:
        """Takes over the checkpoint of `source` and the end of its log, unless its own log holds them by now. Returns
        True if it did."""
        index = source.state.durable_index
        if self.disk.holds(source.disk.tail_at(index)):
            return False
        self.disk.replace(source.disk, index)
        self.state.take_over(source.state)
        self.backfilling = True
        return True

    def backfilled(self) -> None:
        """Records that the member's log now reaches as far back as the others' logs, so that the member may lead."""
        self.backfilling = False
        if self.up:
            self.act(self.raw.hold_campaigns, "backfill", False)

    def crash(self, rng: random.Random) -> bool:
        """Crashes with a power failure. Returns True if a write in progress was lost."""
        self.up = False
        self.paused = False
        self.inbox.clear()
        lost = self.disk.crash(rng)
        self.state.crash(rng)
        return lost

    def _asserted(self, error: InvariantViolationError) -> None:
        if self.monitor is not None:
            raise PromiseBroken("core-assertion", str(error)) from error
        self.halted = True
        self.up = False
        self.disk.queued.clear()
        self.disk.writing.clear()

    # -- events

    def act(self, action: Callable[..., object], *arguments: Any) -> None:
        """Passes one input to the core and carries out everything that follows from it."""
        try:
            action(*arguments)
            self.drain()
            if self.raw.caught_up_with_leader:
                self.raw.release_vote()
                self.disk.withheld = None
        except InvariantViolationError as error:
            self._asserted(error)
            return
        if self.monitor is not None:
            self.monitor.after(self)

    def drain(self) -> None:
        """Processes Readys until there are none. Raises PromiseBroken "event-budget" if there are too many."""
        raw = self.raw
        for _ in range(_READYS_MAX):
            if not raw.has_ready():
                return
            self._take(raw.ready())
        raise PromiseBroken("event-budget", f"node {self.id}: one event, more than {_READYS_MAX} Readys")

    def _take(self, ready: Ready) -> None:
        surroundings = self.surroundings
        if ready.soft_state is not None:
            surroundings.role_changed(self, ready.soft_state)
        if ready.members_changed:
            surroundings.members_changed(self, self.raw.membership.index < self.mark_members)
            self.mark_members = self.raw.membership.index
        if ready.install is not None:
            surroundings.offered(self, ready.install)
        for message in ready.messages:
            self._leave(message)
        if ready.entries or ready.hard_state is not None or ready.messages_after_persist:
            self.disk.queued.append(ready)
            surroundings.wrote(self)
        for context, index in ready.read_states:
            surroundings.read_confirmed(self, context, index)
        if ready.committed_entries:
            self._apply(ready.committed_entries)

    def _apply(self, entries: list[Entry]) -> None:
        if self.monitor is not None:
            self.monitor.applied(self, entries)
        apply = self.state.apply
        applied = self.surroundings.applied
        for entry in entries:
            applied(self, entry, apply(entry))
        self.raw.applied(entries[-1].index)

    def _leave(self, message: Message) -> None:
        if self.monitor is not None:
            self.monitor.leaves(self, message)
        if message.to_id == self.id:
            self.raw.step(message)
        else:
            self.surroundings.send(self, message)

    def synced(self, *, last_only: bool) -> None:
        """Handles the end of the fdatasync in progress: acknowledges its writes to the core and releases their
        messages, in order. With `last_only`, acknowledges only the last write that has entries.
        """
        batch, self.disk.writing = self.disk.writing, []
        try:
            for at, ready in enumerate(batch):
                self.disk.put(ready)
                if ready.entries and not (last_only and any(later.entries for later in batch[at + 1 :])):
                    self.raw.persisted(ready.entries[-1].id)
                for message in ready.messages_after_persist:
                    self._leave(message)
            self.drain()
        except InvariantViolationError as error:
            self._asserted(error)
            return
        if self.monitor is not None:
            self.monitor.after(self)
