"""Queries of single messages (codes 12, 33): by key, and by the position that an offsetMsgId carries.

Any node answers from its applied state, which is committed for ever. Only what it does not find it asks the group about
(ReadIndex), so "there is none" is never said by a node that merely lags.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.broker.names import no_topic
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.fields import integer, text
from cluster.remoting.query_lookup import Found, KeyLookup, UnreadableError, message_at
from cluster.remoting.request import Handler, Request
from cluster.wire.codec import is_true
from cluster.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from cluster.remoting.request_figures import RequestFigures

logger = logging.getLogger(__name__)

MESSAGES_MAX = 64
"""RocketMQ: maxMsgsNumBatch."""
UNIQUE_MESSAGES_MAX = 32
"""RocketMQ: defaultQueryMaxNum, whatever a query for a UNIQ_KEY asks for."""
UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"


class Queries:
    """Handlers of queries."""

    def __init__(self, services: Services, metrics: RequestFigures | None = None) -> None:
        self._services = services
        self._metrics = metrics

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; none of these is forwarded."""
        return {
            RequestCode.QUERY_MESSAGE: refusing(self._by_key),
            RequestCode.VIEW_MESSAGE_BY_ID: refusing(self._by_position),
        }

    # --- by key ---

    def _by_key(self, request: Request) -> None:
        topic, key = text(request, "topic"), text(request, "key")
        unique = is_true(request.ext.get(UNIQUE_FIELD))
        count_max = UNIQUE_MESSAGES_MAX if unique else min(integer(request, "maxNum"), MESSAGES_MAX)
        begin_ms, end_ms = integer(request, "beginTimestamp"), integer(request, "endTimestamp")
        if count_max < 1:
            raise Refused(Reason.INVALID, f"maxNum is {count_max}, it must be at least 1")

        def look(confirmed: bool) -> None:
            config = self._services.state.topics.get(topic)
            if config is None:
                self._answer_none(request, "key", confirmed, no_topic(topic))
                return
            lookup = KeyLookup(
                self._services, config, key, unique=unique, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            )
            lookup.run(
                lambda found: self._reply_found(request, key, found, confirmed),
                lambda error: self._failed(request, error),
                lambda: request.connection.closed,
            )

        self._services.read_index(look)

    def _reply_found(self, request: Request, key: str, found: Found, confirmed: bool) -> None:
        if not found.messages:
            none = Refused(Reason.NOT_FOUND, f"no message with key {key} between these times")
            if found.unreadable is not None:
                none = self._unreadable(found.unreadable)
            elif found.stopped:
                remark = f"the search for {key} was stopped: too many other keys have its hash"
                none = Refused(Reason.ERROR, remark)
            self._answer_none(request, "key", confirmed, none)
            return
        mark = self._services.state.applied_mark
        ext = {
            "indexLastUpdateTimestamp": str(mark.timestamp_ms),
            "indexLastUpdatePhyoffset": str(mark.end_position),
        }
        self._note("key", "found")
        request.reply(ResponseCode.SUCCESS, None, ext, b"".join([stored.data for stored in found.messages]))

    # --- by position ---

    def _by_position(self, request: Request) -> None:
        position = integer(request, "offset")

        def look(confirmed: bool) -> None:
            try:
                stored = message_at(self._services, position)
            except UnreadableError as error:
                reason = f"can not find message by the offset, {position}: {error}"
            except Exception as error:  # noqa: BLE001 - also called when the group has answered, outside any request
                self._failed(request, error)
                return
            else:
                if stored is not None:
                    self._note("id", "found")
                    request.reply(ResponseCode.SUCCESS, body=stored.data)
                    return
                reason = f"can not find message by the offset, {position}: it is in no queue any more"
            self._answer_none(request, "id", confirmed, Refused(Reason.ERROR, reason))

        if position < self._services.state.applied_mark.end_position:
            look(True)  # applied once is applied for ever
        else:
            self._services.read_index(look)

    # --- replies ---

    def _answer_none(self, request: Request, kind: str, confirmed: bool, refusal: Refused) -> None:
        """Says that there is none, unless this node may just not know it."""
        if not confirmed:
            refusal = Refused(Reason.UNAVAILABLE, f"no leader can confirm it now: {refusal.remark}")
        self._note(kind, "none" if confirmed else "refused")
        refuse(request, refusal)

    def _unreadable(self, position: int) -> Refused:
        node = self._services.node_id
        logger.error("the message at position %d cannot be read intact on node %d", position, node)
        remark = f"a message at position {position} cannot be read intact on node {node}; another node may have it"
        return Refused(Reason.ERROR, remark)

    def _failed(self, request: Request, error: Exception) -> None:
        logger.error("a query (code %d) failed", request.code, exc_info=error)
        request.reply(ResponseCode.SYSTEM_ERROR, f"the query failed on node {self._services.node_id}: {error}")

    def _note(self, kind: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.queried(kind, outcome)


def handlers(services: Services, metrics: RequestFigures | None = None) -> dict[int, Handler]:
    """Request code -> handler of queries."""
    return Queries(services, metrics).handlers()
