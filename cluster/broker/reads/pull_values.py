"""One pull, from the wish of a consumer to its answer. Values alone: `cluster.broker.pulls.pull_service` decides."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, auto
from typing import NamedTuple, Protocol

from cluster.broker.filters.subscription import Expression, MessageFilter
from cluster.broker.refusal import Refused
from cluster.broker.services import Client
from cluster.runtime.room import Share
from cluster.runtime.turns.untracked import Untracked
from statemachine.topics import TopicConfig

MESSAGES_MAX = 1024
BYTES_DEFAULT = 256 << 10
BYTES_MAX = 8 << 20
"""Bytes of an answer's messages; half of the frame that clients accept."""
SUSPEND_MS_MAX = 60_000


class PullWish(NamedTuple):
    """The wish of a consumer in its own words: checked against topics and groups by `Pulls`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    messages_max: int
    bytes_max: int
    """Bytes of messages; 0 or less: BYTES_DEFAULT."""
    suspend_ms: int
    """Milliseconds that it may wait for messages; 0: it is answered at once."""
    commit_offset: int
    """Committed along the way; -1: none."""
    expression: Expression | None
    """Which messages; None: those that the group's newest subscription names."""
    subscription_version: int
    """The consumer's clock when it subscribed, if there is no `expression`."""
    compares_tags: Callable[[], bool]
    """The client drops what does not fit its tags by itself."""


class PullOutcome(IntEnum):
    """The outcome of a pull that was not refused."""

    FOUND = auto()
    NOT_MATCHED = auto()
    """Messages that the consumer does not want were passed over: it is to go on at once."""
    NOTHING = auto()
    """There was nothing until now."""
    MOVED = auto()
    """The offset is outside the queue: the consumer is to overwrite it with `next_offset`."""
    BUSY = auto()
    """This node does not serve the pull now; `remark` says why."""


class ForMany:
    """Keeps what a protocol has made of an answer for the first of the pulls that get it."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: object = None
        """None: nothing yet."""

    def keep(self, made: object) -> None:
        """Keeps it for the others."""
        self.made = made


class PullAnswer(NamedTuple):
    """The answer to a pull."""

    outcome: PullOutcome
    remark: str
    """RocketMQ's GetMessageStatus; why, if BUSY."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: str
    """Broker id that the consumer should ask next."""
    labels: dict[str, str]
    """The words of a follower about its staleness (`cluster.replication.follower_reads`)."""
    body: bytes = b""
    """Stored messages, one behind the other."""
    messages: int = 0
    """The number of these; 0 also if damage has cut them short."""
    for_many: ForMany | None = None
    """None: one pull gets it."""


class Puller(Protocol):
    """A consumer that waits for the answer to one pull. Exactly one of `answered` and `refused` is called, at most
    once; neither if `elsewhere` or `to_leader` said yes."""

    @property
    def client(self) -> Client:
        """The client whose connection the pull came over."""

    @property
    def user(self) -> int:
        """Id of the user who asked; 0: nobody was asked for one."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept of the request until it is answered."""

    def hold(self) -> None:
        """It is parked for the first time."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if an answer of `size` bytes may be made now. If not, `again` is called once when it may, unless
        the client is gone by then."""

    def elsewhere(self, position: int) -> bool:
        """Has another node answer if this one lacks the log at `position`. False: this node has it."""

    def to_leader(self) -> bool:
        """Has the leader answer, if another node leads. False: this node has to."""

    def answered(self, answer: PullAnswer) -> None:
        """Tells the consumer."""

    def refused(self, refused: Refused) -> None:
        """Tells the consumer why not."""


class Pull(Untracked):
    """One pull as long as it is unanswered. Tables of what it waits for refer to it, and let go of it."""

    puller: Puller
    group: str
    topic: str
    topic_id: int
    queue_id: int
    wanted: MessageFilter
    """None: all messages."""
    offset: int
    """The offset at which to go on; a held pull with a filter moves past what did not match."""
    messages_max: int
    bytes_max: int
    suspend_ms: int
    deadline_ms: int = 0
    held: bool = False
    """It was parked once: what does not match its filter no longer ends it."""
    here: bool = False
    """The tier did not answer it: this node's log does, whatever `tier.read` says."""
    parked: bool = False
    judged: int = 0
    """The number of changes of users and rules after which it was judged last."""
    wave: int = 0
    """Which wake it waits for: of those that are under way, it is part of the earlier ones no more."""
    kept: Share | None = None
    """The room that it takes while it is parked, if it is a large one."""
    slot: int = 0
    repair_tries: int = 0
    """So often its first message could not be read intact."""


def pull_of(puller: Puller, wish: PullWish, topic: TopicConfig, wanted: MessageFilter) -> Pull:
    """Returns the pull that a consumer asks for, within bounds."""
    return Pull(
        puller,
        wish.group,
        topic.name,
        topic.id,
        wish.queue_id,
        wanted,
        wish.offset,
        min(max(wish.messages_max, 1), MESSAGES_MAX),
        min(wish.bytes_max if wish.bytes_max > 0 else BYTES_DEFAULT, BYTES_MAX),
        min(wish.suspend_ms, SUSPEND_MS_MAX),
    )
