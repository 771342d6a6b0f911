"""Handles pulls (codes 11, 361). Any node answers them from its own applied state. docs/wire-protocol.md has the table
of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec

from cluster.broker.filters.known_filters import KnownFilters
from cluster.broker.filters.subscription import Expression
from cluster.broker.pulls.pull_service import Pulls
from cluster.broker.reads.pull_values import BYTES_DEFAULT, PullAnswer, PullOutcome, PullRequest
from cluster.broker.refusal import Refused
from cluster.remoting.answers import refuse
from cluster.remoting.request import Connection, Handlers, Request, SharedAnswer, integer, integers, text
from cluster.runtime.request_limits import TEXT_MAX, Signed64
from cluster.runtime.turns.garbage_collection import Untracked
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED
from raftmq_wire.topic_identity import IDENTITY_FIELD

if TYPE_CHECKING:
    from cluster.broker.broker_metrics import DeliveryMetrics

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
FLAG_CLASS_FILTER = 8
"""Bits of a pull's sysFlag. FLAG_CLASS_FILTER asks the broker to filter with a class that the user has written."""
V4_0_0 = 212
"""Protocol version of the first RocketMQ under Apache (MQVersion.V4_0_0_SNAPSHOT)."""

_CODES: dict[PullOutcome, ResponseCode] = {
    PullOutcome.FOUND: ResponseCode.SUCCESS,
    PullOutcome.NOT_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullOutcome.NOTHING: ResponseCode.PULL_NOT_FOUND,
    PullOutcome.MOVED: ResponseCode.PULL_OFFSET_MOVED,
    PullOutcome.BUSY: ResponseCode.SYSTEM_BUSY,
}
_FIGURES: dict[PullOutcome, str] = {
    PullOutcome.FOUND: "found",
    PullOutcome.NOT_MATCHED: "found",
    PullOutcome.NOTHING: "empty",
    PullOutcome.MOVED: "moved",
    PullOutcome.BUSY: "refused",
}
"""Outcome of a pull -> label `outcome` of the metric."""

RequiredName = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_MAX)]

PullElsewhere = Callable[[Request, int], bool]
"""Forwards a request if this node lacks the log at a position; returns True if it did
(`cluster.remoting.forward.pull_forwards.PullForwards.elsewhere`)."""

ToLeader = Callable[[Request], bool]
"""Forwards a request to the leader, if another node leads; returns True if it did
(`cluster.remoting.forward.pull_forwards.PullForwards.to_leader`)."""


class PullRequests:
    """Handles pulls (11, 361)."""

    def __init__(
        self, pulls: Pulls, elsewhere: PullElsewhere, to_leader: ToLeader, metrics: DeliveryMetrics | None = None
    ) -> None:
        self._pulls = pulls
        self._elsewhere = elsewhere
        self._to_leader = to_leader
        self._metrics = metrics

    @property
    def filters(self) -> KnownFilters:
        """The filters that pulls have used."""
        return self._pulls.filters

    def codes(self) -> Handlers:
        """Returns request code -> its handler; the router forwards none of these."""
        return {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.LITE_PULL_MESSAGE: self._pull,
        }

    def _pull(self, request: Request) -> None:
        try:
            asked = decode_pull(request)
        except Refused as refused:
            refuse(request, refused)
            return
        self._pulls.pull(PullReply(request, asked.topic, self._elsewhere, self._to_leader, self._metrics), asked)


class PullReply(Untracked):
    """Implements `cluster.broker.reads.pull_values.Puller` for a request."""

    _request: Request
    _topic: str
    _elsewhere: PullElsewhere
    _to_leader: ToLeader
    _metrics: DeliveryMetrics | None

    @property
    def client(self) -> Connection:
        return self._request.connection

    @property
    def user(self) -> int:
        return self._request.user

    @property
    def judged(self) -> int:
        return self._request.judged

    @property
    def kept_bytes(self) -> int:
        return len(self._request.ext_json) + len(self._request.body)

    def hold(self) -> None:
        self._request.hold()

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        return self._request.room_for(size, again)

    def elsewhere(self, position: int) -> bool:
        return self._elsewhere(self._request, position)

    def to_leader(self) -> bool:
        return self._to_leader(self._request)

    def answered(self, answer: PullAnswer) -> None:
        """Answers the pull. Every answer has all four numbers (next, least and greatest offset, and the suggested
        broker id), because Java clients unbox them without a check."""
        if answer.for_many is None:
            self._request.reply(_CODES[answer.outcome], answer.remark, _ext_of(answer), answer.body)
        else:
            shared = answer.for_many.made
            if not isinstance(shared, SharedAnswer):
                shared = SharedAnswer(_CODES[answer.outcome], answer.remark, _ext_of(answer), answer.body)
                answer.for_many.keep(shared)
            self._request.reply_shared(shared)
        if self._metrics is not None:
            self._metrics.pulled(_FIGURES[answer.outcome])
            if answer.messages:
                self._metrics.messages_out(self._topic, answer.messages, len(answer.body))

    def refused(self, refused: Refused) -> None:
        refuse(self._request, refused)


def _ext_of(answer: PullAnswer) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": answer.suggested,
        "nextBeginOffset": str(answer.next_offset),
        "minOffset": str(answer.min_offset),
        "maxOffset": str(answer.max_offset),
        **answer.labels,
    }


class PullFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The ext fields of a pull (PullMessageRequestHeader), decoded at once. Numbers are texts (Java, Go) or numbers
    (C++).

    If the fields do not match, or there are other fields, they are decoded one by one, which finds the wrong field.
    """

    consumerGroup: RequiredName
    topic: RequiredName
    queueId: Signed64
    queueOffset: Signed64
    maxMsgNums: Signed64
    sysFlag: Signed64
    commitOffset: Signed64 = -1
    suspendTimeoutMillis: Signed64 = 0
    subscription: str | None = None
    subVersion: Signed64 = 0
    expressionType: str | None = None
    maxMsgBytes: Signed64 = BYTES_DEFAULT
    raftmqTopicId: str | None = None
    requestSource: object = None
    proxyFrowardClientId: object = None
    bname: object = None
    lo: object = None
    ns: object = None
    nsd: object = None
    oway: object = None


_decode = msgspec.json.Decoder(PullFields, strict=False).decode


def decode_pull(request: Request) -> PullRequest:
    """Decodes the request's fields. Raises Refused (INVALID) or CodecError if one is missing or malformed."""
    try:
        fields = _decode(request.ext_json)
    except MALFORMED:
        fields = read_one_by_one(request)
    flags = fields.sysFlag
    own = flags & FLAG_SUBSCRIPTION
    forwarded = request.connection.forwarded
    return PullRequest(
        fields.consumerGroup,
        fields.topic,
        fields.queueId,
        fields.queueOffset,
        fields.maxMsgNums,
        fields.maxMsgBytes,
        # A forwarded pull is answered at once, because the node with the client's connection waits for its answer no
        # longer than for the answer to a send.
        fields.suspendTimeoutMillis if flags & FLAG_SUSPEND and not forwarded else 0,
        # The offset is not committed if another node has held the pull: later commits of its connection may have
        # arrived before it.
        fields.commitOffset if flags & FLAG_COMMIT_OFFSET and not forwarded else -1,
        Expression(fields.expressionType, fields.subscription) if own else None,
        0 if own else fields.subVersion,
        fields.raftmqTopicId,
        lambda: compares_tags(request, fields.expressionType, flags),
    )


def read_one_by_one(request: Request) -> PullFields:
    """Decodes the fields one by one. Raises an error that names a missing or malformed field: Refused (INVALID), or
    CodecError."""
    ext = request.ext
    group, topic = text(request, "consumerGroup"), text(request, "topic")
    queue_id, flags, offset, messages_max = integers(request, "queueId", "sysFlag", "queueOffset", "maxMsgNums")
    return PullFields(
        group,
        topic,
        queue_id,
        offset,
        messages_max,
        flags,
        integer(request, "commitOffset", -1) if flags & FLAG_COMMIT_OFFSET else -1,
        integer(request, "suspendTimeoutMillis", 0) if flags & FLAG_SUSPEND else 0,
        ext.get("subscription"),
        0 if flags & FLAG_SUBSCRIPTION else integer(request, "subVersion", 0),
        ext.get("expressionType"),
        integer(request, "maxMsgBytes", BYTES_DEFAULT),
        ext.get(IDENTITY_FIELD),
    )


def compares_tags(request: Request, expression_type: str | None, flags: int) -> bool:
    """Returns True if the client itself drops messages whose tags do not match its subscription.

    Java and C++ clients do (both in PullAPIWrapper), but only with tags, and not with a class filter. C++ clients have
    only tags and send no type. Go compares tags too, but its pulls say TAG whatever its subscription is. Node.js
    (ali-ons, which calls itself a Java client of version 121) accepts messages without a tag.
    """
    if flags & FLAG_CLASS_FILTER or expression_type not in (None, "", "TAG"):
        return False
    language = request.language
    return language == "CPP" or (language == "JAVA" and request.version >= V4_0_0)
