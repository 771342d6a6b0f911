"""The values of one pull, from the consumer's request to its answer. `cluster.broker.pulls.pull_service` makes the
decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum, auto
from typing import NamedTuple, Protocol

from cluster.broker.filters.subscription import Expression, MessageFilter
from cluster.broker.refusal import Refused
from cluster.broker.services import Client
from cluster.runtime.resource_budget import Share
from cluster.runtime.turns.garbage_collection import Untracked
from statemachine.topics.topics import TopicConfig

MESSAGES_MAX = 1024
BYTES_DEFAULT = 256 << 10
BYTES_MAX = 8 << 20
"""The most bytes of messages in an answer: half of the frame that clients accept."""
SUSPEND_MS_MAX = 60_000


class PullRequest(NamedTuple):
    """A consumer's request, decoded and not yet checked. `Pulls` checks it against topics and groups."""

    group: str
    topic: str
    queue_id: int
    offset: int
    messages_max: int
    bytes_max: int
    """The most bytes of messages; 0 or less stands for BYTES_DEFAULT."""
    suspend_ms: int
    """Milliseconds that the pull may wait for messages; 0 for an answer at once."""
    commit_offset: int
    """The offset to commit; -1 for none."""
    expression: Expression | None
    """The selection of messages; None for the one in the group's newest subscription."""
    subscription_version: int
    """The consumer's clock when it subscribed, if there is no `expression`."""
    counted_in: str | None
    """The identity of the topic in which the offset counts; None if the consumer does not say."""
    compares_tags: Callable[[], bool]
    """True if the client itself drops messages that do not have its tags."""


class PullOutcome(IntEnum):
    """The outcome of a pull that was not refused."""

    FOUND = auto()
    NOT_MATCHED = auto()
    """Messages that the consumer does not want were skipped: it continues at once."""
    NOTHING = auto()
    """There was no message until now."""
    MOVED = auto()
    """The offset is outside the queue: the consumer must replace it by `next_offset`."""
    BUSY = auto()
    """This node does not serve the pull now; `remark` gives the reason."""


class ForMany:
    """Keeps the encoded answer that a protocol made for the first of several equal pulls."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: object = None
        """The encoded answer; None if nothing was encoded yet."""

    def keep(self, made: object) -> None:
        """Keeps an encoded answer for the other pulls."""
        self.made = made


class PullAnswer(NamedTuple):
    """The answer to a pull."""

    outcome: PullOutcome
    remark: str
    """RocketMQ's GetMessageStatus; for BUSY the reason."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: str
    """The broker id that the consumer should ask next."""
    labels: dict[str, str]
    """A follower's words about its staleness (`cluster.replication.follower_reads`)."""
    body: bytes = b""
    """Stored messages, back to back."""
    messages: int = 0
    """The number of messages in `body`; 0 also if damage has cut them short."""
    for_many: ForMany | None = None
    """The value that several equal pulls share; None if a single pull gets the answer."""


class Puller(Protocol):
    """A consumer that waits for the answer to one pull. Exactly one of `answered` and `refused` is called, at most
    once; neither if `elsewhere` or `to_leader` returned True."""

    @property
    def client(self) -> Client:
        """The client over whose connection the pull came."""

    @property
    def user(self) -> int:
        """Id of the user who asked; 0 if the request needed no user."""

    @property
    def judged(self) -> int:
        """The version of users and rules by which the request was judged; 0: it was not."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the request that are kept until it is answered."""

    def hold(self) -> None:
        """Marks the pull as parked. Called when it is parked for the first time."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if there is memory for an answer of `size` bytes now. Otherwise `again` is called once when
        there is, unless the client has disconnected by then."""

    def elsewhere(self, position: int) -> bool:
        """Lets another node answer if this one lacks the log at `position`. Returns False if this node has it."""

    def to_leader(self) -> bool:
        """Lets the leader answer if another node leads. Returns False if this node must answer."""

    def answered(self, answer: PullAnswer) -> None:
        """Sends the answer to the consumer."""

    def refused(self, refused: Refused) -> None:
        """Sends the refusal to the consumer."""


class Pull(Untracked):
    """One pull until it is answered. The tables of long polls and searches refer to it, and drop it afterwards."""

    puller: Puller
    group: str
    topic: str
    topic_id: int
    queue_id: int
    wanted: MessageFilter
    """The filter; None for all messages."""
    offset: int
    """The offset at which to continue. A parked pull with a filter moves past messages that did not match."""
    messages_max: int
    bytes_max: int
    suspend_ms: int
    judged: int
    """The version of users and rules by which it was judged last."""
    deadline_ms: int = 0
    held: bool = False
    """True once it was parked: messages that do not match its filter no longer end it."""
    here: bool = False
    """True if the tier did not answer it: it is then read from this node's log, whatever `tier.read` says."""
    parked: bool = False
    wave: int = 0
    """The number of the wake for which it waits. Earlier wakes that are still under way skip it."""
    kept: Share | None = None
    """The room that it takes while it is parked, if it is a large one."""
    slot: int = 0
    paced: bool = False
    """True while it waits for its quota: what comes to its queue does not wake it."""
    line: OrderedDict[Pull, None] | None = None
    """The line in which it waits for its quota, while it is parked."""
    brief: bool = False
    """True if it would not wait for messages, and waits for its quota nevertheless."""
    whole: tuple[int, int] | None = None
    """The most messages and bytes that were asked for, where a quota may leave less."""
    repair_tries: int = 0
    """The number of times that its first message could not be read intact."""


def leave_line(pull: Pull) -> None:
    """Removes the pull from the queue of those that wait for their quota, if it is in one."""
    if pull.line is not None:
        del pull.line[pull]
        pull.line = None


def pull_of(puller: Puller, asked: PullRequest, topic: TopicConfig, wanted: MessageFilter) -> Pull:
    """Returns the Pull for a consumer's request, with its limits within bounds."""
    return Pull(
        puller,
        asked.group,
        topic.name,
        topic.id,
        asked.queue_id,
        wanted,
        asked.offset,
        min(max(asked.messages_max, 1), MESSAGES_MAX),
        min(asked.bytes_max if asked.bytes_max > 0 else BYTES_DEFAULT, BYTES_MAX),
        min(asked.suspend_ms, SUSPEND_MS_MAX),
        puller.judged,
    )
