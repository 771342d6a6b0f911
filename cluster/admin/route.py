"""One path of the HTTP API: which node answers, with what, and what the answer may come to."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cluster.admin.call import Handler
from cluster.admin.needs import Needs

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection


class Serves(Enum):
    """Which node may answer."""

    LOCAL = "this node, about itself"
    READ = "this node; with ?consistency=linearizable the leader, after a majority confirmed that it leads"
    LEADER = "the leader; a follower passes the request on"
    LEADER_ALONE = "the leader; a follower says which node leads, because the body has a secret"
    MEMBER = "the node with that id; another one passes the request on"


class Route(NamedTuple):
    """One method of one address."""

    method: str
    path: str
    handler: Handler
    answer: type[msgspec.Struct] | str
    """The Struct of the answer, or the media type of one that is not described by a Struct."""
    cost: Cost
    """The most that one answer has and takes: a page, or CONSTANT for what does not grow with data or clients."""
    needs: Needs
    """The rights that a caller needs."""
    serves: Serves = Serves.LOCAL
    body: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """Status codes of its answers, errors aside."""
    asks: tuple[str, ...] = ()
    """Names of its own that may stand after the question mark."""

    @property
    def query(self) -> tuple[str, ...]:
        """Names that may stand after the question mark."""
        return (*(("consistency",) if self.serves is Serves.READ else ()), *self.asks)

    @property
    def streams(self) -> bool:
        """True if an answer goes on until somebody ends it: it is never in memory as a whole."""
        return self.answer == "text/event-stream"

    @property
    def operation_id(self) -> str:
        """The handler's name."""
        return self.handler.__name__


def documented(route: Route) -> Any:
    """The first line of the handler's docstring."""
    return (route.handler.__doc__ or "").splitlines()[0].rstrip(".")


# What an answer of the HTTP API may come to. Every route says it (`cluster.admin.route`), and the server holds room
# for so much before the handler begins (`cluster.admin.guard`).
#
# A route that grows with what is stored, or with who is connected, answers in pages. A page ends with its
# `items_max`th item, or before the item with which its JSON, after escaping, would be larger than PAGE_BYTES_MAX.

PAGE_BYTES_MAX: Final = 1 << 20
"""JSON of the items of one page, after escaping."""
PAGE_ITEMS_MAX: Final = 1_000
"""Items of one page, unless its route says less."""
CONSTANT_BYTES_MAX: Final = 1 << 20
"""An answer that does not grow is smaller than this, by far; so much is read of one that is passed on."""
ESCAPED: Final = 6
"""Bytes of JSON that one byte of a text may become: \\u0001."""


class Cost(NamedTuple):
    """The most that one answer of a route has and takes."""

    items_max: int
    """Things in the answer of which there may be any number elsewhere; 0: the answer does not grow."""
    bytes_max: Callable[[LimitsSection], int]
    """Memory that the answer takes while it is made and sent, for a route that grows; else 0."""

    @property
    def grows(self) -> bool:
        """True if the answer has more the more is stored or connected."""
        return self.items_max > 0


def page(items_max: int = PAGE_ITEMS_MAX, bytes_max: int = PAGE_BYTES_MAX) -> Cost:
    """Returns the cost of a page."""
    return Cost(items_max, lambda limits: bytes_max)


def messages(items_max: int) -> Cost:
    """Returns the cost of a page of messages, which are read one by one."""
    return Cost(items_max, lambda limits: PAGE_BYTES_MAX + limits.message_bytes_max)


def whole_message(limits: LimitsSection) -> int:
    """Returns the bytes for one message with all of its body."""
    return (1 + ESCAPED) * (limits.message_bytes_max + limits.properties_bytes_max)


CONSTANT: Final = Cost(0, lambda limits: 0)
"""Cost of an answer whose size follows from the configuration and the number of nodes."""
WHOLE_MESSAGE: Final = Cost(1, whole_message)
