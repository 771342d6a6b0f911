"""Describes one path of the HTTP API: which node answers, with what type, and within what limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.admin.handler_request import AdminHandler
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route_rights import Needs
from cluster.requests.table import VERBS
from cluster.requests.verb import Serves

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection


class Route(NamedTuple):
    """One HTTP method of one path: its handler, and the rights, limits and types of its requests and answers."""

    method: str
    path: str
    handler: AdminHandler
    answer: type[msgspec.Struct] | str
    """The Struct of the answer, or the media type if the answer is no Struct."""
    cost: RouteCost
    """The most items and memory of one answer: those of a page, or CONSTANT if the answer does not grow with data or
    clients."""
    needs: Needs
    """The rights that a caller needs."""
    serves: Serves = Serves.ANY
    body: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """Possible HTTP status codes of its answers, besides those of errors."""
    asks: tuple[str, ...] = ()
    """Names of the query parameters of this route alone."""
    because: str = ""
    """The reason why this route is answered by other nodes than its verb (the request code that does the same); "" if
    the same nodes answer both, or if the route has no verb."""

    @classmethod
    def of_verb(
        cls,
        method: str,
        path: str,
        handler: AdminHandler,
        answer: type[msgspec.Struct] | str,
        cost: RouteCost,
        needs: Needs,
        body: type[msgspec.Struct] | None = None,
        statuses: tuple[int, ...] = (200,),
        asks: tuple[str, ...] = (),
        *,
        serves: Serves | None = None,
        because: str = "",
    ) -> Route:
        """Returns a route that does the same as a verb: a request code of the clients' ports. The verb's row decides
        which rights are needed (`needs`, made by `route_rights.of_verb`) and which nodes answer.

        If other nodes are to answer, `serves` says which, and `because` says why. Raises ValueError if `needs` belong
        to no verb; if the verb's row names nodes that only the clients' ports know and `serves` is missing; and if
        `serves` and `because` are not given together.
        """
        verb = VERBS.get(needs.verb)
        if verb is None:
            raise ValueError(f"{method} {path} is the act of no verb: write Route(...)")
        if serves is None and verb.serves not in SERVED:
            raise ValueError(
                f"{method} {path}: request code {verb.code} is answered by {verb.serves.value}; say by whom"
            )
        found = serves or verb.serves
        if (found is not verb.serves) != bool(because) or (serves is verb.serves):
            raise ValueError(f"{method} {path} is answered by {found.value}, its verb by {verb.serves.value}: say why")
        return cls(method, path, handler, answer, cost, needs, found, body, statuses, asks, because)

    @property
    def query(self) -> tuple[str, ...]:
        """Names of all query parameters of this route."""
        consistency = ("consistency",) if self.serves is Serves.READ else ()
        return (*consistency, *self.asks, *((BROKER_GROUP,) if self.of_any_group else ()))

    @property
    def of_any_group(self) -> bool:
        """True if a caller may ask this node for the answer of another group of brokers. False for a stream, because
        two nodes would have to keep it open; for a request with a secret, which is never forwarded; and for a public
        route, whose answer is about the node itself."""
        if self.needs.is_open or self.streams or not self.path.startswith("/v1/"):
            return False
        return self.serves is not Serves.LEADER_ALONE

    @property
    def streams(self) -> bool:
        """True if the answer goes on until the client or the node ends it. Such an answer is never in memory as a
        whole."""
        return self.answer == "text/event-stream"

    @property
    def operation_id(self) -> str:
        """The name of the handler function, which identifies the route in /openapi.json."""
        return self.handler.__name__


SERVED: Final = frozenset(
    {Serves.ANY, Serves.READ, Serves.MEMBER, Serves.LEADER, Serves.LEADER_ALONE, Serves.CONFIRMED}
)
"""The values of `Serves` that a route may have. `cluster.admin.server` finds the nodes that they name."""
CALLER_CHOOSES: Final = "its caller says by ?consistency= how new the answer must be, which a request code cannot ask"
"""The `because` of reads with `Serves.READ`."""
HAS_SECRET: Final = "its body has a secret, and the way between the HTTP ports of two nodes may be plain text"
"""The `because` of routes with `Serves.LEADER_ALONE`."""


def documented(route: Route) -> str:
    """Returns the first line of the handler's docstring, the summary in /openapi.json."""
    return (route.handler.__doc__ or "").splitlines()[0].rstrip(".")


# The limits of an answer of the HTTP API. Every route states its limits (`cluster.admin.route`), and the server
# reserves so much memory before the handler begins (`cluster.admin.resource_limits`).
#
# A route whose answer grows with stored data or connected clients answers in pages. A page ends with its `items_max`th
# item, or before the item with which its JSON, after escaping, would be larger than PAGE_BYTES_MAX.

PAGE_BYTES_MAX: Final = 1 << 20
"""The most bytes of JSON for the items of one page, after escaping."""
PAGE_ITEMS_MAX: Final = 1_000
"""The most items of one page, unless its route has a lower limit."""
CONSTANT_BYTES_MAX: Final = 1 << 20
"""The most bytes of a forwarded answer that does not grow. Such answers are far smaller."""
ESCAPED: Final = 6
"""The most bytes of JSON that one byte of a text may need, as in \\u0001."""


class RouteCost(NamedTuple):
    """The most items and memory of one answer of a route."""

    items_max: int
    """The most items in the part of the answer that grows; 0 if the answer does not grow."""
    bytes_max: Callable[[LimitsSection], int]
    """Returns the bytes of memory that the answer takes while it is made and sent; 0 if the answer does not grow."""

    @property
    def grows(self) -> bool:
        """True if the answer grows with the stored data or connected clients."""
        return self.items_max > 0


def page(items_max: int = PAGE_ITEMS_MAX, bytes_max: int = PAGE_BYTES_MAX) -> RouteCost:
    """Returns the cost of a page with at most `items_max` items and `bytes_max` bytes."""
    return RouteCost(items_max, lambda limits: bytes_max)


def messages(items_max: int) -> RouteCost:
    """Returns the cost of a page of messages. They are read one after the other, so only one is in memory besides the
    page."""
    return RouteCost(items_max, lambda limits: PAGE_BYTES_MAX + limits.message_bytes_max)


def whole_message(limits: LimitsSection) -> int:
    """Returns the most bytes of memory for an answer with one message and its whole body: the message itself, and its
    JSON."""
    return (1 + ESCAPED) * (limits.message_bytes_max + limits.properties_bytes_max)


CONSTANT: Final = RouteCost(0, lambda limits: 0)
"""Cost of an answer whose size depends only on the configuration and the number of nodes."""
WHOLE_MESSAGE: Final = RouteCost(1, whole_message)
