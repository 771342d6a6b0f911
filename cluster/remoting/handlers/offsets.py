"""Handles requests about consumer offsets and queue bounds (codes 14, 15, 29, 30, 31, 32), on the leader only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cluster.broker.groups.group_members import Members
from cluster.broker.groups.group_offsets import CommitId, Offsets
from cluster.broker.groups.queue_locks import other_holder
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import refuse, refusing, reply_written
from cluster.remoting.forward.requesting_clients import committers
from cluster.remoting.request import Handler, Handlers, Request, integer, text
from cluster.replication.outcome import ProposeResult
from cluster.replication.send_identity import SessionKind, names_in
from raftmq_wire.codec import FLAG_ONEWAY
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.topic_identity import IDENTITY_FIELD

OffsetAnswer = Callable[[int | Refused | None], None]


class OffsetRequests:
    """Handles requests about consumer offsets (14, 15) and queue bounds (29 to 32)."""

    def __init__(self, services: Services, members: Members, offsets: Offsets) -> None:
        self._services = services
        self._members = members
        self._offsets = offsets

    def codes(self) -> Handlers:
        """Returns request code -> its handler; all are answered by the leader only."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: refusing(self._query),
            RequestCode.UPDATE_CONSUMER_OFFSET: refusing(self._update),
            RequestCode.GET_MAX_OFFSET: self._bound("offset", self._max_offset),
            RequestCode.GET_MIN_OFFSET: self._bound("offset", self._min_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._told("offset", self._offset_by_time),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._told("timestamp", self._earliest_store_time),
        }

    def _query(self, request: Request) -> None:
        group, topic, queue_id = text(request, "consumerGroup"), text(request, "topic"), integer(request, "queueId")
        set_zero = request.ext.get("setZeroIfNotFound", "true").lower() != "false" and not self._begins_at_time(group)
        offset = self._offsets.stored_or_zero(group, topic, queue_id, zero_if_whole=set_zero)
        if offset is None:  # this code lets the client's ConsumeFromWhere decide
            raise Refused(Reason.NOT_FOUND, f"group {group} has no offset of {topic} queue {queue_id}")
        request.reply(ResponseCode.SUCCESS, None, {"offset": str(offset), **self._services.topic_identity(topic)})

    def _begins_at_time(self, group: str) -> bool:
        """Returns True if the group's members want to begin at a point in time. Without an offset they then search for
        one themselves, and miss nothing."""
        found = self._members.consumers.get(group)
        return found is not None and found.consume_from_where == "CONSUME_FROM_TIMESTAMP"

    def _update(self, request: Request) -> None:
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        queue_id, offset = integer(request, "queueId"), integer(request, "commitOffset")
        counted_in = request.ext.get(IDENTITY_FIELD)
        if offset < 0:  # ali-ons sends -1 before it has consumed anything
            request.reply(ResponseCode.SUCCESS)
        elif holder := self._other_holder(request, group, topic, queue_id):
            request.reply(ResponseCode.SUCCESS, f"not committed: client {holder} holds {topic} queue {queue_id}")
        elif request.flag & FLAG_ONEWAY:
            self._offsets.commit_later(group, topic, queue_id, offset, counted_in)
        else:
            name = name_of(request, self._services.state.level)
            done = partial(_answer_update, request)
            self._offsets.commit(group, topic, queue_id, offset, name, done, counted_in)

    def _other_holder(self, request: Request, group: str, topic: str, queue_id: int) -> str | None:
        """Returns the client that has locked the queue for ordered consumption, if it is another one than the
        committing client. RocketMQ accepts such a commit, and the holder reads again or skips messages. RocketMQ also
        drops commits during a reset; it answers these with SUCCESS and a remark."""
        config = self._services.state.topics.get(topic)
        if config is None:
            return None
        queue = config.id, queue_id
        members = self._members
        return other_holder(
            self._services, members, group, queue, request.user, lambda: committers(request, group, members)
        )

    # --- 29 to 32 ---

    def _bound(self, field: str, number_of: Callable[[Request, str, int], int]) -> Handler:
        def answered(request: Request) -> None:
            number = number_of(request, text(request, "topic"), integer(request, "queueId"))
            identity = self._services.topic_identity(text(request, "topic"))
            request.reply(ResponseCode.SUCCESS, None, {field: str(number), **identity})

        return refusing(answered)

    def _max_offset(self, request: Request, topic: str, queue_id: int) -> int:
        return self._offsets.max_offset(topic, queue_id)

    def _min_offset(self, request: Request, topic: str, queue_id: int) -> int:
        return self._offsets.min_offset(topic, queue_id)

    def _told(self, field: str, ask: Callable[[Request, str, int, OffsetAnswer], None]) -> Handler:
        """Returns a handler that calls `ask` and answers with the number that `ask` passes to its callback, in the ext
        field `field`. `ask` may have to read the tier first."""

        def answered(request: Request) -> None:
            def told(number: int | Refused | None) -> None:
                if isinstance(number, Refused):
                    refuse(request, number)
                else:  # -1 for an empty queue, as in RocketMQ
                    request.reply(
                        ResponseCode.SUCCESS, None, {field: str(-1 if number is None else number), **identity}
                    )

            topic = text(request, "topic")
            identity = self._services.topic_identity(topic)
            ask(request, topic, integer(request, "queueId"), told)

        return refusing(answered)

    def _offset_by_time(self, request: Request, topic: str, queue_id: int, told: OffsetAnswer) -> None:
        upper = request.ext.get("boundaryType", "LOWER").upper() == "UPPER"
        self._offsets.offset_by_time(topic, queue_id, integer(request, "timestamp"), told, upper=upper)

    def _earliest_store_time(self, request: Request, topic: str, queue_id: int, told: OffsetAnswer) -> None:
        self._offsets.earliest_store_ms(topic, queue_id, told)


def name_of(request: Request, level: int) -> CommitId | None:
    """Returns the identity that a commit carries in a cluster of that level; None without one. Raises Refused (INVALID)
    if the identity is malformed."""
    pid = request.ext.get("raftmqPid")
    if not pid:
        return None
    session = names_in(SessionKind.OFFSETS, request.user, pid, level)
    sequence, low = integer(request, "raftmqSeq"), integer(request, "raftmqLow", 1)
    if not session.own or not 1 <= low <= sequence:
        remark = "raftmqPid is 32 hex digits, raftmqSeq at least 1, raftmqLow from 1 to raftmqSeq"
        raise Refused(Reason.INVALID, remark)
    return CommitId(session, sequence, low)


def _answer_update(request: Request, result: ProposeResult) -> None:
    """Answers a commit (15) with the result of its entry. Apply rejects an offset only if the topic was deleted in the
    meantime."""
    if result.results and not result.results[0].ok:
        refuse(request, Refused(Reason.NO_TOPIC, "the topic was deleted meanwhile"))
    else:
        reply_written(request, result)
