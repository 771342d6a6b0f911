"""The limits that a quota may have: the one table from which requests, commands and texts take them.

Rows of the replicated state may have a limit of a later version; nodes that do not know it ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from statemachine.access.quotas import Subject

LIMIT_MAX: Final = 10**15
"""The largest number of a limit."""


@unique
class Per(StrEnum):
    """The time, or the place, in which a limit counts. The value says it to people."""

    SECOND = "a second"
    MINUTE = "a minute"
    AT_ONCE = "at once"
    KEPT = "in its queues"


@unique
class Shape(StrEnum):
    """The kinds of subjects."""

    USER = "user=NAME"
    USER_AND_TOPIC = "user=NAME,topic=NAME"
    ADDRESS = "address=IP"
    TOPIC = "topic=NAME"


EVERY_SHAPE: Final = frozenset(Shape)
OF_CLIENTS: Final = frozenset({Shape.USER, Shape.ADDRESS})
OF_TOPICS: Final = frozenset({Shape.TOPIC})


class QuotaLimit(NamedTuple):
    """One limit."""

    name: str
    """Its name in rows, in the HTTP API, and with dashes on the command line."""
    noun: str
    """The thing that is counted, one of it."""
    done: str
    """The word for doing it, if that is not said yet."""
    per: Per
    help: str
    """The sentence that explains the limit."""
    shapes: frozenset[Shape] = EVERY_SHAPE
    """The subjects to which it may be given."""

    def told(self, value: int) -> str:
        """Returns the limit with its value, for people."""
        noun = self.noun if value == 1 else f"{self.noun}s"
        return " ".join(word for word in (f"{value:,}", noun, self.done, self.per) if word)

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")


SEND_MESSAGES: Final = "send_messages"
SEND_BYTES: Final = "send_bytes"
PULL_MESSAGES: Final = "pull_messages"
PULL_BYTES: Final = "pull_bytes"
SENDS: Final = (SEND_MESSAGES, SEND_BYTES)
"""The limits of a send."""
PULLS: Final = (PULL_MESSAGES, PULL_BYTES)
"""The limits of a pull."""
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
"""Name -> limit: those that this version knows."""


def shape_of(subject: Subject) -> Shape:
    """Returns the kind of a subject."""
    if subject.address:
        return Shape.ADDRESS
    if subject.user:
        return Shape.USER_AND_TOPIC if subject.topic else Shape.USER
    return Shape.TOPIC


def misplaced(subject: Subject, limits: Iterable[str]) -> str:
    """Returns what is wrong with giving a subject these limits; "" if nothing is. All are in the table."""
    shape = shape_of(subject)
    for name in limits:
        shapes = LIMITS[name].shapes
        if shape not in shapes:
            fit = " and ".join(each for each in Shape if each in shapes)
            return f"{name} cannot be a limit of {subject}: it may be given to {fit}"
    return ""


def told(limits: Mapping[str, int]) -> str:
    """Returns the limits that this version knows, for people."""
    return " and ".join(limit.told(limits[name]) for name, limit in LIMITS.items() if name in limits)
