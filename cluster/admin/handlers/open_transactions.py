"""/v1/transactions: lists open transactions, in the order of their half messages in the log."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.route import Route
from cluster.broker.delivery_time import producer_group_of
from cluster.broker.reads.log_reads import read_intact
from cluster.broker.rights import READ, topic_need
from cluster.broker.services import Services
from cluster.requests.verb import Serves
from raftmq_wire.message_format import decode_message
from raftmq_wire.properties import parse_properties
from statemachine.delivery.half_messages import HalfMessage
from statemachine.rows.keys import U64_MAX

TRANSACTIONS_MAX = 100
"""The most transactions in one answer."""
READ_BYTES_MAX = 1 << 20
"""The most bytes of half messages that are read from the log for one answer, to find their ids and keys."""


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction and its half message. `group`, `message_id`, `keys` and `stored_ms` come from the message
    itself. They are null if it was not read: because it is damaged or too long, or the caller may not read its
    topic."""

    position: int
    """Position at which the half message was first stored. Its producer uses it as an id."""
    topic: str | None
    """The topic to which the message is sent on commit; null if the topic was deleted. The next check then ends the
    transaction."""
    queue_id: int
    size: int
    checks: int
    """Number of times that the producer should have been asked for the outcome."""
    next_check_ms: int
    """Log time of the next check, in ms since 1970."""
    group: str | None = None
    """The producer group that may commit the transaction or roll it back."""
    message_id: str | None = None
    keys: str | None = None
    stored_ms: int | None = None


class TransactionsView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/transactions`."""

    open: int
    bytes: int
    transactions: list[TransactionView]
    more: bool
    """True if there are more open transactions than the list shows."""


async def list_transactions(call: Call) -> TransactionsView:
    """Lists the first open transactions in the log, and how many there are in all."""
    state, port = call.port.state, call.port
    applied, pending = state.applied.index, state.halves.pending
    found = list(itertools.islice(state.halves.pinned(0, U64_MAX), TRANSACTIONS_MAX + 1))
    room = 0 if port.storage.consistency.fenced else READ_BYTES_MAX
    views = []
    for half in found[:TRANSACTIONS_MAX]:
        topic = state.topics_by_id.get(half.topic_id)
        view = TransactionView(
            position=half.position,
            topic=None if topic is None else topic.name,
            queue_id=half.queue_id,
            size=half.size,
            checks=half.checks,
            next_check_ms=half.check_ms,
        )
        readable = port.served.rights.is_allowed(
            call.caller.party, [topic_need("" if topic is None else topic.name, READ)]
        )
        if readable and half.size <= room:
            room -= half.size
            view = _read(port.services, half, view)
            await asyncio.sleep(0)
        views.append(view)
    return TransactionsView(
        node=port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        open=pending.count,
        bytes=pending.bytes,
        transactions=views,
        more=len(found) > len(views),
    )


def _read(services: Services, half: HalfMessage, view: TransactionView) -> TransactionView:
    pieces = read_intact(services, [half.stored], told=logging.DEBUG)
    if not pieces:
        return view
    message = decode_message(pieces[0])[0]
    properties = parse_properties(message.properties)
    return msgspec.structs.replace(
        view,
        group=producer_group_of(message.properties),
        message_id=properties.get("UNIQ_KEY"),
        keys=properties.get("KEYS"),
        stored_ms=message.store_ms,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/transactions",
        list_transactions,
        TransactionsView,
        route.page(TRANSACTIONS_MAX),
        route_rights.CLUSTER_GET._replace(stored="what a message says: Sub or Get on the topic of its row"),
        Serves.READ,
    ),
)
