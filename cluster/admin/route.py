"""One path of the HTTP API: the node that answers, the type of the answer, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cluster.admin.handler_request import Handler
from cluster.admin.route_rights import Needs
from cluster.requests.verb import Serves

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection


class Route(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    answer: type[msgspec.Struct] | str
    """The Struct of the answer, or the media type of an answer that no Struct describes."""
    cost: Cost
    """The most items and memory of one answer: a page, or CONSTANT if it does not grow with data or clients."""
    needs: Needs
    """The rights that a caller needs."""
    serves: Serves = Serves.ANY
    body: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """Status codes of its answers, except errors."""
    asks: tuple[str, ...] = ()
    """Names of its own query parameters."""

    @property
    def query(self) -> tuple[str, ...]:
        """Names of all its query parameters."""
        return (*(("consistency",) if self.serves is Serves.READ else ()), *self.asks)

    @property
    def streams(self) -> bool:
        """True if an answer goes on until the client or the node ends it, and is never in memory as a whole."""
        return self.answer == "text/event-stream"

    @property
    def operation_id(self) -> str:
        """The handler's name."""
        return self.handler.__name__


def documented(route: Route) -> Any:
    """Returns the first line of the handler's docstring, the summary in /openapi.json."""
    return (route.handler.__doc__ or "").splitlines()[0].rstrip(".")


# The limits of an answer of the HTTP API. Every route states its limits (`cluster.admin.route`), and the server
# reserves so much memory before the handler begins (`cluster.admin.resource_limits`).
#
# A route whose answer grows with stored data or connected clients answers in pages. A page ends with its `items_max`th
# item, or before the item with which its JSON, after escaping, would be larger than PAGE_BYTES_MAX.

PAGE_BYTES_MAX: Final = 1 << 20
"""The most bytes of JSON of the items of one page, after escaping."""
PAGE_ITEMS_MAX: Final = 1_000
"""The most items of one page, unless its route has a lower limit."""
CONSTANT_BYTES_MAX: Final = 1 << 20
"""Bytes. An answer that does not grow is far smaller; of a forwarded one no more is read."""
ESCAPED: Final = 6
"""The most bytes of JSON that one byte of a text may need: \\u0001."""


class Cost(NamedTuple):
    """The most items and memory of one answer of a route."""

    items_max: int
    """The most items in the answer of which there may be any number; 0 if the answer does not grow."""
    bytes_max: Callable[[LimitsSection], int]
    """Returns the memory that the answer takes while it is made and sent, for a route that grows; else 0."""

    @property
    def grows(self) -> bool:
        """True if the answer grows with the stored data or connected clients."""
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
"""Cost of an answer whose size depends only on the configuration and the number of nodes."""
WHOLE_MESSAGE: Final = Cost(1, whole_message)
