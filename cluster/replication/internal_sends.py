"""Queues sends that the broker makes for itself. No client waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.flow.gate import ITSELF, GateRequest
from cluster.replication.acks.ack_levels import Ack
from cluster.replication.message_batch import BatchMessage, Effect, Send, TopicSlot, message_size

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from cluster.flow.gate import Gate
    from cluster.replication.message_head import DeliverySchedule
    from cluster.replication.outcome import Outcome, ReplyTo
    from cluster.replication.proposals import Proposals
    from cluster.replication.send_identity import ConnectionSession
    from statemachine.payload import RowKind


class NoClient:
    """A stand-in for the connection of a send that no client made. It discards answers."""

    def __init__(self, gate: Gate) -> None:
        self.closed = False
        self.in_flight = gate.holder("")
        self.session: ConnectionSession | None = None

    @property
    def owner(self) -> Hashable:
        return self

    def write(self, data: bytes) -> None:
        """Drops the answer, because there is no client that reads it."""


def submit_own(
    proposals: Proposals,
    client: ReplyTo,
    size: int,
    slot: TopicSlot,
    queue_id: int,
    kind: RowKind,
    done: Callable[[Outcome], None],
    *,
    batch: Sequence[BatchMessage] = (),
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_host: bytes = b"",
    reconsume_times: int = 0,
    body: bytes = b"",
    properties: bytes = b"",
    tag_hash: int = 0,
    unique_key: str = "",
    schedule: DeliverySchedule | None = None,
    failure: tuple[int, int] | None = None,
    effect: Effect | None = None,
    carried: int | None = None,
) -> None:
    """Queues a send of the broker's own. Its `size` bytes count against `client` until `done` is called with the
    outcome. The other arguments are fields of Send."""
    send = Send(
        connection=client,
        size=size,
        origin=None,
        oneway=True,
        slot=slot,
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
        body=body,
        properties=properties,
        tag_hash=tag_hash,
        unique_key=unique_key,
        kind=kind,
        producer_id=b"",
        sequence=0,
        low_sequence=0,
        batch=tuple(batch),
        received_ms=proposals.now_ms,
        ack=Ack.QUORUM_FSYNC,
        schedule=schedule,
        failure=failure,
        effect=effect,
        carried=carried,
        done=done,
    )
    send.hold = proposals.gate.hold(client.in_flight, size, ITSELF, GateRequest.OWN)
    proposals.submit_send(send)


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
    """Queues copies for one queue, which go into one entry together with `effect`. If `carried` names a row, the copies
    are the messages of that row, which are stored again (see Send). Returns an upper bound of their bytes."""
    size = sum([message_size(copy, slot) for copy in copies])
    submit_own(proposals, client, size, slot, queue_id, kind, done, batch=copies, effect=effect, carried=carried)
    return size
