"""Handles requests about stored messages: finds them by key (12) or by the position in an offsetMsgId (33), sends one
back (36), recalls one (370), and finds the entries of the Raft log that hold them (700005).

Each handler decodes the fields, calls the broker and answers with its outcome.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster.broker.name_rules import check_group_name
from cluster.broker.reads.message_lookup import KeyQuery
from cluster.broker.refusal import Reason, Refused
from cluster.broker.sends.redelivery import TIMES_MAX, SendBacks, SentBack
from cluster.broker.services import Services, node_told
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.remoting.request import Handlers, Request, integer, integer_in, party_of, text
from cluster.runtime.request_limits import HANDLE_LENGTH_MAX, KEY_LENGTH_MAX
from raftlog.errors import OutOfRangeError, RaftLogError
from raftmq_wire.codec import FLAG_ONEWAY, is_true
from raftmq_wire.codes import MORE_FIELD, RequestCode, ResponseCode
from raftmq_wire.message_format import decode_recall_handle

if TYPE_CHECKING:
    from cluster.broker.message_queries import MessageQueries
    from cluster.broker.reads.entry_reads import ReadEntries
    from cluster.broker.reads.message_lookup import QueryResult, StoredMessage
    from cluster.broker.timers.recalls import Recalls
    from cluster.remoting.forward.handover import Handover
    from cluster.requests.request_metrics import RequestMetrics


logger = logging.getLogger(__name__)

MESSAGES_MAX = 64
"""The most messages that a query returns (RocketMQ: maxMsgsNumBatch)."""
UNIQUE_MESSAGES_MAX = 32
"""The most messages that a query for a UNIQ_KEY returns, even if it asks for more (RocketMQ: defaultQueryMaxNum)."""
UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"
TAGS = "T"
"""The `indexType` of a query for a tag (RocketMQ 5.5: MessageConst.INDEX_TAG_TYPE)."""


class QueryRequests:
    """Handles queries for messages by key (12) and by position (33)."""

    def __init__(
        self,
        services: Services,
        queries: MessageQueries,
        metrics: RequestMetrics | None = None,
        handover: Handover | None = None,
    ) -> None:
        """`handover` forwards a query that found nothing to the leader, because only the leader may answer "not found".
        Without a `handover`, such a query is refused."""
        self._services = services
        self._queries = queries
        self._metrics = metrics
        self._handover = handover

    def codes(self) -> Handlers:
        """Returns request code -> its handler. Every node answers with the messages that it finds."""
        return {
            RequestCode.QUERY_MESSAGE: refusing(self._by_key),
            RequestCode.VIEW_MESSAGE_BY_ID: refusing(self._by_position),
        }

    def _by_key(self, request: Request) -> None:
        topic, key = text(request, "topic"), text(request, "key", KEY_LENGTH_MAX)
        if request.ext.get("indexType") == TAGS:
            why = "tags are not indexed: a query finds messages by key alone; a consumer can select by tag"
            raise Refused(Reason.INVALID, why)
        unique = is_true(request.ext.get(UNIQUE_FIELD))
        count_max = UNIQUE_MESSAGES_MAX if unique else min(integer(request, "maxNum"), MESSAGES_MAX)
        query = KeyQuery(key, unique, count_max, integer(request, "beginTimestamp"), integer(request, "endTimestamp"))
        if count_max < 1:
            raise Refused(Reason.INVALID, f"maxNum is {count_max}, it must be at least 1")

        def answer(found: QueryResult | Refused) -> None:
            if isinstance(found, Refused):
                self._refuse(request, "key", found)
                return
            self._note("key", "found")
            mark = self._services.state.applied_mark
            ext = {
                "indexLastUpdateTimestamp": str(mark.timestamp_ms),
                "indexLastUpdatePhyoffset": str(mark.end_position),
            }
            if found.may_miss:
                ext[MORE_FIELD] = "true"
            request.reply(ResponseCode.SUCCESS, None, ext, b"".join([stored.data for stored in found.messages]))

        self._queries.by_key(request.connection, topic, query, answer, lambda error: self._failed(request, error))

    def _by_position(self, request: Request) -> None:
        def answer(stored: StoredMessage | Refused) -> None:
            if isinstance(stored, Refused):
                self._refuse(request, "id", stored)
                return
            self._note("id", "found")
            request.reply(ResponseCode.SUCCESS, body=stored.data)

        position = integer(request, "offset")
        self._queries.by_position(party_of(request), position, answer, lambda error: self._failed(request, error))

    def _refuse(self, request: Request, kind: str, refused: Refused) -> None:
        unconfirmed = refused.reason is Reason.UNAVAILABLE
        somebody_waits = not (request.connection.closed or request.flag & FLAG_ONEWAY)
        if unconfirmed and somebody_waits and self._handover is not None and self._handover.to_leader(request):
            return
        self._note(kind, "refused" if unconfirmed else "none")
        refuse(request, refused)

    def _failed(self, request: Request, error: Exception) -> None:
        logger.error("a query (code %d) failed", request.code, exc_info=error)
        request.reply(ResponseCode.SYSTEM_ERROR, f"the query failed on {node_told(self._services)}: {error}")

    def _note(self, kind: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.queried(kind, outcome)


# CONSUMER_SEND_MSG_BACK (code 36): decodes the fields, calls the broker, answers with its outcome.
#
# Facts in docs/wire-protocol.md. The decisions are made in `cluster.broker.sends.redelivery`.

V3_4_9 = 121
"""Protocol version of the first RocketMQ whose consumers send their own maximum of redeliveries (MQVersion.V3_4_9)."""


class SendBackRequests:
    """Handles messages that a consumer sends back (36), on the leader."""

    def __init__(self, send_backs: SendBacks) -> None:
        self._send_backs = send_backs

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: refusing(self._send_back)}

    def _send_back(self, request: Request) -> None:
        wanted = parse(request)
        assert isinstance(request, RemotingRequest), request
        assert request.received is not None

        def done(refused: Refused | None) -> None:
            if refused is None:
                request.reply(ResponseCode.SUCCESS)
            else:
                refuse(request, refused)

        self._send_backs.send_back(request.connection, len(request.received.header_bytes), wanted, done)


def parse(request: Request) -> SentBack:
    """Decodes the fields of CONSUMER_SEND_MSG_BACK (36). Raises Refused (INVALID) if one is missing or has a wrong
    value."""
    group = text(request, "group")
    check_group_name(group)
    position = integer_in(request, "offset", 0, (1 << 63) - 1)
    delay_level = integer_in(request, "delayLevel", -TIMES_MAX - 1, TIMES_MAX, 0)
    maximum = integer_in(request, "maxReconsumeTimes", -TIMES_MAX - 1, TIMES_MAX, -1)
    named = maximum >= 0 and request.version >= V3_4_9
    origin = request.ext.get("originTopic", "")
    return SentBack(group, position, delay_level, maximum if named else None, origin, party_of(request))


# RECALL_MESSAGE (code 370): decodes the fields, calls the broker, answers with its outcome.
#
# Facts in docs/wire-protocol.md. The decisions are made in `cluster.broker.timers.recalls`.


class RecallRequests:
    """Handles recalls of delayed messages (370), on the leader."""

    def __init__(self, recalls: Recalls) -> None:
        self._recalls = recalls

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {RequestCode.RECALL_MESSAGE: refusing(self._recall)}

    def _recall(self, request: Request) -> None:
        topic = text(request, "topic")
        try:
            handle = decode_recall_handle(text(request, "recallHandle", HANDLE_LENGTH_MAX))
        except ValueError as error:
            raise Refused(Reason.ILLEGAL, str(error)) from None

        def done(refused: Refused | None) -> None:
            if refused is None:
                request.reply(ResponseCode.SUCCESS, None, {"msgId": handle.unique_key})
            else:
                refuse(request, refused)

        self._recalls.recall(party_of(request), topic, handle, done)


# Finds messages in the Raft log (700005, a code of RaftMQ): takes positions of messages, returns index and term of
# their entries.
#
# The format is drawn in docs/wire-protocol.md. Every node answers from its own log, using the positions of entries that
# it has in memory or in a segment's sidecar file; no message is read.

POSITIONS_MAX = 1024
"""The most positions in one request: as many as a pull has messages."""
_POSITION_SIZE = 8


class EntryRequests:
    """Handles 700005: finds the log entries of messages."""

    def __init__(self, services: Services, read: ReadEntries) -> None:
        self._services = services
        self._read = read

    def codes(self) -> Handlers:
        """Returns request code -> its handler; it is not forwarded."""
        return {RequestCode.ENTRIES_AT: refusing(self._answer)}

    def _answer(self, request: Request) -> None:
        positions = _positions(request.body)
        services = self._services
        if services.fenced():
            raise Refused(Reason.BUSY, f"{node_told(services)} serves nothing: its rows are known to be wrong")
        if positions and positions[-1] >= services.state.applied_mark.end_position:
            raise Refused(Reason.UNAVAILABLE, f"{node_told(services)} has not applied position {positions[-1]} yet")
        self._read(positions, partial(self._told, request))

    def _told(self, request: Request, found: bytes | RaftLogError) -> None:
        node = node_told(self._services)
        if isinstance(found, bytes):
            request.reply(ResponseCode.SUCCESS, body=found)
        elif isinstance(found, OutOfRangeError):
            remark = f"the log of {node} does not reach down to the message: {found}"
            refuse(request, Refused(Reason.NOT_FOUND, remark))
        else:
            refuse(request, Refused(Reason.BUSY, f"{node} cannot tell: {found}"))


def _positions(body: bytes) -> Sequence[int]:
    """Decodes the positions, each of 8 bytes. Raises Refused (INVALID) if they do not ascend, or if there are more than
    POSITIONS_MAX."""
    if len(body) % _POSITION_SIZE or len(body) > POSITIONS_MAX * _POSITION_SIZE:
        raise Refused(Reason.INVALID, f"the body has {len(body)} bytes; at most {POSITIONS_MAX} positions of 8 may be")
    positions: tuple[int, ...] = struct.unpack(f">{len(body) // _POSITION_SIZE}Q", body)
    if any(after < before for before, after in pairwise(positions)):
        raise Refused(Reason.INVALID, "the positions do not ascend")
    return positions
