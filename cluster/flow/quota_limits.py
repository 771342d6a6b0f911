"""The table of the limits that a quota may have. The HTTP API, the command line and all texts take the limits from it.

A quota in the replicated state may have a limit of a later version. Nodes that do not know that limit ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from statemachine.access.quotas import Subject

LIMIT_MAX: Final = 10**15
"""The largest value that a limit may have."""


@unique
class Per(StrEnum):
    """The quantity that a limit bounds: a rate (things in a second or a minute), or an amount (under way at once, or
    kept in the queues). The value is the text for people."""

    SECOND = "a second"
    MINUTE = "a minute"
    AT_ONCE = "at once"
    KEPT = "in its queues"


@unique
class Shape(StrEnum):
    """The kinds of subjects that a quota may have. The value shows how such a subject is written."""

    USER = "user=NAME"
    USER_AND_TOPIC = "user=NAME,topic=NAME"
    ADDRESS = "address=IP"
    TOPIC = "topic=NAME"


EVERY_SHAPE: Final = frozenset(Shape)
OF_CLIENTS: Final = frozenset({Shape.USER, Shape.ADDRESS})
OF_TOPICS: Final = frozenset({Shape.TOPIC})


class QuotaLimit(NamedTuple):
    """One kind of limit: its name, its texts, and the subjects that may have it."""

    name: str
    """The limit's name in rows and in the HTTP API; the command line writes it with dashes."""
    noun: str
    """The noun for the things that are counted, in the singular."""
    done: str
    """The participle that says what is done to the things ("sent"); "" if the noun says enough."""
    per: Per
    help: str
    """The sentence that explains the limit."""
    shapes: frozenset[Shape] = EVERY_SHAPE
    """The kinds of subjects that may have this limit."""

    def told(self, value: int) -> str:
        """Returns a text for people with the value and the limit, such as "1,000 messages sent a second"."""
        noun = self.noun if value == 1 else f"{self.noun}s"
        return " ".join(word for word in (f"{value:,}", noun, self.done, self.per) if word)

    @property
    def option(self) -> str:
        """The option of the command line that sets this limit."""
        return "--" + self.name.replace("_", "-")


SEND_MESSAGES: Final = "send_messages"
SEND_BYTES: Final = "send_bytes"
PULL_MESSAGES: Final = "pull_messages"
PULL_BYTES: Final = "pull_bytes"
SENDS: Final = (SEND_MESSAGES, SEND_BYTES)
"""The names of the limits on the rate of sends."""
PULLS: Final = (PULL_MESSAGES, PULL_BYTES)
"""The names of the limits on the rate of pulls."""
REQUESTS: Final = "requests"
CONNECTIONS: Final = "connections"
NEW_TOPICS: Final = "new_topics"
NEW_GROUPS: Final = "new_groups"
BACKLOG_BYTES: Final = "backlog_bytes"

LIMITS: Final[Mapping[str, QuotaLimit]] = {
    each.name: each
    for each in (
        QuotaLimit(SEND_MESSAGES, "message", "sent", Per.SECOND, "Messages a second that it may send."),
        QuotaLimit(SEND_BYTES, "byte", "sent", Per.SECOND, "Bytes a second of the requests by which it sends."),
        QuotaLimit(PULL_MESSAGES, "message", "pulled", Per.SECOND, "Messages a second that it may pull."),
        QuotaLimit(PULL_BYTES, "byte", "pulled", Per.SECOND, "Bytes a second of the messages that it pulls."),
        QuotaLimit(REQUESTS, "send", "", Per.AT_ONCE, "Requests that send which it may have under way.", OF_CLIENTS),
        QuotaLimit(CONNECTIONS, "new connection", "", Per.MINUTE, "Connections a minute that it may open.", OF_CLIENTS),
        QuotaLimit(NEW_TOPICS, "new topic", "", Per.MINUTE, "Topics a minute that it may make.", OF_CLIENTS),
        QuotaLimit(NEW_GROUPS, "new group", "", Per.MINUTE, "Consumer groups a minute that it may make.", OF_CLIENTS),
        QuotaLimit(BACKLOG_BYTES, "byte", "", Per.KEPT, "Bytes of messages that it may keep.", OF_TOPICS),
    )
}
"""Name -> limit, for all limits that this version knows."""


def shape_of(subject: Subject) -> Shape:
    """Returns the kind of a quota's subject."""
    if subject.address:
        return Shape.ADDRESS
    if subject.user:
        return Shape.USER_AND_TOPIC if subject.topic else Shape.USER
    return Shape.TOPIC


def misplaced(subject: Subject, limits: Iterable[str]) -> str:
    """Returns the reason why a quota of this subject cannot have all of these limits; "" if it can. `limits`: names,
    all of them in the table."""
    shape = shape_of(subject)
    for name in limits:
        shapes = LIMITS[name].shapes
        if shape not in shapes:
            fit = " and ".join(each for each in Shape if each in shapes)
            return f"{name} cannot be a limit of {subject}: it may be given to {fit}"
    return ""


def told(limits: Mapping[str, int]) -> str:
    """Returns a text for people with all limits and their values. Limits that this version does not know are left
    out."""
    return " and ".join(limit.told(limits[name]) for name, limit in LIMITS.items() if name in limits)
