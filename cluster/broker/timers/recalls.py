"""Handles recalls: a client cancels a scheduled message before it is due.

The leader reads the waiting message, and the log decides: `recall_timer` removes the message from its row. While that
command is in progress, the row is held, so that no copy of the message is made from an earlier read. A repeated recall
gets the same answer as the first one, because the message no longer waits, is still in the log, and is not due yet.
Source: RocketMQ's RecallMessageProcessor, which stores a message that deletes another. In RocketMQ a recall may come
too late although it was confirmed; here that cannot happen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.delivery_time import REAL_TOPIC, TIMER_TOPIC
from cluster.broker.reads.log_reads import read_intact
from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed, when_decided
from cluster.broker.rights import PUB, topic_need
from cluster.replication.message_head import UNIQUE_MARK, property_of
from cluster.replication.outcome import Outcome, ProposeResult
from raftlog.errors import OutOfRangeError, StorageError
from raftmq_wire.message_format import MessageFormatError, decode_message
from statemachine.delivery.staged_writes import attempt_of
from statemachine.delivery.timers import RecallTimer

if TYPE_CHECKING:
    from cluster.broker.rights import Party, Rights
    from cluster.broker.services import Services
    from cluster.broker.timers.timer_delivery import TimerDelivery
    from cluster.replication.proposals import Proposals
    from raftmq_wire.message_format import RecallHandle
    from statemachine.delivery.timers import TimerRow
    from statemachine.queue_reads import QueueItem

DECIDED_MS = 200
"""Milliseconds between two checks of an undecided recall. The row is held until the log has decided."""

_DUE = b"TIMER_OUT_MS\x01"
_FIELDS_MAX = 4096
"""The most bytes of a stored message that are neither body nor properties of the client: its head, and the properties
that the broker adds."""

RecallDone = Callable[[Refused | None], None]
"""Called once with the result of a recall: None when it is certain that the message will not be delivered, otherwise
the reason of the refusal."""


class Recalls:
    """Handles recalls of scheduled messages. Leader only; callers forward recalls to the leader."""

    def __init__(self, services: Services, proposals: Proposals, timers: TimerDelivery, rights: Rights) -> None:
        self._services = services
        self._rights = rights
        self._proposals = proposals
        self._timers = timers

    def recall(self, party: Party, topic: str, handle: RecallHandle, done: RecallDone) -> None:
        """Cancels the message that the handle names, for a party that may send to the topic of its row. Calls `done`
        with the result. Refusals: NO_TOPIC; ILLEGAL if the handle is not of this topic and cluster, names another
        message or one that the party may not recall, or comes too late; ERROR if the message cannot be read now;
        UNAVAILABLE if nothing was done; UNKNOWN if the outcome is unknown."""
        # The message may have been stored by a leader that has applied more of the log than this node.
        when_confirmed(self._services, partial(self._recall, party, topic, handle, done), done)

    def _recall(self, party: Party, topic: str, handle: RecallHandle, done: RecallDone) -> None:
        services = self._services
        state, config = services.state, services.config
        if not services.writes_open():
            raise Refused(Reason.UNAVAILABLE, "this node does not lead any more; nothing was done")
        if topic not in state.topics:
            raise Refused(Reason.NO_TOPIC, f"recall failed, the topic[{topic[:255]}] not exist")
        if topic != handle.topic:
            raise Refused(Reason.ILLEGAL, "recall failed, topic not match")
        if handle.broker_name != services.routes.group_of(topic).name:
            raise Refused(Reason.ILLEGAL, "recall failed, the handle is of another cluster")
        left_ms = handle.due_ms - services.log_time_ms()
        if left_ms <= 0:
            raise Refused(Reason.ILLEGAL, "recall failed, timestamp invalid: the message is due, it is delivered")
        found = state.timers.at(handle.position)
        # The send of the message was answered before its entry was applied.
        if found is None and self._proposals.is_undecided(handle.position):
            when_decided(services, partial(self._recall, party, topic, handle, done), done)
            return
        if found is None or not self._may_recall(party, found[0]):
            if left_ms > config.timer.max_delay_ms:
                raise Refused(Reason.ILLEGAL, "recall failed, timestamp invalid: no message may wait that long")
            if found is not None or not self._waited(topic, handle):
                raise Refused(Reason.ILLEGAL, "recall failed, no message waits where the handle says")
            done(None)  # it was recalled before: a message that is not due was not delivered
            return
        row, item = found
        if row.due_ms != handle.due_ms or self._unique_key(item) != handle.unique_key:
            raise Refused(Reason.ILLEGAL, "recall failed, another message is stored where the handle says")
        release = self._timers.hold(row.name)
        if release is None:
            raise Refused(Reason.ILLEGAL, "recall failed, timestamp invalid: the message is being delivered")
        command = RecallTimer(row.due_ms, row.position, handle.position)
        services.propose([command], partial(self._proposed, handle.position, release, done))

    def _may_recall(self, party: Party, row: TimerRow) -> bool:
        """Returns True if the party may send to the topic that the row names. A staged message cannot be recalled,
        because its write decides about it."""
        topic = self._services.state.topics_by_id.get(row.topic_id)
        if topic is None or attempt_of(row.due_ms) is not None:
            return False
        return self._rights.allows(party, [topic_need(topic.name, PUB)], "the recall of a message")

    def _waited(self, topic: str, handle: RecallHandle) -> bool:
        """Returns True if the log has a message at the handle's position that was scheduled for the handle's time."""
        size = int.from_bytes(self._read(handle.position, 4), "big")
        data = self._read(handle.position, size)
        try:
            message, _ = decode_message(data)
        except MessageFormatError:
            return False
        properties = message.properties
        named = {REAL_TOPIC: topic, UNIQUE_MARK: handle.unique_key, _DUE: str(handle.due_ms)}
        return (message.topic, message.position) == (TIMER_TOPIC, handle.position) and all(
            property_of(properties, name).decode("utf-8", "replace") == value for name, value in named.items()
        )

    def _read(self, position: int, size: int) -> bytes:
        """Returns `size` bytes of the log at the position; b"" if no message can be as long, or if this node's log does
        not have them. Raises Refused (ERROR) if they cannot be read now."""
        services = self._services
        limits = services.config.limits
        if size > limits.message_bytes_max + limits.properties_bytes_max + _FIELDS_MAX:
            return b""
        try:
            return services.read_log(position, size)
        except OutOfRangeError:
            return b""
        except StorageError:
            raise Refused(Reason.ERROR, "recall failed, the message cannot be read now; try again") from None

    def _unique_key(self, item: QueueItem) -> str:
        """Returns the unique key of the message at the item's place. It is compared with the handle's, because a send
        that was acknowledged early may have been lost, and another message may now be in its place. Raises Refused
        (ERROR) if the message cannot be read intact."""
        pieces = read_intact(self._services, [item])
        if not pieces:
            self._services.report_damage(item.position, item.size)
            raise Refused(Reason.ERROR, "recall failed, the message cannot be read now; try again")
        return property_of(decode_message(pieces[0])[0].properties, UNIQUE_MARK).decode("utf-8", "replace")

    def _proposed(self, position: int, release: Callable[[], None], done: RecallDone, result: ProposeResult) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._release_when_decided(position, release)
        else:
            release()
        if result.outcome is Outcome.OK:
            done(None)  # the result is the same if an earlier recall has removed the message
        else:
            fail, unknown = "no leader took the recall; nothing was done", "the recall is undecided"
            done(not_written(result.outcome, result.remark, fail=fail, unknown=unknown))

    def _release_when_decided(self, position: int, release: Callable[[], None]) -> None:
        services = self._services
        undecided = services.writes_open() and not self._proposals.idle
        if undecided and services.state.timers.at(position) is not None:
            services.call_later(DECIDED_MS, lambda: self._release_when_decided(position, release))
        else:
            release()
