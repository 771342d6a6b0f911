"""Makes log entries of checked requests, and answers the requests when their entry is decided.

Flow of a send: `submit_send` queues it -> `flush` (at least once per driver turn) builds a MESSAGES entry from queued
sends, up to the batch limits, and proposes it, at most `batches_inflight_max` at a time (group commit) -> the entry is
applied -> every send of it is answered.

Waiting requests are settled by (term, index), never by index alone: if an entry of another term is applied at the
index, this node's entry is proved lost (FAIL, code 14: safe to send again). An entry that is undecided at the deadline
is UNKNOWN: the client gets that answer, the entry stays here until the log decides, and a repeated request finds it
here.

A failure while an entry is built affects only the requests in it. Nothing has been proposed before `RawNode.propose`
returns, so cursors, barriers and queues are restored and the requests are answered. An exception of the core itself is
different: its state is then in doubt, and the driver stops the node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from cluster.flow.gate import GateRequest
from cluster.flow.hold import decide_each
from cluster.replication.acks.ack_levels import EARLY, Ack
from cluster.replication.acks.early_answer_file import Ledger
from cluster.replication.acks.early_answers import EarlyAnswers, Twins
from cluster.replication.apply_lane import Applied
from cluster.replication.command_queue import CommandQueue
from cluster.replication.message_batch import Built, Send, build
from cluster.replication.offset_order import OffsetOrder
from cluster.replication.outcome import CommitSession, Done, Outcome, ProposeResult
from cluster.replication.pending_requests import (
    PendingEntry,
    SendReplies,
    StrictNames,
    let_go_on,
    overdue,
    tell_calls,
)
from cluster.replication.repeated_sends import RepeatedSends
from cluster.replication.send_flow import SendFlow
from cluster.replication.slow_requests import ProposalFigures, ProposalMetrics
from cluster.replication.topic_slots import TopicSlots
from cluster.runtime.host.error_containment import contain, report_contained
from cluster.runtime.listeners import Signal
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.errors import FrameError, NotLeaderError, ProposalDroppedError
from raftlog.types import Entry, EntryType, Role
from raftlog.work import charge
from statemachine.broker_state import BrokerState
from statemachine.commands import Command, CommandResult

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.flow.gate import Gate
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.pending_requests import StrictName
    from cluster.runtime.context import NodeContext

logger = logging.getLogger(__name__)

CHECKED_PER_TURN = 4
"""The most entries that one turn proposes beyond the limit on entries in flight, because a change of a topic waits for
their sends."""
SMALL_BATCHES_INFLIGHT = 2
LARGE_BATCH_BYTES = 256 * 1024
"""The bytes of queued sends from which on more than two batches may be in flight."""
PLAIN_SENDS_MAX = 64
"""The most sends of an entry that can count as plain; larger entries are not examined."""
_SENDS_PER_UNIT = 8
"""The number of sends whose connection is looked at in a microsecond (a unit of `raftlog.work`)."""

BeforeOpen = Callable[[int, Callable[[], None]], None]


class Proposals:
    """Collects requests, proposes entries, and answers the requests. Event loop only; does no I/O."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        gate: Gate,
        *,
        store_host: bytes,
        replies: SendReplies,
        before_open: BeforeOpen = lambda _, open_writes: open_writes(),
        metrics: ProposalFigures | None = None,
        ledger: Ledger | None = None,
        sync_ms: Callable[[], float] = lambda: 0.0,
        awaits: Callable[[int, int], bool] = lambda topic_id, queue_id: False,
    ) -> None:
        """`store_host` is the advertised ip and port, packed. `sync_ms` returns the mean time of a sync on the disks of
        a majority, in milliseconds; 0.0 if unknown. `awaits(topic_id, queue_id)` returns True if a reader waits for the
        next message of the queue.

        `before_open` is called when this term's no-op is applied, with the index of the no-op and a function that opens
        writes. It may call that function later. Without a `ledger` no send is answered early.
        """
        config, raw, clock = context.config, context.raw, context.clock
        self._limits, self._deadline_ms, self._index = config.limits, config.send.deadline_ms, config.index.enabled
        self._state = state
        self._clock = clock
        self._store_host = store_host
        self._wake = context.wake
        self._replies = replies
        self._before_open = before_open
        self._awaits = awaits
        self.opened: Signal[[]] = Signal()
        """Emitted when this node accepts writes as leader: requests that waited for a leader may continue."""
        self.unproposed: Signal[[list[Send]]] = Signal()
        """Emitted with the sends that were queued when leadership was lost: they go to the new leader."""
        self.undecided: Signal[[PendingEntry, list[Send]]] = Signal()
        """Emitted before `unproposed`, for each undecided entry: its outcome depends on the next leader. The list has
        its waiting sends, including repeated ones."""
        self.figures = ProposalMetrics(metrics, context, state)
        self.flow = SendFlow(context, state, gate, replies, self._refuse, sync_ms, metrics)
        """The sends that wait before the queue, and those that are refused instead."""
        self._sends = self.flow.queue
        self._paced = self.flow.paced
        self._learnt = self.flow.learnt
        self._limit = self.flow.limit
        self._pending: dict[int, PendingEntry] = {}
        self.offsets = OffsetOrder(config.offsets.flush_ms, raw, state, self.submit_commands, lambda: self.now_ms)
        self._effects = self.offsets.effects
        self.early = EarlyAnswers(
            config.modes, raw, replies, gate, ledger, None if metrics is None else metrics.modes, config.cluster.group
        )
        self._twins = Twins(self.early)
        self._acks = 0
        """The acknowledgement levels of the sends that may wait for their answers, or-ed: not 0 if one has requested
        another level than the default."""
        self._acks_ms = 0
        """The time at which the last send with another level than the default arrived."""
        self._strict = StrictNames(context.loop.call_soon)
        self.topics = TopicSlots(state, self.early)
        """The topics as the send path needs them."""
        self.plain = self.topics.plain
        """`TopicSlots.plain`, which the kernel reads here."""
        self.commands = CommandQueue(
            context,
            state,
            self.topics,
            self.flow,
            self.offsets,
            submit=self.submit_commands,
            contained=lambda what, error: self.on_contained(what, error),
            now_ms=lambda: self.now_ms,
        )
        self.repeats = RepeatedSends(self._pending, self.flow, self._twins, replies, self._note_level)
        """Finds the first arrival of a repeated send, if it is queued or proposed."""
        self._open_term = 0
        self.open = False
        """True if this node leads and has applied the no-op of its term: its counters are exact, and it accepts
        writes."""
        self._raw = raw
        self.gate = gate
        """The gate of the node, which accounts for the bytes in flight of each send."""
        self.now_ms = clock.monotonic_ms()
        """The time at the last timer call, in milliseconds: precise enough for deadlines, without a clock call per
        message."""
        self._full = self.refusing = ""
        """`refusing`: the reason why sends are refused at present (the disk is full, the log is closed); "" if they are
        accepted."""
        self.on_contained: Callable[[str, Exception], object] = report_contained
        """Called with the action and the exception if a request fails that should have been refused earlier."""
        self.session_max: dict[bytes, int] = {}
        """Id of a session -> highest sequence queued or proposed in this term of leadership, or found in the log."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls the proposals."""
        return Part(
            name="proposals",
            tick=lambda _: self.expire(),
            applied=self.on_applied,
            role=self.on_role,
            reload=self.reload,
        )

    def reload(self, config: Config) -> None:
        """Applies a changed configuration. Proposed requests keep their deadline."""
        self._limits, self._deadline_ms, self._index = config.limits, config.send.deadline_ms, config.index.enabled
        self.commands.reload(config.limits)
        self.flow.reload(config)
        self._effects.reload(config.offsets.flush_ms)
        self.figures.reload(config)
        self.early.reload(config.modes)
        self.topics.forget()  # the slots still have the former acknowledgement level

    def degrade(self, in_contact: Callable[[], bool] | None) -> None:
        """Gives new sends of the default level the level DEGRADED (`Ack`) from now on, while `in_contact` is true; None
        ends this. Sends that already wait keep their level. After the end, all of them wait for the commit."""
        self.early.degrade(in_contact)
        if in_contact is None:
            self._acks &= ~Ack.DEGRADED
        self.topics.forget()

    # --- asking ------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if no request waits to be proposed, and no proposed entry is undecided."""
        return not (self._pending or self._sends.bytes or self.commands.waiting or len(self._paced))

    @property
    def end_position(self) -> int:
        """The position of the log at which the newest proposed entry ends."""
        return self._raw.tail.end_position

    def is_undecided(self, position: int) -> bool:
        """Returns True if this position of the log is in an entry that is proposed and not applied. Messages there may
        have been acknowledged early."""
        return self._state.applied_mark.end_position <= position < self._raw.tail.end_position

    def refuse(self, why: str) -> None:
        """Refuses sends with this reason until further notice; "" accepts them again, unless the log is closed."""
        self._full = why
        self._look_if_closed()

    def _look_if_closed(self) -> None:
        drain = self.topics.drain
        self.refusing = drain.remark() if drain.is_closed else self._full

    def submit_send(self, send: Send) -> None:
        """Queues a checked send. The caller has already set its `hold`."""
        if send.ack:
            self._note_level(send.ack)
        if send.slot.dedup == "strict" and send.effect is None:
            self._strict.add(send)
        if self._paced.active and send.done is None:
            send.hold.ended()
            if not self.flow.admit([send], self.now_ms):
                return
            send.hold = self.gate.hold(send.connection.in_flight, send.size, send.user, GateRequest.NEW)
        if self._learnt.active and send.done is None:
            self._learnt.came([send], self.now_ms)
        self._sends.add([send], send.size)
        self._wake()

    def _note_level(self, ack: int) -> None:
        self._acks |= ack
        self._acks_ms = self._clock.monotonic_ms()

    def submit_plain(self, path: ReplyTo, sends: list[Send]) -> None:
        """Takes and queues plain sends of one user, which the kernel found in one read of a connection; there was room
        for them (`Gate.room`)."""
        last = sends[-1]
        self.session_max[last.producer_id] = last.sequence
        if self._paced.active:
            sends = self.flow.admit(sends, self.now_ms)
        if sends:
            if self._learnt.active:
                self._learnt.came(sends, self.now_ms)
            self._sends.add(sends, self.gate.hold_each(path.in_flight, sends, last.user))
            self._wake()

    def submit_commands(
        self, commands: list[Command], done: Done, session: CommitSession | None = None, author: str = ""
    ) -> None:
        """Queues commands for one COMMAND entry, or CHANGE entry if there is an `author`. Encodes and measures them
        first, so that the caller learns at once what is wrong. Calls `done` with FAIL if this node does not lead."""
        if not self._open_term:
            done(ProposeResult(Outcome.FAIL, [], None, "this node does not lead"))
            return
        self.commands.submit(commands, done, session, author)

    def end_session(self, producer_id: bytes) -> None:
        """Adds the end of a producer session, whose connection closed without unanswered requests, to the next entry:
        the state may forget it."""
        if self._open_term:
            self._effects.session_ended(producer_id, self.now_ms)

    def strict_inflight(self, send: Send, hashes: Iterable[int]) -> StrictName | None:
        """Returns the name of a send to the same topic with the same body and one of these hashes (`Send.content`) that
        is undecided (for dedup=strict): it waits for its quota, is queued or proposed. None if there is none."""
        return self._strict.find(send, hashes)

    def wait_for_strict(self, first: StrictName, told: Callable[[bool], None]) -> None:
        """Calls `told` in a later turn: with True once the send named `first` is decided, or with False after
        `send.deadline_ms` if it is still undecided."""
        self._strict.wait(first, self.now_ms + self._deadline_ms, told)

    def unanswered_of(self, paths: Collection[ReplyTo]) -> list[Send]:
        """Returns the sends that came through one of `paths` and have had no answer of any kind.

        Examines all queued and proposed sends: the cost depends on their number, not on the number of paths.
        """
        found: list[Send] = []
        for entry in self._pending.values():
            charge(1 + len(entry.sends) // _SENDS_PER_UNIT)
            muted = entry.muted
            found += [send for at, send in enumerate(entry.sends) if send.connection in paths and at not in muted]
        charge(1 + (len(self._sends) + len(self._paced)) // _SENDS_PER_UNIT)
        found += [send for send in chain(self._sends, self._paced) if send.connection in paths]
        return found + self._twins.of(paths) + self.early.held_of(paths)

    def withdraw(self, which: Callable[[Send], bool], *, with_repeats: bool = False) -> list[Send]:
        """Removes and returns the clients' sends that are not proposed and for which `which` is true; the caller must
        answer them. A send with a waiting repetition stays, unless `with_repeats` is true, which removes both.

        Examines all waiting sends.
        """
        charge(1 + (len(self._sends) + len(self._paced)) // _SENDS_PER_UNIT)
        repeated = {} if with_repeats else self._twins.waiting

        def goes(send: Send) -> bool:
            return send.done is None and which(send) and (send.producer_id, send.sequence) not in repeated

        sends = self._sends.take_where(goes) + self._paced.take_where(goes)
        sends += [twin for _, twin in self._twins.take(sends)]
        decide_each(sends)
        self._strict.decided(sends)
        return sends

    # --- the driver's side -------------------------------------------------------------------------------------------

    def flush(self, raw: RawNode) -> None:
        """Proposes the queued requests as far as the limits on entries in flight allow."""
        if self._acks or self.early.waiting:
            self.early.advance(raw)
        raft = raw.raft
        # The core itself is asked: this node may have been deposed in this turn, of which it is notified only later.
        if not self._open_term or raft.term != self._open_term or raft.role is not Role.LEADER:
            return
        queue, commands = self._sends, self.commands
        try:
            if commands.waiting and self.topics.barriers and queue.bytes and not self._propose_checked(raw):
                self._wake()
                return
            while commands.waiting:
                self._propose_commands(raw)
            while queue.bytes and self._window_open():
                self._propose_sends(raw)
            if queue.bytes or len(self._pending) >= SMALL_BATCHES_INFLIGHT:
                self.flow.refuse_excess(self.now_ms)
            elif self._limit.watching and not self._pending:
                self._limit.emptied()
            if self._effects.waiting and self._effects.due(self.now_ms):
                self._propose_effects(raw)
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("proposing pauses: %s", error)

    def pending_at(self, index: int) -> PendingEntry | None:
        """Returns the entry at this index that this node proposed and that is undecided; None if there is none."""
        return self._pending.get(index)

    def is_plain(self, index: int) -> bool:
        """Returns True if the entry at this index, which this node proposed, has only sends of the default level, and
        at most PLAIN_SENDS_MAX. Then clients wait for nothing but its commit."""
        pending = self._pending.get(index)
        if pending is None or pending.built is None or pending.effects or len(pending.sends) > PLAIN_SENDS_MAX:
            return False
        for send in pending.sends:  # noqa: SIM110 - a generator costs a lone message more than the check
            if send.ack or send.effect is not None or send.done is not None:
                return False
        return True

    def on_committed(self, entries: list[Entry]) -> bool:
        """Answers plain sends of entries that are about to be applied: they are committed and on this node's disk.
        Returns True if all requests of these entries are answered and nobody waits for their messages: then they may
        be applied later (`cluster.replication.apply_lane.HeldRuns`). If it returns False, nothing else runs on the
        event loop before they are applied. Answers keep the order of the log: a send behind an unanswered request keeps
        waiting."""
        pending = self._pending
        if self._acks or not pending:
            return False
        first, last = entries[0].index, entries[-1].index
        ended = 0
        while pending:
            index, waiter = next(iter(pending.items()))
            # Answers follow the order of the log without a gap: a later request must not be answered before an earlier
            # one.
            if index > last or index < first or waiter.built is None or waiter.muted:
                break
            # If the entry is another leader's, the requests that wait here are lost. on_applied answers them.
            if waiter.id.term != entries[index - first].term:
                break
            try:
                told = self._replies.committed(waiter.sends, waiter.built)
            except Exception as error:  # noqa: BLE001 - it is stored; a client without an answer asks again
                told = len(waiter.sends)
                self.on_contained(f"answering the sends of entry {waiter.id}", error)
            waiter.muted.update(range(told))
            if told < len(waiter.sends) or not self._ends_at_commit(waiter):
                break
            del pending[index]
            self._settle(waiter, [])
            ended += 1
        if ended and (self._sends.bytes or self.commands.waiting):
            self._wake()  # there is room for another entry now, and a run that is held back makes no turn
        return ended == len(entries)

    def _ends_at_commit(self, waiter: PendingEntry) -> bool:
        """Returns True if nobody waits until an entry whose sends are answered is applied: no repetition of its sends,
        no request behind them, no send with the same unique row, no reader of its queues."""
        if waiter.behind is not None or self._twins.waiting or self._strict.names:
            return False
        for send in waiter.sends:  # noqa: SIM110 - a generator costs a lone message more than the check
            if self._awaits(send.slot.topic_id, send.queue_id):
                return False
        return True

    def on_applied(self, applied: Applied) -> None:
        """Answers the requests whose entries were applied. If the no-op of this node's own term is among them, its
        writes open."""
        raw = self._raw
        if not self._open_term and raw.role is Role.LEADER:
            for entry in applied.entries:
                if entry.type == EntryType.NOOP and entry.term == raw.term:
                    self._before_open(entry.index, partial(self._open_writes, raw, entry.term))
        self.early.on_applied(applied.entries)
        pending = self._pending
        if not pending:
            return
        for entry, results in zip(applied.entries, applied.run.results, strict=True):
            # Term and index decide together, because another leader's entry may have been applied at this index.
            waiter = pending.pop(entry.index, None)
            if waiter is not None and waiter.id.term == entry.term:
                self._settle(waiter, results)
            # If the applied entry has another term, this node's entry is lost. Its requests can be sent again safely.
            elif waiter is not None:
                self._lost(waiter)
        # Terms never fall along the log: an entry of an older term cannot follow the last one applied.
        term = applied.entries[-1].term
        for index in [index for index, waiter in pending.items() if waiter.id.term < term]:
            self._lost(pending.pop(index))

    def on_role(self, raw: RawNode) -> None:
        """Closes writes when this node no longer leads in the term in which they were opened."""
        if raw.role is not Role.LEADER or raw.term != self._open_term:
            self._close_writes()

    def _open_writes(self, raw: RawNode, term: int) -> None:
        """Opens writes, after the no-op of `term` is applied: counters start from applied state, without what an old
        term had in flight."""
        # `before_open` may have waited for other nodes, so the term for which it was called may be over.
        if self._open_term or raw.role is not Role.LEADER or raw.term != term:
            return
        self.topics.begin_term()
        self.offsets.open()
        self.session_max.clear()
        self._open_term, self.open = term, True
        self._look_if_closed()
        self.flow.forget()
        self.opened()

    def _close_writes(self) -> None:
        """Closes writes because leadership ended: unproposed requests are forwarded or fail; the log will decide the
        proposed ones."""
        if not self._open_term:
            return
        self._open_term, self.open = 0, False
        self.commands.drop("leadership was lost before this was proposed")
        # Senders of oneway commits expect no answer: commits that were not proposed are dropped.
        self.offsets.close()
        for entry in self._pending.values():
            # Proposed and undecided entries are neither forwarded nor failed. The log decides, because the next leader
            # may have them.
            if entry.sends and not entry.answered:
                waiting = [send for at, send in enumerate(entry.sends) if at not in entry.muted]
                self.undecided(entry, waiting + self._twins.behind(entry.sends))
        sends = self._twins.beside(self._sends.take_all() + self._paced.take_all())
        decide_each(sends)
        self._strict.decided(sends)
        for send in sends:
            if send.done is not None:  # the next leader finds in its own state that this copy is needed
                send.hold.answered()
                contain("ending a copy", send.done, Outcome.FAIL)
        sends = [send for send in sends if send.done is None]
        if sends:
            self.unproposed(sends)

    def expire(self) -> None:
        """Answers requests past their deadline with UNKNOWN, or FAIL if they were never proposed. Called on a timer."""
        now = self.now_ms = self._clock.monotonic_ms()
        self.topics.look(now)
        self.early.expire(now)
        if self._acks and not self.early.waiting and now - self._acks_ms > 2 * self._deadline_ms:
            self._acks = 0  # all sends with another level have been answered, at the latest with UNKNOWN
        self._strict.expire(now)
        if now >= self.figures.hot.ends_ms:
            self.figures.hot.end_window(now)
        for entry in self._pending.values():
            # An overdue request gets UNKNOWN and never FAIL: its entry stays pending and may be applied in a moment.
            if entry.arrived_ms + entry.patience_ms <= now and not entry.answered:
                self._give_up(entry, now)
        self.flow.look(now, leads=self._open_term != 0)
        # These requests were never proposed, so the outcome is FAIL: if they are sent again, they cannot be stored
        # twice.
        for send in self._sends.take_older(now - self._deadline_ms):
            send.hold.decided()
            self._refuse([send], self._replies.refused, "the log did not take it in time; nothing was stored")
        if self._effects.due(now):
            self._wake()

    def _refuse(self, sends: list[Send], tell: Callable[[Send, str], None], remark: str) -> None:
        """Answers sends that were not proposed and are no longer queued, by calling `tell` with `remark`."""
        self._strict.decided(sends)
        self._twins.tell(sends, tell, remark)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _propose_commands(self, raw: RawNode) -> None:
        proposed = self.commands.propose(raw, self._deadline_ms)
        if proposed is not None:
            pending, size_bytes = proposed
            self._pending[pending.id.index] = pending
            self.figures.proposed(pending, 0, size_bytes)

    def _propose_checked(self, raw: RawNode) -> bool:
        """Proposes the sends to topics that waiting commands change. A send that was checked against a topic must be in
        the log before the change of the topic, so that apply never rejects a row. Returns False if some sends are left
        for the next turn."""
        queue = self._sends
        for _ in range(CHECKED_PER_TURN):
            if not queue.is_hastened and not queue.hasten(self.topics.barriers):
                return True
            self._propose_sends(raw)
        return False

    def _window_open(self) -> bool:
        """Returns True if another batch may be proposed. Two batches overlap disk and network. More pay off only if
        each is large: an entry costs as much as a hundred messages, and a send that waits a moment shares its entry
        with others. A send has to wait for all batches in flight, even in a fair queue. So only two are allowed while
        some owner sends less than its share."""
        pending, queue, most = self._pending, self._sends, self._limits.batches_inflight_max
        few, count = min(most, SMALL_BATCHES_INFLIGHT), len(pending)
        if count >= few:
            # Commands do not wait for the window, so their entries must not close it for sends either: a flood of
            # commands would leave the sends one entry at a time, or none (simulator, seeds 942500110, 958500034).
            count = sum([1 for entry in pending.values() if entry.sends])
        if count < few:
            return True
        if count >= most:
            return False
        # A send with an early answer needs a fast answer, even if small batches cost more.
        return (queue.bytes >= LARGE_BATCH_BYTES and not queue.has_light) or queue.first().ack in EARLY

    def _propose_effects(self, raw: RawNode) -> None:
        effects = self._effects.take()
        if not effects:
            return
        try:
            entry = raw.propose(EntryType.COMMAND, effects, raw.log_time_ms())
        except (NotLeaderError, ProposalDroppedError):
            self._effects.put_back()
            raise
        self.offsets.carried(entry.index)

    def _propose_sends(self, raw: RawNode) -> None:
        sends = self._sends.cut()
        # Effects must not overtake waiting commands, which may be older than an offset that was committed later.
        effects = self._effects.take() if self._effects.waiting and not self.commands.waiting else b""
        store_ms = max(raw.log_time_ms(), raw.tail.timestamp_ms)
        built: Built | None = None
        try:
            built = build(
                sends,
                entry_position=raw.tail.end_position,
                store_ms=store_ms,
                store_host=self._store_host,
                effects=effects,
                index=self._index,
            )
            entry = raw.propose(EntryType.MESSAGES, built.payload, store_ms)
        except Exception as error:
            if built is not None:
                # Nothing was proposed. The assigned queue offsets are taken back, because the queue would otherwise
                # have a gap.
                built.rewind()
                if not isinstance(error, (NotLeaderError, ProposalDroppedError, FrameError)):
                    raise  # the core raised this, so its state is in doubt
            if effects:
                self._effects.put_back()
            if isinstance(error, (NotLeaderError, ProposalDroppedError)):
                # The sends go to the front of the queue in their order, because they were checked first.
                self._sends.put_back(sends)
                raise
            self._unbuildable_sends(sends, error)
            return
        first_ms = sends[0].received_ms if self._sends.is_ordered else min([send.received_ms for send in sends])
        pending = PendingEntry(entry.id, first_ms, self._deadline_ms)
        pending.sends = sends
        pending.built = built
        if effects:
            self.offsets.carried(entry.index)
            pending.effects = True
        self._pending[entry.index] = pending
        self.figures.proposed(pending, built.message_count, len(built.payload))
        if self._acks:
            self.early.proposed(pending, raw)

    def _unbuildable_sends(self, sends: list[Send], error: Exception) -> None:
        """Handles sends of which no entry could be built; nothing was proposed. If there are several, each gets an
        entry of its own, so that only the faulty send fails."""
        if len(sends) > 1:
            self._sends.put_back(sends, alone=True)
            return
        self.on_contained("building an entry of a send", error)
        sends[0].hold.decided()
        remark = f"no entry could be made of this message: {error}; nothing was stored"
        self._refuse(sends, self._replies.unbuildable, remark)

    def _settle(self, waiter: PendingEntry, results: list[CommandResult]) -> None:
        if waiter.calls:
            self.topics.barriers.lower_for(waiter.calls)
            self._look_if_closed()
            self.offsets.decided(waiter.calls)
            self._paced.look()  # so that a new quota holds before the client that has set it is answered
        took_s = self.figures.settled(waiter, Outcome.OK, len(waiter.sends), len(waiter.calls))
        if waiter.sends and waiter.built is not None:
            if self._limit.watching:
                before = self.gate.sends.bytes
                decide_each(waiter.sends)
                self._limit.decided(before - self.gate.sends.bytes, 1000 * took_s)
            else:
                decide_each(waiter.sends)
            if self._strict.names:
                self._strict.decided(waiter.sends)
            if self._acks:
                self.early.settled(waiter, self.now_ms)
            try:
                if len(waiter.muted) < len(waiter.sends):
                    self._replies.stored(waiter.sends, waiter.built, waiter.muted)
            except Exception as error:  # noqa: BLE001 - it is stored; a client without an answer asks again
                self.on_contained(f"answering the sends of entry {waiter.id}", error)
            if self._twins.waiting:
                self._twins.stored(waiter.sends, waiter.built)
            if self._paced.active and self._paced.waits_for_others:
                self.flow.pace(self.now_ms)
        at = 0
        for call in waiter.calls:
            count = len(call.commands)
            call.tell(ProposeResult(Outcome.OK, list(results[at : at + count]), waiter.id, ""))
            at += count
        if waiter.calls:
            self.figures.slow.told()
        if waiter.behind is not None:
            let_go_on(waiter)

    def _lost(self, waiter: PendingEntry) -> None:
        """Answers the requests of an entry with FAIL, because another leader's entry is at its index: it will never be
        applied."""
        self.early.lost(waiter)
        self.topics.barriers.lower_for(waiter.calls)
        self.offsets.decided(waiter.calls)
        self.figures.settled(waiter, Outcome.FAIL, len(waiter.sends), len(waiter.calls))
        decide_each(waiter.sends)
        self._strict.decided(waiter.sends)
        remark = "the entry was lost with its leader; nothing was stored"
        self._twins.tell(waiter.sends, self._replies.refused, remark, waiter.muted)
        tell_calls(waiter, waiter.calls, Outcome.FAIL, remark)
        self.figures.slow.told()
        let_go_on(waiter)

    def _give_up(self, entry: PendingEntry, now_ms: int) -> None:
        """Answers with UNKNOWN the requests of an undecided entry that are past their deadline."""
        late, calls, next_ms = overdue(entry, now_ms)
        if late or calls:
            self.figures.settled(entry, Outcome.UNKNOWN, len(late), len(calls))
        entry.answered = next_ms is None
        if next_ms is not None:
            entry.arrived_ms = next_ms
        term, index = entry.id
        remark = f"undecided after {entry.patience_ms} ms; it may still be stored (term {term}, index {index})"
        self._twins.tell([entry.sends[at] for at in late], self._replies.unknown, remark)
        entry.muted.update(late)
        tell_calls(entry, calls, Outcome.UNKNOWN, remark)
        self.figures.slow.told()
        if entry.answered:
            let_go_on(entry)
