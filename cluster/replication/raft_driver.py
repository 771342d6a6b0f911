"""Implements the driver, the only owner of the RawNode (the Raft core). Inputs collect in an inbox. One turn of the
driver processes them and carries out the Ready (the core's pending work).

Rules of this file:

* Nothing here awaits. Between looking at the RawNode and changing it, nothing else runs.
* Writes of a Ready go to the append lane. Messages that depend on them are sent when the lane reports, in the order of
  the lane's jobs. A lane that does small work on the loop reports before `submit` returns. The same turn then processes
  the report.
* Apply sees only entries that are committed *and* on this node's own disk (the core gives out no others).
* A peer counts as silent only after the sockets have been read: a turn processes its inbox before its ticks, and a late
  tick waits until the sockets have been read.
* A lane failure is final: the node stops taking part, and its peers continue without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from cluster.replication.append_lane import Persisted, PersistJob
from cluster.replication.apply_lane import COMMAND_WEIGHT, ENTRIES_MAX, Applied, pieces
from cluster.runtime.clock import Clock
from cluster.runtime.environment import APPLY_BYTES
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.lanes import LaneRunner
from cluster.runtime.listeners import Signal
from cluster.runtime.turns.stalled_loop import behind_sockets
from raftlog.core.raw_node import RawNode, Ready
from raftlog.errors import ImplausibleMessageError, NotLeaderError
from raftlog.messages import InstallSnapshot, Message
from raftlog.types import Entry, EntryType, NodeId, Role

logger = logging.getLogger(__name__)

APPLY_GATHER_MS = 10
APPLY_GATHER_MAX = 256
"""The number of gathered committed entries at which they are applied without waiting for more, also on a follower."""
ROUNDS_MAX = 4
"""The most rounds in one turn. Each round processes what the lanes reported in the round before, and may take as long
as a sync.
"""
LATE_TICKS = 1
"""The delay of a tick, in ticks, above which the event loop must have stood still."""


class MessageSender(Protocol):
    """Sends Raft messages to peers. Sending never blocks; a message may be lost."""

    def send(self, messages: Iterable[Message]) -> None:
        """Queues messages to peers. The messages of one call to one peer are sent with one write per connection."""


class Proposer(Protocol):
    """The driver's listener: it receives what the driver learns from the core."""

    def on_applied_run(self, applied: Applied) -> None:
        """Answers the requests that wait for entries of a run that was applied."""

    def on_role(self, raw: RawNode) -> None:
        """Handles a change of role, term or known leader."""

    def on_members(self, raw: RawNode) -> None:
        """Handles a change of the members in force."""

    def on_failure(self, error: BaseException) -> None:
        """Handles the reason for which the node must stop taking part. Called once."""


class DriverLanes(NamedTuple):
    """The lanes to which the driver gives work."""

    append: LaneRunner[PersistJob]
    apply: LaneRunner[list[Entry]]
    apply_bytes: int = APPLY_BYTES
    """The most bytes of entries in one piece of work of the apply lane (`apply_lane.pieces`)."""
    catch_up: Callable[[], object] = lambda: None
    """Applies at once what the apply lane holds back (`apply_lane.HeldRuns`); the inbox offers it to the services."""


class DriverInbox:
    """Collects the driver's inputs until its next turn, and schedules that turn. It is made before the driver, because
    the driver needs lanes, transport and services, and these fill the inbox. Event loop only."""

    __slots__ = (
        "_loop",
        "applied",
        "catch_up",
        "closed_peers",
        "messages",
        "persisted",
        "reads",
        "stopped",
        "turn",
        "turn_queued",
        "turning",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.messages: list[Message] = []
        self.persisted: list[Persisted] = []
        self.applied: list[Applied] = []
        self.closed_peers: list[NodeId] = []
        self.reads: list[Callable[[bool], None]] = []
        """Callbacks of reads that wait for a ReadIndex round that has not begun."""
        self.turn: Callable[[], object] = lambda: None
        """The driver's function that runs a turn; it does nothing until the driver has been made and has set it."""
        self.catch_up: Callable[[], object] = lambda: None
        """Applies at once what the apply lane holds back; the driver sets it. Whoever answers from the state calls it
        first: then the state has all that was acknowledged before."""
        self.turn_queued = False
        self.turning = False
        """True while a turn runs: new inputs are then processed before it ends, or another turn follows."""
        self.stopped = False

    def wake(self) -> None:
        """Schedules a turn; all calls before it runs share it."""
        if not self.turn_queued and not self.stopped:
            self.turn_queued = True
            self._loop.call_soon(self.turn)

    def receive(self, message: Message) -> None:
        """Adds a message from a peer."""
        self.messages.append(message)
        if not self.turn_queued:
            self.wake()

    def peer_closed(self, peer: NodeId) -> None:
        """Records that a peer closed its connection. If that peer leads, a pre-vote starts in the next turn or within
        two ticks."""
        self.closed_peers.append(peer)
        self.wake()

    def on_persisted(self, persisted: Persisted) -> None:
        """Adds the report of a drain of the append lane, perhaps within the turn that gave the lane the work."""
        self.persisted.append(persisted)
        if not (self.turn_queued or self.turning):
            self.wake()

    def on_applied(self, applied: Applied) -> None:
        """Adds the report of a drain of the apply lane, perhaps within the turn that gave the lane the work."""
        self.applied.append(applied)
        if not (self.turn_queued or self.turning):
            self.wake()

    def read_index(self, done: Callable[[bool], None]) -> None:
        """Starts a linearizable read: calls `done(True)` once the applied state may answer it, `done(False)` if that
        cannot be confirmed."""
        self.reads.append(done)
        if not self.turn_queued:
            self.wake()


class RaftDriver:
    """Runs the RawNode (the Raft core) on an event loop."""

    def __init__(
        self,
        raw: RawNode,
        node_id: NodeId,
        inbox: DriverInbox,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tick_ms: int,
        transport: MessageSender,
        proposer: Proposer,
        flush: Callable[[RawNode], object],
        lanes: DriverLanes,
        stages: StageTimes | None = None,
        on_install: Callable[[InstallSnapshot], object] = lambda offer: None,
    ) -> None:
        """`flush` proposes queued requests as far as the limits allow; called once or a few times per turn of a leader
        (see `proposals`). `on_install` is called with each offer of a snapshot, which means that the leader has
        trimmed what this log lacks."""
        self.raw = raw
        self._inbox = inbox
        self._node_id = node_id
        self._loop = loop
        self._clock = clock
        self._tick_ms = tick_ms
        self._transport = transport
        self._proposer = proposer
        self._flush = flush
        self._append, self._apply, self._catch_up = lanes.append, lanes.apply, lanes.catch_up
        self._apply_bytes, self._uncut_bytes = lanes.apply_bytes, lanes.apply_bytes // COMMAND_WEIGHT
        self._on_install = on_install
        self._ticks = 0
        self.stages = StageTimes() if stages is None else stages
        self._now_ms = 0.0
        """The time in milliseconds: that at the beginning of this turn, plus the time that lanes have taken on the loop
        since.
        """
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due_s = 0.0
        self._jobs_out = 0
        self._gathered: list[Entry] = []
        """Committed entries that have not been passed to the apply lane yet."""
        self._gather_timer: asyncio.TimerHandle | None = None
        self._reads: dict[int, list[Callable[[bool], None]]] = {}
        self._reads_confirmed: list[tuple[int, list[Callable[[bool], None]]]] = []
        self._read_context = 0
        self.turns = 0
        self.implausible: Signal[[NodeId, ImplausibleMessageError]] = Signal()
        """Emitted when a peer has sent an implausible message, which the core has ignored."""
        self.wake = inbox.wake
        inbox.turn, inbox.catch_up = self._turn, lanes.catch_up

    def start(self) -> None:
        """Starts the timer of ticks, and the first turn."""
        self._schedule_tick()
        self.wake()

    def stop(self) -> None:
        """Stops taking part in the cluster, and tells waiting reads that they are not confirmed. Reports of work that
        is still on the lanes are ignored."""
        self._inbox.stopped = True
        if self._timer:
            self._timer.cancel()
        self._fail_reads()

    def transfer(self, to: NodeId) -> None:
        """Starts a leadership transfer; its result shows in `leader_id`. Raises RaftLogError if it cannot start."""
        self.raw.transfer_leadership(to)
        self.wake()

    # --- the turn --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        inbox = self._inbox
        inbox.turn_queued = False
        # A failed node sends nothing more: its messages might depend on state that is not on disk.
        if inbox.stopped:
            return
        self.turns += 1
        inbox.turning = True
        raw = self.raw
        try:
            wall_ms, now_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
            self._now_ms = now_ms
            # The clock is read once per turn, so inputs of one turn have one time, in every run of a simulator's seed.
            raw.set_clock(wall_ms, now_ms)
            if inbox.persisted or inbox.applied:
                self._take_reports()
            while inbox.messages:
                messages, inbox.messages = inbox.messages, []
                for message in messages:
                    try:
                        raw.step(message)
                    # No message may stop a node. The core has changed nothing, and `implausible` reports the sender.
                    except ImplausibleMessageError as error:
                        self.implausible(message.from_id, error)
            if inbox.closed_peers:
                for peer in inbox.closed_peers:
                    raw.peer_closed(peer)
                inbox.closed_peers.clear()
            while self._ticks:
                self._ticks -= 1
                raw.tick()
            if inbox.reads:
                self._start_reads()
            if raw.raft.role is Role.LEADER:
                self._flush(raw)
            rounds = ROUNDS_MAX
            while raw.has_ready():
                self._handle(raw.ready())
                if inbox.persisted or inbox.applied:  # a lane that runs on the event loop is done already
                    rounds -= 1
                    # The rest waits for another turn, so that peers and timers are served, however quick the disk is.
                    if not rounds:
                        break
                    for persisted in inbox.persisted:
                        self._now_ms += 1000 * persisted.seconds
                    self._take_reports()
                    if raw.raft.role is Role.LEADER:
                        self._flush(raw)
        except Exception as error:  # noqa: BLE001 - a turn that broke off half-way left duties undone: stop, do not guess
            self.fail(error)
        inbox.turning = False
        if inbox.persisted or inbox.applied or self.raw.unsent:
            self.wake()  # the next turn also handles what is ready

    def fail(self, error: BaseException) -> None:
        """Stops the node's part in the cluster permanently, because of a storage error or an impossible state."""
        if self._inbox.stopped:
            return
        logger.critical("the node stops: %s", error, exc_info=error)
        self.stop()
        self._proposer.on_failure(error)

    def _take_reports(self) -> None:
        """Processes what the lanes have reported since the last look."""
        raw, inbox = self.raw, self._inbox
        if inbox.persisted:
            drains, inbox.persisted = inbox.persisted, []
            for persisted in drains:
                self._jobs_out -= persisted.jobs
                # `last` is None if there were no entries, or no space for them: no more entries are on disk than
                # before.
                if persisted.last is not None:
                    raw.persisted(persisted.last)
                    self.stages.synced.append((persisted.last.index, self._now_ms))
                if persisted.messages:
                    self._release(persisted.messages)
        if inbox.applied:
            runs, inbox.applied = inbox.applied, []
            for applied in runs:
                # The core is told first, because the proposer, which is told next, may ask for reads at this index.
                raw.applied(applied.entries[-1].index)
                self._proposer.on_applied_run(applied)
            self._serve_reads()

    def _release(self, messages: list[Message]) -> None:
        """Sends the messages that waited for the disk; a candidate's message to itself returns through the inbox."""
        mine = self._node_id
        for message in messages:
            if message.to_id == mine:
                self._inbox.messages += [m for m in messages if m.to_id == mine]
                messages = [m for m in messages if m.to_id != mine]
                break
        if messages:
            self._transport.send(messages)

    def _handle(self, ready: Ready) -> None:
        if ready.members_changed:
            self._proposer.on_members(self.raw)
        # These messages do not depend on the disk. Those that do are in messages_after_persist and wait for the lane.
        if ready.messages:
            self._transport.send(ready.messages)
        # Term, vote and entries must be on disk before any message that depends on them is sent.
        if ready.entries or ready.hard_state is not None:
            self._jobs_out += 1
            self._append.submit(PersistJob(ready.hard_state, ready.entries, ready.messages_after_persist))
        elif ready.messages_after_persist:
            # These messages may depend on entries of an earlier Ready that are still on the lane.
            if self._jobs_out:
                self._jobs_out += 1
                self._append.submit(PersistJob(None, (), ready.messages_after_persist))
            else:
                self._release(list(ready.messages_after_persist))
                if self._inbox.messages:
                    self.wake()
        if ready.committed_entries:
            self.stages.committed.append((ready.committed_entries[-1].index, self._now_ms))
            self._apply_soon(ready.committed_entries)
        if ready.read_states:
            for state in ready.read_states:
                callbacks = self._reads.pop(state.context, None)
                if callbacks:
                    self._reads_confirmed.append((state.index, callbacks))
            self._serve_reads()
        if ready.soft_state is not None:
            self.stages.clear()
            # A new leader must apply all that is committed before its no-op, and soon: its writes wait for that.
            if ready.soft_state.role is Role.LEADER:
                self._submit_gathered()
            else:
                self._fail_reads()
            self._proposer.on_role(self.raw)
        if ready.install is not None:
            self._on_install(ready.install)

    def _apply_soon(self, entries: Sequence[Entry]) -> None:
        """Gathers committed entries for the apply lane. A leader passes them on at once, because clients wait. Other
        nodes collect entries for APPLY_GATHER_MS: passing an entry to the lane costs more than applying it, and a
        follower that keeps up would spend a third of its time on thread switches. A no-op is applied at once: its
        leader compares sums with this node before it accepts writes."""
        self._gathered.extend(entries)
        urgent = self.raw.raft.role is Role.LEADER or entries[-1].type == EntryType.NOOP
        if urgent or len(self._gathered) >= APPLY_GATHER_MAX:
            self._submit_gathered()
        elif self._gather_timer is None:
            self._gather_timer = self._loop.call_later(APPLY_GATHER_MS / 1000, self._submit_gathered)

    def _submit_gathered(self) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        if self._gathered and not self._inbox.stopped:
            entries, self._gathered = self._gathered, []
            size = entries[-1].position - entries[0].position
            if size <= self._uncut_bytes and len(entries) <= ENTRIES_MAX:  # nearly always
                self._apply.submit(entries)
            else:
                for piece in pieces(entries, self._apply_bytes):
                    self._apply.submit(piece)
            if self._reads or self._reads_confirmed:  # a read waits until its index is applied
                self._catch_up()

    # --- reads -----------------------------------------------------------------------------------------------------

    def _start_reads(self) -> None:
        self._catch_up()
        callbacks, self._inbox.reads = self._inbox.reads, []
        self._read_context += 1
        try:
            self.raw.read_index(self._read_context)
        # This node is not the leader. The read is not confirmed, because the state may be out of date.
        except NotLeaderError:
            _tell(callbacks, False)
            return
        self._reads[self._read_context] = callbacks

    def _serve_reads(self) -> None:
        if not self._reads_confirmed:
            return
        applied = self.raw.applied_index
        waiting = self._reads_confirmed
        self._reads_confirmed = [item for item in waiting if item[0] > applied]
        for index, callbacks in waiting:
            # Confirmed leadership is not enough: the state must have reached the commit index of that moment.
            if index <= applied:
                _tell(callbacks, True)

    def _fail_reads(self) -> None:
        failed = [
            *self._reads.values(),
            *(callbacks for _, callbacks in self._reads_confirmed),
            self._inbox.reads,
        ]
        self._reads, self._reads_confirmed, self._inbox.reads = {}, [], []
        for callbacks in failed:
            _tell(callbacks, False)

    # --- time ------------------------------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        self._tick_due_s = self._loop.time() + self._tick_ms / 1000
        self._timer = self._loop.call_at(self._tick_due_s, self._on_tick)

    def _on_tick(self) -> None:
        """Runs one tick per firing of the timer, however late: a node that was paused must not conclude that its peers
        were silent. A late tick may be the last that an election or a step-down waits for, so the sockets are read
        first."""
        late_s = self._loop.time() - self._tick_due_s
        self._schedule_tick()
        if late_s * 1000 > LATE_TICKS * self._tick_ms:
            behind_sockets(self._loop, self._tick)
        else:
            self._tick()

    def _tick(self) -> None:
        self._ticks += 1
        self.wake()


def _tell(callbacks: list[Callable[[bool], None]], confirmed: bool) -> None:
    """Calls each read's callback with `confirmed`. A callback that fails must not affect the others or stop the
    node."""
    for done in callbacks:
        try:
            done(confirmed)
        except Exception:
            logger.exception("a reader failed")
