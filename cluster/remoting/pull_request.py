"""One pull, from its request until it is answered."""

from __future__ import annotations

from cluster.broker.subscription import TagFilter
from cluster.remoting.fields import integer
from cluster.remoting.request import Request
from cluster.runtime.room import Share
from statemachine.topics import TopicConfig

FLAG_SUSPEND = 2

MESSAGES_MAX = 1024
BYTES_DEFAULT = 256 << 10
BYTES_MAX = 8 << 20
"""A reply's body; half of the frame that clients accept."""
SUSPEND_MS_MAX = 60_000


FLAG_CLASS_FILTER = 8
"""Bit of a pull's sysFlag: a class of the user's is to filter at the broker."""
V4_0_0 = 212
"""Protocol version of the first RocketMQ under Apache (MQVersion.V4_0_0_SNAPSHOT)."""


def compares_tags(request: Request, flags: int) -> bool:
    """Whether the client drops what does not fit the tags of its subscription, whatever it is sent.

    Java does, and C++ (both in PullAPIWrapper), but not for a class filter, nor for anything else than tags; C++ knows
    nothing else and names no type. Go compares tags, too, but its pulls say TAG whatever it subscribed by. Node.js
    (ali-ons, which calls itself a Java client of version 121) lets messages without a tag through.
    """
    if flags & FLAG_CLASS_FILTER or request.ext.get("expressionType") not in (None, "", "TAG"):
        return False
    return request.language == "CPP" or (request.language == "JAVA" and request.version >= V4_0_0)


class Pull:
    """One pull as long as it is unanswered."""

    __slots__ = (
        "bytes_max",
        "deadline_ms",
        "group",
        "held",
        "kept",
        "messages_max",
        "offset",
        "parked",
        "queue_id",
        "repair_tries",
        "request",
        "slot",
        "suspend_ms",
        "tags",
        "topic",
        "topic_id",
    )

    def __init__(self, request: Request, topic: TopicConfig, queue_id: int, tags: TagFilter, flags: int) -> None:
        """Raises Refused (29) if a number is missing."""
        self.request = request
        self.group = request.ext.get("consumerGroup", "")
        self.topic = topic.name
        self.topic_id = topic.id
        self.queue_id = queue_id
        self.tags = tags
        self.offset = integer(request, "queueOffset")
        """Where to go on; a held pull with a filter moves past what did not match."""
        self.messages_max = min(max(integer(request, "maxMsgNums"), 1), MESSAGES_MAX)
        wanted_bytes = integer(request, "maxMsgBytes", BYTES_DEFAULT)
        self.bytes_max = min(wanted_bytes if wanted_bytes > 0 else BYTES_DEFAULT, BYTES_MAX)
        suspend_ms = integer(request, "suspendTimeoutMillis", 0) if flags & FLAG_SUSPEND else 0
        self.suspend_ms = min(suspend_ms, SUSPEND_MS_MAX)
        self.deadline_ms = 0
        self.held = False
        """It was parked once: what does not match its filter no longer ends it."""
        self.parked = False
        self.kept: Share | None = None
        """The room that it takes while it is parked, if it is a large one."""
        self.slot = 0
        self.repair_tries = 0
        """So often its first message could not be read intact."""
