"""Queries of single messages (codes 12, 33): by key, and by the position that an offsetMsgId carries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.broker.message_lookup import KeyQuery
from cluster.broker.message_queries import MessageQueries
from cluster.broker.old_keys import OldKeys
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.fields import integer, text
from cluster.remoting.request import Handler, Request
from cluster.wire.codec import is_true
from cluster.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from cluster.broker.message_lookup import QueryResult, Stored
    from cluster.remoting.request_figures import RequestFigures

logger = logging.getLogger(__name__)

MESSAGES_MAX = 64
"""RocketMQ: maxMsgsNumBatch."""
UNIQUE_MESSAGES_MAX = 32
"""RocketMQ: defaultQueryMaxNum, whatever a query for a UNIQ_KEY asks for."""
UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"


class QueryRequests:
    """Handlers of queries."""

    def __init__(
        self, services: Services, metrics: RequestFigures | None = None, old_keys: OldKeys | None = None
    ) -> None:
        """`old_keys`: see MessageQueries."""
        self._services = services
        self._queries = MessageQueries(services, old_keys)
        self._metrics = metrics

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; none of these is forwarded."""
        return {
            RequestCode.QUERY_MESSAGE: refusing(self._by_key),
            RequestCode.VIEW_MESSAGE_BY_ID: refusing(self._by_position),
        }

    def _by_key(self, request: Request) -> None:
        topic, key = text(request, "topic"), text(request, "key")
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
            request.reply(ResponseCode.SUCCESS, None, ext, b"".join([stored.data for stored in found.messages]))

        self._queries.by_key(request.connection, topic, query, answer, lambda error: self._failed(request, error))

    def _by_position(self, request: Request) -> None:
        def answer(stored: Stored | Refused) -> None:
            if isinstance(stored, Refused):
                self._refuse(request, "id", stored)
                return
            self._note("id", "found")
            request.reply(ResponseCode.SUCCESS, body=stored.data)

        self._queries.by_position(integer(request, "offset"), answer, lambda error: self._failed(request, error))

    def _refuse(self, request: Request, kind: str, refused: Refused) -> None:
        self._note(kind, "refused" if refused.reason is Reason.UNAVAILABLE else "none")
        refuse(request, refused)

    def _failed(self, request: Request, error: Exception) -> None:
        logger.error("a query (code %d) failed", request.code, exc_info=error)
        request.reply(ResponseCode.SYSTEM_ERROR, f"the query failed on node {self._services.node_id}: {error}")

    def _note(self, kind: str, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.queried(kind, outcome)
