"""Sends that the broker makes for itself: no client waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.replication.ack_levels import Ack
from cluster.replication.message_batch import BatchMessage, Effect, Send, TopicSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.replication.identity import ConnectionSession
    from cluster.replication.outcome import Outcome
    from cluster.replication.proposals import Proposals
    from statemachine.payload import RowKind


class NoClient:
    """In place of the connection of a send: it takes no answers."""

    def __init__(self) -> None:
        self.closed = False
        self.inflight_bytes = 0
        self.session: ConnectionSession | None = None

    def write(self, data: bytes) -> None:
        """Drops it: nobody reads it."""


def submit_copies(
    proposals: Proposals,
    client: NoClient,
    copies: Sequence[BatchMessage],
    slot: TopicSlot,
    queue_id: int,
    kind: RowKind,
    effect: Effect | None,
    done: Callable[[Outcome], None],
    carried: int | None = None,
) -> int:
    """Queues copies for one queue, which come into one entry together with `effect`; or the messages of the row that is
    `carried` (see Send). Returns their bytes, roughly."""
    size = sum([115 + len(copy.body) + len(copy.properties) + len(slot.field) for copy in copies])
    send = Send(
        connection=client,
        size=size,
        origin=None,
        oneway=True,
        slot=slot,
        queue_id=queue_id,
        flag=0,
        sys_flag=0,
        born_ms=0,
        born_host=b"",
        reconsume_times=0,
        body=b"",
        properties=b"",
        tag_hash=0,
        unique_key="",
        kind=kind,
        producer_id=b"",
        sequence=0,
        low_sequence=0,
        batch=tuple(copies),
        received_ms=proposals.now_ms,
        ack=Ack.QUORUM_FSYNC,
        effect=effect,
        carried=carried,
        done=done,
    )
    client.inflight_bytes += size
    proposals.bytes_inflight += size
    proposals.submit_send(send)
    return size
