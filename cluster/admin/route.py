"""One path of the HTTP API: which node answers, and with what."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from cluster.admin.call import Handler
from cluster.admin.cost import Cost


class Serves(Enum):
    """Which node may answer."""

    LOCAL = "this node, about itself"
    READ = "this node; with ?consistency=linearizable the leader, after a majority confirmed that it leads"
    LEADER = "the leader; a follower passes the request on"
    MEMBER = "the node with that id; another one passes the request on"


class Route(NamedTuple):
    """One method of one address."""

    method: str
    path: str
    handler: Handler
    answer: type[msgspec.Struct] | str
    """The Struct of the answer, or the media type of one that is not described by a Struct."""
    cost: Cost
    """What one answer has and takes at most: a page, or CONSTANT for what does not grow with data or clients."""
    serves: Serves = Serves.LOCAL
    body: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    """What it answers with, errors aside."""
    asks: tuple[str, ...] = ()
    """Names of its own that may stand after the question mark."""

    @property
    def query(self) -> tuple[str, ...]:
        """Names that may stand after the question mark."""
        return (*(("consistency",) if self.serves is Serves.READ else ()), *self.asks)

    @property
    def streams(self) -> bool:
        """Whether an answer goes on until somebody ends it: it is never in memory as a whole."""
        return self.answer == "text/event-stream"

    @property
    def operation_id(self) -> str:
        """The handler's name."""
        return self.handler.__name__


def documented(route: Route) -> Any:
    """The first line of the handler's docstring."""
    return (route.handler.__doc__ or "").splitlines()[0].rstrip(".")
