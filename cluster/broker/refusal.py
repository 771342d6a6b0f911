"""Why the broker did not do what it was asked: the one error of its services and of the fronts above it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from cluster.replication.outcome import Outcome

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.config.config import LimitsSection
    from cluster.replication.outcome import ReplyTo


class Reason(Enum):
    """The kind of a refusal, by what a client can make of it. Each front has one table from these to its own codes."""

    INVALID = auto()
    """The request itself is wrong: the same again ends the same way."""
    MESSAGE_ILLEGAL = auto()
    """A message, or one of a batch, cannot be stored as it is."""
    NO_PERMISSION = auto()
    NO_TOPIC = auto()
    NO_GROUP = auto()
    NO_CONSUMER = auto()
    """No consumer of the group is connected."""
    NO_SUBSCRIPTION = auto()
    STALE_SUBSCRIPTION = auto()
    """The subscription known here is older than the client's."""
    BAD_SUBSCRIPTION = auto()
    ILLEGAL = auto()
    """The object of the request does not allow it (any more): the same again ends the same way."""
    NOT_FOUND = auto()
    """There is no such message or offset."""
    BUSY = auto()
    """A limit is reached, or this node may not serve: another node, or this one later, may."""
    UNAVAILABLE = auto()
    """Nothing was done, and it may be tried again anywhere."""
    ERROR = auto()
    """This node could not do it."""
    UNKNOWN = auto()
    """A write was proposed, or may have been, and is undecided: it may still be applied."""


class Refused(Exception):
    """Ends a request with a reason and a remark for the client. Unless the reason is UNKNOWN, nothing was changed."""

    def __init__(self, reason: Reason, remark: str) -> None:
        super().__init__(remark)
        self.reason = reason
        self.remark = remark


class NotTaken(Refused):
    """A topic, as this node knows it, does not take the message: a former leader may know a topic of the past."""


def not_written(
    outcome: Outcome, remark: str, *, fail: str = "no leader took it", unknown: str = "proposed and undecided"
) -> Refused:
    """The refusal of a write whose outcome is not OK; `fail` and `unknown` stand in for an empty remark."""
    if outcome is Outcome.FAIL:
        return Refused(Reason.UNAVAILABLE, remark or fail)
    return Refused(Reason.UNKNOWN, remark or unknown)


def when_confirmed(services: Services, act: Callable[[], None], refuse: Callable[[Refused], None]) -> None:
    """Acts once applied state is linearizable. `refuse` is told why it is not, and what `act` raises."""

    def confirmed(ok: bool) -> None:
        try:
            if not ok:
                raise Refused(Reason.UNAVAILABLE, "no leader confirmed the read; try again")
            act()
        except Refused as refused:
            refuse(refused)

    services.read_index(confirmed)


def over_limit(limits: LimitsSection, path: ReplyTo, size: int, node_bytes: int) -> str:
    """Why a request of `size` bytes must not be held now, as a remark for the client; "" if it may be.

    `node_bytes`: what the caller holds for all connections together.
    """
    if path.inflight_bytes + size > limits.connection_inflight_bytes_max:
        name, value, have = "connection", limits.connection_inflight_bytes_max, path.inflight_bytes
    elif node_bytes + size > limits.node_inflight_bytes_max:
        name, value, have = "node", limits.node_inflight_bytes_max, node_bytes
    else:
        return ""
    return (
        f"this {name} has {have} bytes in flight; with {size} more it passes limits.{name}_inflight_bytes_max = {value}"
    )
