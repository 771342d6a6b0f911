"""Answers sends before their entry is committed (levels `leader`, `quorum`), or only when it is on every disk (`all`).

An early answer changes only the time of the answer: the entry is committed, applied and visible when a majority has it
on disk, as usual. The content of the answer (queue offset, message id) was decided when the entry was proposed. The
answer is sent only after it was recorded in DATA/EARLY (`early_answer_file`), for at most `limits.batches_inflight_max`
entries at a time: that is the loss window. An entry that was answered early and then replaced by another is counted and
logged. A node that was killed before it could do so does it after its restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from cluster.config.local_layout import names_of
from cluster.replication.acks.ack_levels import Ack, default_level
from cluster.runtime.host.error_containment import contain
from cluster.runtime.listeners import Signal
from raftlog.types import FIRST_GROUP, Entry, EntryId, NodeId, Role

if TYPE_CHECKING:
    from cluster.config.service_sections import ModesSection
    from cluster.flow.gate import Gate
    from cluster.replication.acks.early_answer_file import Ledger
    from cluster.replication.message_batch import Built, Send
    from cluster.replication.metrics import ModeMetrics
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.pending_requests import PendingEntry, SendReplies
    from raftlog.core.raw_node import RawNode


logger = logging.getLogger(__name__)


class AnswerStage(IntEnum):
    """The condition that must hold before a send is answered early."""

    MEMORY = 0
    """No condition: the entry is in the leader's memory."""
    WRITTEN = 1
    """The leader has passed the entry to its operating system, so that it survives the end of the process."""
    SYNCED = 2
    """The entry is on the leader's disk."""
    QUORUM_WRITTEN = 3
    """A majority of nodes have passed the entry to their operating systems."""
    DEGRADED = 4
    """The entry is on the leader's disk, and the leader was in contact with a majority a moment ago."""


class _WaitingSends(NamedTuple):
    """Committed sends of level `all`, which wait until their entry is on every voter's disk."""

    index: int  # type: ignore[assignment]
    deadline_ms: int
    sends: list[Send]
    stored: Callable[[], None]


class EarlyAnswers:
    """The part of Proposals that answers sends at other levels than the default. Event loop only."""

    def __init__(
        self,
        modes: ModesSection,
        raw: RawNode,
        replies: SendReplies,
        gate: Gate,
        ledger: Ledger | None,
        metrics: ModeMetrics | None = None,
        group: int = FIRST_GROUP,
    ) -> None:
        """`ledger` records early answers; if it is None, no send is answered early. `group`: the number of this node's
        group of brokers."""
        self._in_contact: Callable[[], bool] | None = None
        """Returns True if this leader was in contact with a majority a moment ago; None unless sends of the default
        level are answered early, because the majority is slow."""
        self.reload(modes)
        self._replies = replies
        self._gate = gate
        self.ledger = ledger
        self._metrics = metrics
        self._raw = raw
        self._group = group
        self._open: dict[int, tuple[PendingEntry, dict[AnswerStage, list[int]]]] = {}
        """Proposed entries of this node, by index, that are undecided and some of whose sends have still to be answered
        early."""
        self.waiting: list[_WaitingSends] = []
        self._written: dict[NodeId, int] = {}
        """Node -> highest index that the node passed to its operating system in this term, this node included."""
        self._written_term = 0
        self.wants_own: Signal[[]] = Signal()
        """Emitted when an answer waits until this node has written an entry: the log reports its writes only on
        demand."""
        self.wants_quorum: Signal[[]] = Signal()
        """Emitted when an answer waits until a majority has written an entry: peers report their writes only on
        demand."""
        self.window_messages_max = 0
        """The highest number of messages so far that were answered early and undecided at one time."""

    def reload(self, modes: ModesSection) -> None:
        """Applies changed modes. Entries that are already proposed are answered at the level that they were proposed
        with."""
        self._pool = modes.transient_store_pool_enable
        self._async_flush = modes.flush_disk_type == "ASYNC_FLUSH"
        self._all_timeout_ms = modes.all_timeout_ms
        self._default = default_level(modes)

    @property
    def default(self) -> int:
        """The level of new sends whose topic and properties specify none."""
        return int(Ack.DEGRADED if self.degraded else self._default)

    @property
    def degraded(self) -> bool:
        """True while sends of the default level are answered early, because the majority is slow."""
        return self._in_contact is not None

    def degrade(self, in_contact: Callable[[], bool] | None) -> None:
        """Begins to answer sends of the default level early, as long as `in_contact` says that a majority was in
        contact with this leader a moment ago. None ends this: sends that are not answered yet wait for the commit."""
        self._in_contact = in_contact
        if in_contact is None:
            for index, (_, stages) in list(self._open.items()):
                stages.pop(AnswerStage.DEGRADED, None)
                if not stages:
                    del self._open[index]

    # --- an entry's way ----------------------------------------------------------------------------------------------

    def proposed(self, pending: PendingEntry, raw: RawNode) -> None:
        """Answers the sends of a newly proposed entry that need nothing more, and registers those that are to be
        answered early later. The entry is already in the leader's log."""
        stages: dict[AnswerStage, list[int]] = {}
        for at, send in enumerate(pending.sends):
            stage = self._stage(send.ack)
            if stage is not None:
                stages.setdefault(stage, []).append(at)
        # Without the ledger a loss could not be reported later, so nothing is answered early.
        if not stages or self.ledger is None or raw.role is not Role.LEADER:
            return
        now = stages.pop(AnswerStage.MEMORY, None)
        if now is not None:
            self._answer(pending, now)
        if not stages:
            return
        self._open[pending.id.index] = (pending, stages)
        if AnswerStage.WRITTEN in stages or AnswerStage.QUORUM_WRITTEN in stages:
            self.wants_own()
        if AnswerStage.QUORUM_WRITTEN in stages:
            self.wants_quorum()

    def advance(self, raw: RawNode) -> None:
        """Sends the answers whose condition has become true. Called once per turn of the driver."""
        if self._open and raw.role is Role.LEADER:
            for index, (pending, stages) in list(self._open.items()):
                for stage in [stage for stage in stages if self._reached(stage, pending.id, raw)]:
                    self._answer(pending, stages.pop(stage))
                if not stages:
                    del self._open[index]
        if self.waiting:
            self._look_at_all(raw)

    def written(self, node: NodeId, entry_id: EntryId) -> None:
        """Records that a node has passed everything up to this entry to its operating system."""
        # A report from another term may be about an entry that was replaced.
        if entry_id.term > self._written_term:
            self._written.clear()
            self._written_term = entry_id.term
        if entry_id.term == self._written_term:
            self._written[node] = max(entry_id.index, self._written.get(node, 0))

    def settled(self, pending: PendingEntry, now_ms: int) -> None:
        """Ends the early answers of an entry that is committed and applied. Its sends of level `all` are not answered
        yet: they wait for every voter's disk."""
        self._open.pop(pending.id.index, None)
        built = pending.built
        held = [at for at, send in enumerate(pending.sends) if send.ack == Ack.ALL and at not in pending.muted]
        if not held or built is None:
            return
        rest = set(range(len(pending.sends))) - set(held)
        pending.muted.update(held)
        sends = pending.sends
        self.wait_for_all(
            pending.id.index, now_ms, [sends[at] for at in held], lambda: self._replies.stored(sends, built, rest)
        )

    def wait_for_all(self, index: int, now_ms: int, sends: list[Send], stored: Callable[[], None]) -> None:
        """Calls `stored` when every voter has the entry `index` on disk; answers the sends with UNKNOWN if that takes
        too long."""
        self.waiting.append(_WaitingSends(index, now_ms + self._all_timeout_ms, sends, stored))
        self._look_at_all(self._raw)

    def answer_stored(self, send: Send, *found: int) -> None:
        """Answers a repeated send that is already stored (`found`: topic id, queue, offset, position).

        At level `all` the answer waits until every voter has all entries that are committed so far, which include the
        message. (The core may learn only in the next turn that this node has applied it.)
        """
        # The message is applied, so a majority has it on disk. The default level promises no more.
        if send.ack != Ack.ALL:
            self._replies.stored_before(send, *found)
            return

        def stored() -> None:
            send.hold.answered()
            self._replies.stored_before(send, *found)

        send.hold = self._gate.hold_answer(send.connection.in_flight, send.size)
        self.wait_for_all(self._raw.commit_index, send.received_ms, [send], stored)

    def lost(self, pending: PendingEntry) -> None:
        """Counts the early answers of an entry as lost, because another leader's entry replaced it."""
        self._open.pop(pending.id.index, None)
        self._lose(pending.id)

    def on_applied(self, entries: Sequence[Entry]) -> None:
        """Finds out from the applied entries which early answers of this node were kept or lost: those that it gave
        before a restart, or in an earlier term as leader."""
        undecided = self.ledger.undecided if self.ledger is not None else None
        if not undecided:
            return
        last = entries[-1].index
        terms = {entry.index: entry.term for entry in entries}
        for entry_id in [entry_id for entry_id in undecided if entry_id.index <= last]:
            self._decide(entry_id, terms.get(entry_id.index))

    def on_start(self, applied_index: int, term_at: Callable[[int], int | None]) -> None:
        """Finds out which early answers were kept or lost, for entries that were applied before this start. `term_at`
        returns the term at an index; None for trimmed entries, which were committed."""
        if self.ledger is None:
            return
        for entry_id in [entry_id for entry_id in self.ledger.undecided if entry_id.index <= applied_index]:
            self._decide(entry_id, term_at(entry_id.index))

    def expire(self, now_ms: int) -> None:
        """Answers sends of level `all` with UNKNOWN if not every voter's disk confirmed the entry in time."""
        if not self.waiting or self.waiting[0].deadline_ms > now_ms:
            return
        late = [wait for wait in self.waiting if wait.deadline_ms <= now_ms]
        self.waiting = [wait for wait in self.waiting if wait.deadline_ms > now_ms]
        for wait in late:
            missing = names_of(self._group, self._missing(wait.index))
            remark = (
                f"stored, and on the disks of a majority; not confirmed by every voter within {self._all_timeout_ms} ms"
                + (f" (missing: node {missing})" if missing else "")
            )
            for send in wait.sends:
                self._replies.unknown(send, remark)

    def held_of(self, paths: Collection[ReplyTo]) -> list[Send]:
        """Returns the sends that came through one of `paths` and wait for every voter's disk."""
        return [send for wait in self.waiting for send in wait.sends if send.connection in paths]

    # --- figures -----------------------------------------------------------------------------------------------------

    @property
    def window_messages(self) -> int:
        """The number of messages that are answered early and undecided: the most that can be lost if this node dies
        now."""
        return sum(self.ledger.undecided.values()) if self.ledger is not None else 0

    # --- inside ------------------------------------------------------------------------------------------------------

    def _stage(self, ack: int) -> AnswerStage | None:
        if ack == Ack.LEADER:
            if not self._async_flush:
                return AnswerStage.SYNCED
            return AnswerStage.MEMORY if self._pool else AnswerStage.WRITTEN
        if ack == Ack.DEGRADED:
            return AnswerStage.DEGRADED if self.degraded else None
        return AnswerStage.QUORUM_WRITTEN if ack == Ack.QUORUM else None

    def _reached(self, stage: AnswerStage, entry_id: EntryId, raw: RawNode) -> bool:
        # If the entry is of an older term, the next leader may replace it even if this disk has it.
        if entry_id.term != raw.term:
            return False
        index = entry_id.index
        if stage is AnswerStage.SYNCED:
            return raw.persisted_index >= index
        if stage is AnswerStage.DEGRADED:
            return raw.persisted_index >= index and self._in_contact is not None and self._in_contact()
        # If no node has reported a write in this term yet, all reports are older: what they name may be another entry.
        if self._written_term != raw.term:
            return False
        own = raw.status().node_id
        if stage is AnswerStage.WRITTEN:
            return self._written.get(own, 0) >= index
        # Counts only the present voters: an answer that counted a removed voter would promise too much.
        voters = raw.membership.voter_ids
        count = sum(self._written.get(voter, 0) >= index for voter in voters)
        return 2 * count > len(voters)

    def _answer(self, pending: PendingEntry, positions: Iterable[int]) -> None:
        built = pending.built
        due = [at for at in positions if at not in pending.muted]
        if not due or built is None or self.ledger is None:
            return
        messages = sum(len(pending.sends[at].batch) or 1 for at in due)
        # The answer is recorded before it is sent, so that a lost early answer is known as lost even after kill -9.
        if not self.ledger.note(pending.id, messages):
            return  # not recorded: the sends are answered when the entry is committed
        rest = set(range(len(pending.sends))) - set(due)
        try:
            self._replies.stored(pending.sends, built, rest)
        except Exception:
            logger.exception("answering the sends of entry %s failed; their clients will time out", pending.id)
        pending.muted.update(due)
        window = self.window_messages
        self.window_messages_max = max(self.window_messages_max, window)
        if self._metrics is not None:
            self._metrics.answered_early(messages, window)

    def _look_at_all(self, raw: RawNode) -> None:
        if raw.role is not Role.LEADER:
            return
        # The slowest of all present voters decides: at level `all`, the disk of any one voter is enough to keep the
        # message.
        lowest = min(self._matches(raw).values(), default=-1)
        done = [wait for wait in self.waiting if wait.index <= lowest]
        if done:
            self.waiting = [wait for wait in self.waiting if wait.index > lowest]
            for wait in done:
                try:
                    wait.stored()
                except Exception:
                    logger.exception("answering sends of entry %d failed; their clients will time out", wait.index)

    @staticmethod
    def _matches(raw: RawNode) -> dict[NodeId, int]:
        """Returns voter -> highest index known to be on the voter's disk."""
        status = raw.status()
        known = {peer.node_id: peer.match_index for peer in status.peers} | {status.node_id: status.persisted_index}
        return {voter: known.get(voter, -1) for voter in status.voters}

    def _missing(self, index: int) -> list[NodeId]:
        raw = self._raw
        if raw.role is not Role.LEADER:
            return []
        return [voter for voter, match in self._matches(raw).items() if match < index]

    def _decide(self, entry_id: EntryId, term: int | None) -> None:
        assert self.ledger is not None
        # A trimmed entry was committed. Only an entry of another term at the index proves a loss.
        if term is None or term == entry_id.term:
            self.ledger.kept(entry_id)
        else:
            self._lose(entry_id)

    def _lose(self, entry_id: EntryId) -> None:
        messages = self.ledger.lose(entry_id) if self.ledger is not None else 0
        if not messages:
            return
        logger.error(
            "%d messages of entry (term %d, index %d) were acknowledged early and are lost: another leader's entry "
            "has replaced it. Their level was weaker than quorum+fsync, by their own request or by configuration",
            messages,
            *entry_id,
        )
        if self._metrics is not None:
            self._metrics.lost_early.inc(messages)


class Twins:
    """Repeated sends that wait for the outcome of their first arrival. They are found by identity (producer id,
    sequence). They are never proposed, and each keeps its own `Hold` (the account of its bytes in flight)."""

    def __init__(self, early: EarlyAnswers) -> None:
        self._early = early
        self.waiting: dict[tuple[bytes, int], list[Send]] = {}
        """(producer id, sequence) -> the repeated sends that wait. Usually empty: check before a call."""

    def add(self, send: Send) -> None:
        """Adds a repeated send, which waits for the outcome of the send with the same identity."""
        self.waiting.setdefault((send.producer_id, send.sequence), []).append(send)

    def take(self, sends: Iterable[Send]) -> list[tuple[int, Send]]:
        """Removes the repeats of `sends`, which are decided, from the waiting ones, and returns them as (position in
        `sends`, repeated send)."""
        if not self.waiting:
            return []
        return [
            (at, twin)
            for at, send in enumerate(sends)
            if send.producer_id
            for twin in self.waiting.pop((send.producer_id, send.sequence), ())
        ]

    def beside(self, sends: list[Send]) -> list[Send]:
        """Returns `sends`, which were not proposed, together with their repeats, in the order in which all of them
        came. The repeats no longer wait here. In this order, later sends on the connection of a repeat stay behind it
        (found by the simulator, seed 948500088)."""
        repeats: dict[int, list[Send]] = {}
        for at, twin in self.take(sends):
            repeats.setdefault(at, []).append(twin)
        found = [each for at, send in enumerate(sends) for each in (send, *repeats.get(at, ()))]
        return sorted(found, key=lambda send: send.received_ms) if repeats else found

    def stored(self, sends: list[Send], built: Built) -> None:
        """Answers the repeats of sends that are committed and applied: the repeats count as stored too."""
        for at, twin in self.take(sends):
            twin.hold.ended()
            first, place = sends[at], built.positions[at]
            position = place if isinstance(place, int) else place[0]
            self._early.answer_stored(twin, first.slot.topic_id, first.queue_id, built.offsets[at], position)

    def tell(
        self, sends: list[Send], tell: Callable[[Send, str], None], remark: str, muted: Collection[int] = ()
    ) -> None:
        """Calls `tell(send, remark)` for each of `sends`, except those at the positions in `muted`, and for all their
        repeats. A failure to answer one does not affect the others."""
        for at, send in enumerate(sends):
            if at not in muted:
                contain("answering a send", tell, send, remark)
        for _, twin in self.take(sends):
            twin.hold.decided()
            contain("answering a send", tell, twin, remark)

    def behind(self, sends: Iterable[Send]) -> list[Send]:
        """Returns the repeats that wait for one of `sends`; the repeats go on waiting."""
        if not self.waiting:
            return []
        return [twin for send in sends for twin in self.waiting.get((send.producer_id, send.sequence), ())]

    def of(self, paths: Collection[ReplyTo]) -> list[Send]:
        """Returns the waiting repeats that came through one of `paths`."""
        return [twin for twins in self.waiting.values() for twin in twins if twin.connection in paths]
