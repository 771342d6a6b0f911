"""One pull, from its request until it is answered."""

from __future__ import annotations

from cluster.remoting.fields import integer
from cluster.remoting.room import Share
from cluster.remoting.services import Request
from cluster.remoting.subscription import TagFilter
from statemachine.topics import TopicConfig

FLAG_SUSPEND = 2

MESSAGES_MAX = 1024
BYTES_DEFAULT = 256 << 10
BYTES_MAX = 8 << 20
"""A reply's body; half of the frame that clients accept."""
SUSPEND_MS_MAX = 60_000


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
        """Raises Refusal (29) if a number is missing."""
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
