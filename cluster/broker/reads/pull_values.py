"""Defines the values of one pull, from the consumer's request to its answer. `cluster.broker.pulls.pull_service`
answers the pulls."""

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
"""The most bytes of messages in an answer: half of the largest frame that clients accept."""
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
    """The selection of messages; None for that of the group's newest subscription."""
    subscription_version: int
    """The consumer's clock when it subscribed, if there is no `expression`."""
    counted_in: str | None
    """The identity of the topic in which the offset counts; None if the consumer does not say."""
    compares_tags: Callable[[], bool]
    """Returns True if the client itself drops messages without its tags."""


class PullOutcome(IntEnum):
    """The outcome of a pull that was not refused."""

    FOUND = auto()
    NOT_MATCHED = auto()
    """All messages that were looked at were skipped, because the consumer does not want them. It continues at once at
    `next_offset`."""
    NOTHING = auto()
    """No message has come until now."""
    MOVED = auto()
    """The offset is outside the queue, or was reset: the consumer must replace it by `next_offset`."""
    BUSY = auto()
    """This node does not serve the pull now; `remark` says why."""


class ForMany:
    """Keeps the encoded form of an answer that several equal pulls get, so that it is encoded once."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: object = None
        """The encoded answer; None if nothing was encoded yet."""

    def keep(self, made: object) -> None:
        """Keeps the encoded answer for the other pulls."""
        self.made = made


class PullAnswer(NamedTuple):
    """The answer to a pull that was not refused."""

    outcome: PullOutcome
    remark: str
    """RocketMQ's GetMessageStatus as text; for BUSY the reason."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: str
    """The broker id that the consumer should ask next."""
    labels: dict[str, str]
    """Name -> value of the fields by which a follower says how stale it may be (`cluster.replication.follower_reads`);
    empty on the leader."""
    body: bytes = b""
    """Stored messages, back to back."""
    messages: int = 0
    """The number of messages in `body`; 0 also if unreadable messages have cut it short."""
    for_many: ForMany | None = None
    """The object that keeps the encoded form if several pulls get this answer; None otherwise."""


class Puller(Protocol):
    """A consumer that waits for the answer to one pull. The broker calls `answered` or `refused` once. It calls neither
    if the client has disconnected, or if `elsewhere` or `to_leader` returned True."""

    @property
    def client(self) -> Client:
        """The client over whose connection the pull came."""

    @property
    def user(self) -> int:
        """The id of the user who signed the request; 0 if none is proven."""

    @property
    def judged(self) -> int:
        """The version of users and rules by which the request was judged; 0 if it was not judged."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the request that are kept until it is answered."""

    def hold(self) -> None:
        """Marks the pull as parked. Called when it is parked for the first time."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if there is memory for an answer of `size` bytes now. If not, `again` is called once when there
        is, unless the client has disconnected by then."""

    def elsewhere(self, position: int) -> bool:
        """Passes the pull to another node and returns True if this node lacks the log at `position`. Returns False if
        this node has it."""

    def to_leader(self) -> bool:
        """Passes the pull to the leader and returns True if another node leads. Returns False if this node must
        answer."""

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
    """The filter by which messages are selected; None for all messages."""
    offset: int
    """The queue offset at which to continue. While a pull with a filter is parked, it advances past messages that do
    not match."""
    messages_max: int
    bytes_max: int
    suspend_ms: int
    judged: int
    """The version of users and rules by which the pull was last judged."""
    deadline_ms: int = 0
    held: bool = False
    """True once the pull was parked. From then on, messages that do not match its filter do not end its wait."""
    here: bool = False
    """True if the tier was asked and did not answer. The messages are then read from this node's log, whatever
    `tier.read` says."""
    parked: bool = False
    wave: int = 0
    """The number of the wake that may serve the pull. Earlier wakes that are still in progress skip it."""
    kept: Share | None = None
    """The memory that is counted for the pull while it is parked; None unless it is a large one."""
    slot: int = 0
    paced: bool = False
    """True while the pull waits for its quota. It is then not woken by messages in its queue."""
    line: OrderedDict[Pull, None] | None = None
    """The line of pulls in which it waits for its quota while it is parked; None otherwise."""
    brief: bool = False
    """True if the client does not wait for messages, and the pull waits for its quota nevertheless."""
    whole: tuple[int, int] | None = None
    """(most messages, most bytes) that the client asked for; None unless a quota limits the pull, which may then get
    less."""
    repair_tries: int = 0
    """The number of times that the pull was tried again because its first message could not be read intact, or because
    its rows had just been trimmed."""


def leave_line(pull: Pull) -> None:
    """Removes the pull from the line in which it waits for its quota, if it is in one."""
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
