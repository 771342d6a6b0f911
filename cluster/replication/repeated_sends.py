"""Handles sends that are repeated while their first arrival is undecided. Both share one message and one outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cluster.replication.pending_requests import PendingEntry, SendReplies, place_of

if TYPE_CHECKING:
    from cluster.replication.acks.early_answers import Twins
    from cluster.replication.message_batch import Send
    from cluster.replication.send_flow import SendFlow


class RepeatedSends:
    """Finds the first arrival of a repeated send that is queued or proposed, and lets the repetition share its
    outcome."""

    def __init__(
        self,
        pending: Mapping[int, PendingEntry],
        flow: SendFlow,
        twins: Twins,
        replies: SendReplies,
        note_level: Callable[[int], None],
    ) -> None:
        """`pending`: the proposed entries that are undecided. `note_level` is called with the acknowledgement level of
        a repetition, if that is not the default."""
        self._pending = pending
        self._queue, self._paced = flow.queue, flow.paced
        self._twins, self._replies, self._note_level = twins, replies, note_level

    def find(self, producer_id: bytes, sequence: int) -> tuple[PendingEntry, int] | Send | None:
        """Returns the queued or proposed send with this identity: (entry, position in it), or the queued send itself;
        None if there is none."""
        for entry in self._pending.values():
            if entry.sends and (at := place_of(entry, producer_id, sequence)) is not None:
                return entry, at
        return self._queue.find(producer_id, sequence) or self._paced.find(producer_id, sequence)

    def share(self, entry: PendingEntry, at: int, send: Send, *, room: bool) -> None:
        """Lets a repeated request share the outcome of its first arrival, at position `at` of a proposed entry. The
        repetition takes the place of the first arrival if that has been answered, if its connection has closed, or if
        there is no `room` for both. Otherwise both wait for an answer."""
        old = entry.sends[at]
        # If the first arrival has been answered (UNKNOWN, or early), the repetition takes its place.
        if at in entry.muted:
            entry.muted.remove(at)
        # Otherwise both stay if there is room: this node does not know on which connection the client waits.
        elif room and not old.connection.closed:
            self._twins.add(send)
            return
        else:
            self._give_way(old)
        # The repetition may name another queue. Its answer names the queue that has the message.
        send.slot, send.queue_id = old.slot, old.queue_id
        entry.sends[at] = send
        if send.ack:
            self._note_level(send.ack)
        if entry.answered:  # the repetition has a deadline of its own
            entry.answered = False
            entry.arrived_ms = send.received_ms
        old.hold.decided()

    def replace_queued(self, old: Send, send: Send, *, room: bool) -> None:
        """Lets a repeated request share the outcome of its first arrival, as `share` does; the first arrival is still
        queued."""
        if room and not old.connection.closed:
            self._twins.add(send)
            return
        self._give_way(old)
        if send.ack:
            self._note_level(send.ack)
        if not self._paced.replace(old, send):
            self._queue.replace(old, send)
        old.hold.decided()

    def _give_way(self, old: Send) -> None:
        """Ends the wait of a request that its repetition replaced: its client, if still connected, is answered with
        UNKNOWN."""
        if old.connection.closed:
            old.hold.answered()
        else:
            self._replies.unknown(old, "it came again, and there is no room to keep both until the log decides")
