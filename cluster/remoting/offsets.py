"""Consumer offsets and queue bounds (codes 14, 15, 29, 30, 31, 32). Leader only; reads wait for a ReadIndex round.

Answers here move consumers, so none is given from state that may be stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.names import no_topic
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.remoting.answers import after_read_index, refusing, reply_written
from cluster.remoting.fields import integer, text
from cluster.remoting.named_commits import NamedCommits, name_of
from cluster.remoting.request import Handler, Request
from cluster.replication.outcome import ProposeResult
from cluster.wire.codec import FLAG_ONEWAY
from cluster.wire.codes import RequestCode, ResponseCode
from statemachine import commands

if TYPE_CHECKING:
    from statemachine.topics import TopicConfig

RETRY_MS = 100
RETRIES = 30
"""How long 14 is held while no leader confirms: longer than a failover, shorter than the client's patience."""


class Offsets:
    """Handlers of consumer offsets and queue bounds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._named = NamedCommits(services)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; all of them the leader's."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: refusing(self._query),
            RequestCode.UPDATE_CONSUMER_OFFSET: refusing(self._update),
            RequestCode.GET_MAX_OFFSET: self._bound(self._max_offset),
            RequestCode.GET_MIN_OFFSET: self._bound(self._min_offset),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._bound(self._offset_by_time),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._bound(self._earliest_store_time),
        }

    # --- 14 ---

    def _query(self, request: Request) -> None:
        group, topic, queue_id = text(request, "consumerGroup"), text(request, "topic"), integer(request, "queueId")
        set_zero = request.ext.get("setZeroIfNotFound", "true").lower() != "false"
        tries = 0

        def ask() -> None:
            if not request.connection.closed:
                # A consumer that takes a queue over asks right after the former owner's oneway commit.
                self._services.settle_offsets(group, lambda: self._services.read_index(confirmed))

        def confirmed(ok: bool) -> None:
            nonlocal tries
            if ok:
                self._answer_query(request, group, topic, queue_id, set_zero)
                return
            tries += 1
            if tries <= RETRIES:
                self._services.call_later(RETRY_MS, ask)
            # else no answer: Java clients up to 4.8 read every code but 0 as "nothing stored" and may jump to the end,
            # while a timeout only makes them ask again.

        ask()

    def _answer_query(self, request: Request, group: str, topic: str, queue_id: int, set_zero: bool) -> None:
        """The stored offset. If there is none: 0 for a queue that still has its first message, else 22, which lets
        the client's ConsumeFromWhere decide."""
        offset = self._stored_or_zero(group, topic, queue_id, set_zero)
        if offset is None:
            request.reply(ResponseCode.QUERY_NOT_FOUND, f"group {group} has no offset of {topic} queue {queue_id}")
        else:
            request.reply(ResponseCode.SUCCESS, None, {"offset": str(offset)})

    def _stored_or_zero(self, group: str, topic: str, queue_id: int, set_zero: bool) -> int | None:
        state = self._services.state
        config = state.topics.get(topic)
        if config is None or not 0 <= queue_id < config.queues:
            return None
        offset = state.offset(group, config.id, queue_id)
        if offset is None and set_zero:
            whole = state.min_offset(config.id, queue_id) == 0 and state.max_offset(config.id, queue_id) > 0
            return 0 if whole else None
        return offset

    # --- 15 ---

    def _update(self, request: Request) -> None:
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        queue_id, offset = integer(request, "queueId"), integer(request, "commitOffset")
        if offset < 0:  # ali-ons sends -1 before it has consumed anything
            request.reply(ResponseCode.SUCCESS)
            return
        if group not in self._services.state.groups:
            raise Refused(Reason.NO_GROUP, f"consumer group {group} does not exist")
        if not self._services.knows_group(group):
            raise Refused(Reason.UNAVAILABLE, f"consumer group {group} is being deleted; try again")
        config = self._topic(topic)
        _check_queue(config, queue_id)
        if request.flag & FLAG_ONEWAY:
            self._services.commit_offset_later(group, config.id, queue_id, offset)
            return
        row: list[object] = [group, config.id, queue_id, offset]
        name = name_of(request)
        if name is not None:
            self._named.commit(request, row, name, _answer_update)
            return
        self._services.propose([[commands.COMMIT_OFFSETS, [row]]], lambda result: _answer_update(request, result))

    # --- 29 to 32 ---

    def _bound(self, answer: Callable[[Request, TopicConfig, int], None]) -> Handler:
        def answered(request: Request) -> None:
            config = self._topic(text(request, "topic"))
            queue_id = integer(request, "queueId")
            _check_queue(config, queue_id)
            answer(request, config, queue_id)

        return lambda request: after_read_index(self._services, request, answered)

    def _max_offset(self, request: Request, config: TopicConfig, queue_id: int) -> None:
        _reply_number(request, "offset", self._services.state.max_offset(config.id, queue_id))

    def _min_offset(self, request: Request, config: TopicConfig, queue_id: int) -> None:
        _reply_number(request, "offset", self._services.state.min_offset(config.id, queue_id))

    def _offset_by_time(self, request: Request, config: TopicConfig, queue_id: int) -> None:
        upper = request.ext.get("boundaryType", "LOWER").upper() == "UPPER"
        time_ms = integer(request, "timestamp")
        _reply_number(request, "offset", self._services.state.offset_by_time(config.id, queue_id, time_ms, upper))

    def _earliest_store_time(self, request: Request, config: TopicConfig, queue_id: int) -> None:
        """-1 for an empty queue, as RocketMQ says it."""
        state = self._services.state
        first = state.fetch(config.id, queue_id, state.min_offset(config.id, queue_id), 1)
        _reply_number(request, "timestamp", first[0].store_time_ms if first else -1)

    def _topic(self, topic: str) -> TopicConfig:
        config = self._services.state.topics.get(topic)
        if config is None:
            raise no_topic(topic)
        return config


def handlers(services: Services) -> dict[int, Handler]:
    """Request code -> handler of consumer offsets and queue bounds."""
    return Offsets(services).handlers()


def _answer_update(request: Request, result: ProposeResult) -> None:
    """A topic deleted meanwhile is the one reason for which apply leaves an offset out."""
    if result.results and not result.results[0].ok:
        request.reply(ResponseCode.TOPIC_NOT_EXIST, "the topic was deleted meanwhile")
    else:
        reply_written(request, result)


def _check_queue(config: TopicConfig, queue_id: int) -> None:
    if not 0 <= queue_id < config.queues:
        remark = f"topic {config.name} has queues 0 to {config.queues - 1}, not {queue_id}"
        raise Refused(Reason.INVALID, remark)


def _reply_number(request: Request, name: str, number: int) -> None:
    request.reply(ResponseCode.SUCCESS, None, {name: str(number)})
