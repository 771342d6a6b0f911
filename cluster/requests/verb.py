"""Defines the verb: a kind of request that clients may make, with all its properties except for its handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.request_limits import OTHER_BODY_BYTES_MAX
from statemachine.access.rules import Need

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from statemachine.broker_state import BrokerState

Ext = Mapping[str, str]
NamedRights = Callable[[Ext, bytes, str], Iterator[Need]]
"""(fields, body, name of the cluster) -> the rights on what the request names."""
Size = Callable[["BrokerState", "LimitsSection"], int]
"""Returns the estimated bytes of an answer that would be made now, for the broker's state and the configured limits."""


class Serves(Enum):
    """The nodes that answer a request. The HTTP API shows the values."""

    ANY = "this node, from its own state"
    READ = "this node; with ?consistency=linearizable the leader, after a majority confirmed that it leads"
    IF_KNOWN = "any node that has the topic; the leader alone says that there is none"
    OWN_ROWS = "any node whose rows are right and whose log is whole; else the leader"
    PULLS = "any node that has the messages; a pull that waits looks again when it is woken"
    MEMBER = "the node with that id; another one passes the request on"
    LEADER = "the leader; a follower passes the request on"
    LEADER_ALONE = "the leader; a follower says which node leads, because the body has a secret"
    CONFIRMED = "the leader, once a majority has confirmed that it leads"

    @property
    def is_leader(self) -> bool:
        """True if no node but the leader answers."""
        return self in (Serves.LEADER, Serves.LEADER_ALONE, Serves.CONFIRMED)


class Repeats(Enum):
    """Says whether a request is sent to the next leader if its leader is lost after it has received the request and
    before it has answered."""

    FREELY = "it is sent again: a second time it does nothing else than the first"
    RECOGNISED = "it is sent again: the log recognises the repetition"
    HARMS_LESS = "it is sent again: a second copy of a message does less harm than none"
    ONE_TRY = "it is not sent again, because the log cannot recognise it: a second time it could undo a later one"


class Cost(Enum):
    """The number of requests of a kind that may run at once."""

    SMALL = "any number"
    READS_MUCH = "some of all askers, fewer of one"
    WRITES_MUCH = "one: it writes a row for each queue of a topic, and no entry may take long to apply"


class Stated(Enum):
    """Says what the node that forwards a request tells the leader about the request's sender. Only the forwarding node
    knows that, because it holds the sender's connection."""

    NOTHING = "nothing"
    CLIENTS = "the clients that the connection's heartbeats named for the group"
    STANDING = "what the connection's heartbeats said of the client that the request names"


class Stage(StrEnum):
    """The stage in which a request without a log entry spends its time, as the slow log names it."""

    READ = "read"
    CONFIRM = "confirm"
    CLIENT = "client"


class Verb(NamedTuple):
    """The properties of one kind of request, without its handler. `cluster.requests.table` has all rows."""

    code: int
    """RocketMQ's request code, or one of RaftMQ's own. RaftMQ's begin at 700,000, because RocketMQ may give any smaller
    number a meaning in its next release."""
    name: str
    """The name of the code, as RocketMQ spells it if the code is RocketMQ's."""
    names: NamedRights | None
    """The function that yields the rights that the sender needs, from what the request names
    (`cluster.requests.named_rights`). None if only a Super (an administrator) may make the request, whatever
    `auth.mode` says."""
    page: str
    """The description of the request and its answer in docs/wire-protocol.md. `{fields}` stands for the fields,
    `[name]` becomes a link to the page of that name."""
    fields: str = ""
    """The names of the request's fields. A mandatory field has a "!"."""
    stored: str = ""
    """The rights that the handler checks after it has found what is stored (`cluster.broker.rights`), in words for
    docs/access-table.md. "" if the rights on the names in the request are enough."""
    is_administrative: bool = False
    """True if administrators use the request to change topics, groups or offsets; False for requests of producers and
    consumers."""
    serves: Serves = Serves.ANY
    settles: str = ""
    """The field that names the consumer group whose offsets the request reads, with `Serves.CONFIRMED`. The leader
    waits until every earlier commit of that group is applied or lost before it answers. Otherwise a group that has just
    caught up would seem behind. A consumer that takes a queue over would also read messages again which the former
    owner had committed without waiting for an answer. "" if the request reads no offsets."""
    may_hand_over: bool = False
    """True if the handler may find that another node has to answer. The request is therefore kept in its encoded form,
    so that it can be forwarded."""
    stated: Stated = Stated.NOTHING
    in_line: bool = False
    """True if the request reaches the leader in the order in which its connection sent it. A query does if it must see
    the writes before it."""
    repeats: Repeats = Repeats.FREELY
    is_kept: bool = False
    """True if the request is kept until a leader has confirmed it, even if its client waits for no answer."""
    is_silent: bool = False
    """True if the request gets no answer when its deadline passes, because clients misread any error."""
    is_send: bool = False
    """True for requests that send messages. They are not dispatched to a handler of the table."""
    body_bytes_max: int | None = OTHER_BODY_BYTES_MAX
    """The most bytes of the body; 0 if the request has no body. None if the handler checks the size, as for messages. A
    code of RocketMQ keeps the default if RocketMQ's clients may send a body that nobody reads."""
    cost: Cost = Cost.SMALL
    answer_bytes: Size | None = None
    """The estimate of an answer that may be much larger than the request; None if the answer is small. That much memory
    is reserved before anything is read. Pulls are None too: they reserve memory themselves, by a better estimate."""
    asks_client: bool = False
    """True if the answer waits for an answer of another client."""

    @property
    def is_for_administrators(self) -> bool:
        """True if only a Super may make the request, or if administrators use it to change topics, groups or
        offsets."""
        return self.is_administrative or self.names is None

    @property
    def is_write(self) -> bool:
        """True if the request's outcome is unknown when the leader that had received it is lost."""
        return self.repeats is not Repeats.FREELY

    @property
    def stage(self) -> Stage:
        """The stage in which the request spends its time, unless it makes a log entry."""
        if self.serves is Serves.CONFIRMED:
            return Stage.CONFIRM
        return Stage.CLIENT if self.asks_client else Stage.READ
