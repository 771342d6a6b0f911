"""One verb: a request that clients may make, with all its properties except for its handler."""

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
"""Estimates the bytes of an answer if it were made now."""


class Serves(Enum):
    """The nodes that answer a request, whatever protocol it came by. The HTTP API shows these words."""

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
    """The treatment of a request whose leader is lost after it has received the request, and before it has answered."""

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
    """A statement of the node that forwards a request about its sender, who is known only there."""

    NOTHING = "nothing"
    CLIENTS = "the clients that the connection's heartbeats named for the group"
    STANDING = "what the connection's heartbeats said of the client that the request names"


class Stage(StrEnum):
    """The stage in which a request that makes no entry spends its time, as the slow log names it."""

    READ = "read"
    CONFIRM = "confirm"
    CLIENT = "client"


class Verb(NamedTuple):
    """One row. `cluster.requests.table` has all of them."""

    code: int
    """RocketMQ's request code, or one of RaftMQ's own. Those begin at 700,000, where RocketMQ has none: any other
    number may get a meaning in its next release."""
    name: str
    """RocketMQ's name of the code."""
    names: NamedRights | None
    """The rights that its sender needs, by what the request names (`cluster.requests.named_rights`); None if only a
    Super (an administrator) may make it, whatever `auth.mode` says."""
    page: str
    """Request and answer, for docs/wire-protocol.md. `{fields}` stands for the fields, `[name]` is a link to the page
    of that name."""
    fields: str = ""
    """The names of its fields, those that must be there with a "!"."""
    stored: str = ""
    """The rights that its handler asks for once it has found what is stored (`cluster.broker.rights`), in words for
    docs/access-table.md; "" if the names in the request say all."""
    is_administrative: bool = False
    """True if administrators, rather than producers and consumers, change topics, groups or offsets by it."""
    serves: Serves = Serves.ANY
    settles: str = ""
    """The field with the name of a group whose offsets it reads, with `Serves.CONFIRMED`: every commit of that group
    that came before is applied or lost first. Else a group that has just caught up would seem behind, and a consumer
    that takes a queue over would read again what the former owner committed without waiting for an answer. "" if it
    reads no offsets."""
    may_hand_over: bool = False
    """True if its handler may find that another node has to answer, so that the request is kept as it came."""
    stated: Stated = Stated.NOTHING
    in_line: bool = False
    """True if it keeps the order of its connection on its way to the leader. A query does if it must see the writes
    before it."""
    repeats: Repeats = Repeats.FREELY
    is_kept: bool = False
    """True if it is kept until a leader has confirmed it, even if its client waits for no answer."""
    is_silent: bool = False
    """True if it is left unanswered at its deadline, because clients misread any error."""
    is_send: bool = False
    """True for sends of messages: they have a way of their own, and no handler in the table."""
    body_bytes_max: int | None = OTHER_BODY_BYTES_MAX
    """The most bytes of its body, 0 if it has none; None if its handler checks that, as for messages. A code of
    RocketMQ keeps the default where its clients may send a body that nobody reads."""
    cost: Cost = Cost.SMALL
    answer_bytes: Size | None = None
    """The size of an answer that may be much larger than the request; None if it is not. So much memory is reserved
    before anything is read. Pulls have a better estimate, and reserve it themselves."""
    asks_client: bool = False
    """True if its answer waits for that of another client."""

    @property
    def is_for_administrators(self) -> bool:
        """True if only a Super may make it, or if it changes topics, groups or offsets."""
        return self.is_administrative or self.names is None

    @property
    def is_write(self) -> bool:
        """True if its outcome is unknown when a leader is lost that had received it."""
        return self.repeats is not Repeats.FREELY

    @property
    def stage(self) -> Stage:
        """The stage in which it spends its time, unless it makes an entry."""
        if self.serves is Serves.CONFIRMED:
            return Stage.CONFIRM
        return Stage.CLIENT if self.asks_client else Stage.READ
