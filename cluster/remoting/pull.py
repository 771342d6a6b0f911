"""Pulls (codes 11, 361): any node answers from its own applied state.

What a pull is told follows one table (docs/wire-protocol.md). Two rules protect consumers: a message is never sent
unless its bytes match the CRC that apply recorded, and PULL_OFFSET_MOVED, which makes a client overwrite its offset, is
never said from state that may lag: an offset beyond the end is "not yet" on a follower, and confirmed by a ReadIndex
round on the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import google_crc32c

from cluster.broker.group_members import Members
from cluster.broker.hold_back import HoldBack
from cluster.broker.names import PERM_READ, RETRY_PREFIX, no_topic
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.broker.subscription import TagFilter, tag_filter
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.fields import integer, text
from cluster.remoting.long_poll import LongPolls
from cluster.remoting.pull_request import Pull, compares_tags
from cluster.remoting.request import Handler, Request
from cluster.replication.follower_reads import LEADER, FollowerReads
from cluster.wire.codes import RequestCode, ResponseCode
from raftlog.errors import OutOfRangeError, StorageError
from statemachine.query import QueueItem
from statemachine.topics import TopicConfig

if TYPE_CHECKING:
    from cluster.remoting.request_figures import RequestFigures

logger = logging.getLogger(__name__)

FLAG_COMMIT_OFFSET = 1
FLAG_SUBSCRIPTION = 4

SCAN_MAX = 4096
"""Queue items looked at by one pull with a tag filter."""
GAP_BYTES = 8 << 10
"""Bytes of other queues that are read along rather than skipped, per message: copying them costs less than a read of
its own. What one pull reads is bounded by this and MESSAGES_MAX."""
SCAN_WINDOW = 256
"""Items per fetch: an aligned chunk of the consume queue."""

_crc32c = google_crc32c.value


TOPIC_TRIES, TOPIC_RETRY_MS = 20, 50
"""How long a node that does not lead waits for a topic that it has not seen."""
REPAIR_TRIES, REPAIR_RETRY_MS = 10, 200
"""How long a pull waits for the repair of its first message before it is told to come again."""
_OUTCOMES: dict[int, str] = {
    ResponseCode.SUCCESS: "found",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "found",
    ResponseCode.PULL_NOT_FOUND: "empty",
    ResponseCode.PULL_OFFSET_MOVED: "moved",
}
"""Response code -> `outcome` of the metric."""


class Pulls:
    """Handlers of pulls, and what their long polls run when woken."""

    def __init__(self, services: Services, members: Members, metrics: RequestFigures | None = None) -> None:
        self._services = services
        self._members = members
        self._metrics = metrics
        self.reads: FollowerReads | None = None
        """Who should serve next, and how stale this node may be; None: the leader, and nothing is said."""
        self.elsewhere: Callable[[Request, int], bool] = lambda request, position: False
        """Has another node answer where this one lacks the log at a position (`cluster.remoting.router`)."""
        self._hold_back = HoldBack(services, lambda queues: self.long_polls.wake(queues))
        self.long_polls = LongPolls(services, self._attempt, self.reply_nothing)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; none of these is forwarded."""
        handler = refusing(self._pull)
        return {RequestCode.PULL_MESSAGE: handler, RequestCode.LITE_PULL_MESSAGE: handler}

    # --- a request comes in ---

    def _pull(self, request: Request) -> None:
        self._start(request, tries=0)

    def _start(self, request: Request, tries: int) -> None:
        group, name = text(request, "consumerGroup"), text(request, "topic")
        topic = self._services.state.topics.get(name)
        if topic is None:
            self._unknown_topic(request, name, tries)
            return
        queue_id, flags = integer(request, "queueId"), integer(request, "sysFlag")
        self._check_readable(group, topic, queue_id)
        pull = Pull(request, topic, queue_id, self._tags(request, group, name, flags), flags)
        # Not when it was held elsewhere or comes round again: later commits of its connection may be here already.
        if flags & FLAG_COMMIT_OFFSET and not tries and not request.connection.forwarded:
            self._commit(request, group, pull)
        self._settle(pull)

    def _unknown_topic(self, request: Request, name: str, tries: int) -> None:
        """Only the leader knows that there is no such topic: elsewhere it may be on its way, and is waited for."""
        if self._services.writes_open() or tries == TOPIC_TRIES:
            raise no_topic(name)
        if not request.connection.closed:
            again = refusing(lambda request: self._start(request, tries + 1))
            self._services.call_later(TOPIC_RETRY_MS, lambda: again(request))

    def _check_readable(self, group: str, topic: TopicConfig, queue_id: int) -> None:
        if not topic.perm & PERM_READ:
            raise Refused(Reason.NO_PERMISSION, f"topic {topic.name} may not be read (perm {topic.perm})")
        if not 0 <= queue_id < topic.read_queues:
            remark = f"topic {topic.name} has read queues 0 to {topic.read_queues - 1}, not {queue_id}"
            raise Refused(Reason.INVALID, remark)
        config = self._services.state.groups.get(group)
        if config is not None and not config.consume_enable:
            raise Refused(Reason.NO_PERMISSION, f"consumer group {group} may not consume (consumeEnable=false)")

    def _tags(self, request: Request, group: str, topic: str, flags: int) -> TagFilter:
        """The filter of the request itself, else of the group's newest subscription. Raises Refused (23, 24, 25).

        None where that is older than the request's and the client compares the tags itself: it would hear 25 until
        its next heartbeat, half a minute later.
        """
        if flags & FLAG_SUBSCRIPTION:
            return tag_filter(request.ext.get("expressionType"), request.ext.get("subscription"))
        known = [row[1:] for row in (self._members.subscription(group, topic),) if row is not None]
        config = self._services.state.groups.get(group)
        if config is not None and topic in config.subscriptions:
            known.append(config.subscriptions[topic])
        if not known:
            remark = f"group {group} has no subscription to {topic}; its consumers tell it with their heartbeats"
            raise Refused(Reason.NO_SUBSCRIPTION, remark)
        expression_type, sub_string, version = max(known, key=lambda row: row[2])
        if version < integer(request, "subVersion", 0):
            if compares_tags(request, flags):
                return None
            remark = f"group {group}: the subscription to {topic} known here is older than the request's"
            raise Refused(Reason.STALE_SUBSCRIPTION, remark)
        return tag_filter(expression_type, sub_string)

    def _commit(self, request: Request, group: str, pull: Pull) -> None:
        """The offset a pull carries along; only the leader can note it, elsewhere the consumer's own commits do."""
        offset = integer(request, "commitOffset", -1)
        if offset >= 0 and self._services.writes_open() and self._services.knows_group(group):
            self._services.commit_offset_later(group, pull.topic_id, pull.queue_id, offset)

    # --- answering: now, or when something comes ---

    def _settle(self, pull: Pull) -> None:
        if not self._attempt(pull):
            self._hold(pull)

    def _hold(self, pull: Pull) -> None:
        """Parks a pull for which there is nothing yet, or says so if it may not or can not wait."""
        if pull.suspend_ms <= 0:
            self.reply_nothing(pull)
            return
        full = self.long_polls.park(pull)
        if full is not None:
            self._reply(pull, ResponseCode.SYSTEM_BUSY, full, pull.offset)

    def _attempt(self, pull: Pull) -> bool:
        """Answers the pull unless there is nothing for it yet (False). Never raises: apply wakes it too."""
        try:
            return self._answer(pull)
        except Exception as error:
            if pull.topic_id not in self._services.state.topics_by_id:  # deleted under the read
                refusal = no_topic(pull.topic)
                refuse(pull.request, refusal)
            else:
                logger.exception("pull of %s queue %d at %d failed", pull.topic, pull.queue_id, pull.offset)
                pull.request.reply(ResponseCode.SYSTEM_ERROR, f"reading {pull.topic} failed: {error}")
            return True

    def _answer(self, pull: Pull) -> bool:
        state = self._services.state
        if self._services.fenced():
            remark = f"node {self._services.node_id} does not serve messages: its rows are wrong; pull from another"
            self._reply(pull, ResponseCode.SYSTEM_BUSY, remark, pull.offset)
            return True
        if pull.topic_id not in state.topics_by_id:
            pull.request.reply(ResponseCode.TOPIC_NOT_EXIST, no_topic(pull.topic).remark)
            return True
        low, high = state.min_offset(pull.topic_id, pull.queue_id), state.max_offset(pull.topic_id, pull.queue_id)
        if pull.offset < low:
            self._reply(pull, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low)
            return True
        end = high
        if pull.topic.startswith(RETRY_PREFIX):
            high = min(high, self._hold_back.end(pull.topic_id, pull.queue_id))
        if pull.offset > end:
            return self._ask_beyond(pull)
        if pull.offset >= high:
            return False
        if not pull.request.room_for(pull.bytes_max, lambda: self._settle(pull)):
            return True
        items, next_offset = self._scan(pull, high)
        if items and self.elsewhere(pull.request, items[0].position):
            return True
        if items:
            self._reply_items(pull, items, next_offset)
        elif pull.held and next_offset == high:
            pull.offset = next_offset
            return False
        else:
            self._reply(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next_offset)
        return True

    def _ask_beyond(self, pull: Pull) -> bool:
        """An offset past the end: the leader moves it once the group confirms where the end is."""
        if not self._services.writes_open():
            return False

        def confirmed(ok: bool) -> None:
            if pull.request.connection.closed:
                return
            high = self._services.state.max_offset(pull.topic_id, pull.queue_id)
            if pull.offset <= high:
                self._settle(pull)
            elif ok:
                remark = "OFFSET_OVERFLOW_BADLY" if high else "NO_MESSAGE_IN_QUEUE"
                self._reply(pull, ResponseCode.PULL_OFFSET_MOVED, remark, high)
            else:
                self._hold(pull)

        self._services.read_index(confirmed)
        return True

    def _scan(self, pull: Pull, high: int) -> tuple[list[QueueItem], int]:
        """The items to send, within the pull's limits but at least one if any matches, and the offset to go on from."""
        if pull.tags is not None:
            return self._scan_tags(pull, pull.tags, high)
        count_max = min(pull.messages_max, high - pull.offset)
        items = self._services.state.fetch(pull.topic_id, pull.queue_id, pull.offset, count_max)
        total = 0
        for count, item in enumerate(items):
            total += item.size
            if total > pull.bytes_max and count:
                del items[count:]
                break
        return items, pull.offset + len(items)

    def _scan_tags(self, pull: Pull, tags: frozenset[int], high: int) -> tuple[list[QueueItem], int]:
        fetch = self._services.state.fetch
        matched: list[QueueItem] = []
        total = 0
        at, stop = pull.offset, min(high, pull.offset + SCAN_MAX)
        while at < stop:
            window = fetch(pull.topic_id, pull.queue_id, at, min(SCAN_WINDOW - at % SCAN_WINDOW, stop - at))
            if not window:  # trimmed since the bounds were looked up: the next pull is told
                break
            for item in window:
                at = item.queue_offset + 1
                if item.tag_hash not in tags:
                    continue
                total += item.size
                if total > pull.bytes_max and matched:
                    return matched, item.queue_offset
                matched.append(item)
                if len(matched) == pull.messages_max:
                    return matched, at
        return matched, at

    # --- replies ---

    def _reply_items(self, pull: Pull, items: list[QueueItem], next_offset: int) -> None:
        """Sends the items up to the first that cannot be read intact; if that is the very first, waits for a repair."""
        pieces = read_intact(self._services, items)
        if len(pieces) == len(items):
            body = b"".join(pieces)
            self._reply(pull, ResponseCode.SUCCESS, "FOUND", next_offset, body, items)
            if self._metrics is not None:
                self._metrics.messages_out(pull.topic, len(items), len(body))
            return
        bad = items[len(pieces)]
        here = _is_here(self._services, bad)
        if here:
            logger.error(
                "message at position %d (%s queue %d offset %d) cannot be read intact on node %d",
                bad.position,
                pull.topic,
                pull.queue_id,
                bad.queue_offset,
                self._services.node_id,
            )
            self._services.report_damage(bad.position, bad.size)
        if pieces:
            self._reply(pull, ResponseCode.SUCCESS, "FOUND", bad.queue_offset, b"".join(pieces))
        elif pull.repair_tries < REPAIR_TRIES:
            pull.repair_tries += 1
            self._services.call_later(REPAIR_RETRY_MS, lambda: self._settle_if_open(pull))
        else:
            until = "cannot be read intact" if here else "is not"
            remark = (
                f"the message at offset {bad.queue_offset} (position {bad.position}) {until} on node "
                f"{self._services.node_id} until it is fetched from another node; pull again, or elsewhere"
            )
            self._reply(pull, ResponseCode.SYSTEM_BUSY, remark, pull.offset)

    def _settle_if_open(self, pull: Pull) -> None:
        if not pull.request.connection.closed:
            self._settle(pull)

    def reply_nothing(self, pull: Pull) -> None:
        """19: there was nothing for the pull until now (or it may not wait)."""
        high = self._services.state.max_offset(pull.topic_id, pull.queue_id)
        remark = "OFFSET_OVERFLOW_ONE" if high else "NO_MESSAGE_IN_QUEUE"
        self._reply(pull, ResponseCode.PULL_NOT_FOUND, remark, pull.offset)

    def _reply(
        self, pull: Pull, code: int, remark: str, next_offset: int, body: bytes = b"", items: Sequence[QueueItem] = ()
    ) -> None:
        """Every reply to a pull carries all four numbers: Java clients unbox them unasked."""
        state = self._services.state
        ext = {
            "suggestWhichBrokerId": LEADER,
            "nextBeginOffset": str(next_offset),
            "minOffset": str(state.min_offset(pull.topic_id, pull.queue_id)),
            "maxOffset": str(state.max_offset(pull.topic_id, pull.queue_id)),
        }
        if self.reads is not None:
            ext["suggestWhichBrokerId"] = self.reads.suggest(pull.group, pull.queue_id, items)
            self.reads.label(ext)
        pull.request.reply(code, remark, ext, body)
        if self._metrics is not None:
            self._metrics.pulled(_OUTCOMES.get(code, "refused"))


def handlers(services: Services, members: Members) -> dict[int, Handler]:
    """Request code -> handler of pulls."""
    return Pulls(services, members).handlers()


def read_intact(services: Services, items: list[QueueItem]) -> list[bytes]:
    """The stored messages of `items`, up to the first whose bytes do not match its CRC even when read again.

    One read when they lie close together, one each otherwise.
    """
    block, first = _read_block(services, items), items[0].position
    pieces: list[bytes] = []
    for item in items:
        at = item.position - first
        piece = block[at : at + item.size]
        if len(piece) != item.size or _crc32c(piece) != item.crc32c:
            alone = _read_one(services, item)
            if alone is None:
                break
            piece = alone
        pieces.append(piece)
    return pieces


def _is_here(services: Services, item: QueueItem) -> bool:
    """False if this node's log does not reach down to the item: it was trimmed, and the rows do not know it yet, or
    the node's log is still being filled up from the others."""
    try:
        services.read_log(item.position, 0)
    except OutOfRangeError:
        return False
    except StorageError:
        pass
    return True


def _read_block(services: Services, items: list[QueueItem]) -> bytes:
    """All the items in one read, with what lies between them; b"" if that would not pay or fails."""
    first = items[0].position
    span = items[-1].position + items[-1].size - first
    if len(items) < 2 or span > sum([item.size for item in items]) + GAP_BYTES * len(items):
        return b""
    try:
        return services.read_log(first, span)
    except (StorageError, OutOfRangeError):
        return b""  # one by one then: what can be read is served


def _read_one(services: Services, item: QueueItem) -> bytes | None:
    """One message, read a second time if it does not match; None if it can not be read intact."""
    try:
        for _ in range(2):
            piece = services.read_log(item.position, item.size)
            if len(piece) == item.size and _crc32c(piece) == item.crc32c:
                return piece
    except StorageError as error:
        logger.error("reading %d bytes at position %d: %s", item.size, item.position, error)
    except OutOfRangeError:
        pass  # see `_is_here`
    return None
