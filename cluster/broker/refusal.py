"""Defines the error by which the broker refuses a request. The broker's services and the servers of the protocols
refuse requests with no other error."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from cluster.replication.outcome import Outcome

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.flow.gate import Gate, Over
    from cluster.replication.outcome import ProposeResult


class Reason(Enum):
    """The kind of a refusal, by what a client can do about it. Each protocol has one table that maps these to its own
    codes."""

    INVALID = auto()
    """The request itself is wrong: repeating it leads to the same refusal."""
    MESSAGE_ILLEGAL = auto()
    """A message, or one of a batch, cannot be stored as it is."""
    NO_PERMISSION = auto()
    NO_TOPIC = auto()
    NO_QUEUE = auto()
    """The topic has no such queue, and never had."""
    NO_GROUP = auto()
    NO_CONSUMER = auto()
    """No client that could answer the request, such as a consumer of the group, is connected."""
    NO_SUBSCRIPTION = auto()
    STALE_SUBSCRIPTION = auto()
    """The subscription known on this node is older than the client's."""
    BAD_SUBSCRIPTION = auto()
    ILLEGAL = auto()
    """The state of the object does not allow the request, now or any more. Repeating it leads to the same refusal."""
    NOT_FOUND = auto()
    """There is no such message, offset or user."""
    BUSY = auto()
    """A limit is reached, or this node may not serve the request. Another node may serve it, or this one later."""
    LIMITED = auto()
    """The request's owner is over a quota. No node takes the request now, and any may later."""
    UNAVAILABLE = auto()
    """Nothing was done, and the request may be tried again on any node."""
    ERROR = auto()
    """This node failed to carry out the request."""
    UNKNOWN = auto()
    """A write was proposed, or may have been, and its outcome is undecided: it may still be applied."""


class Refused(Exception):
    """Ends a request with a reason and a remark for the client. Unless the reason is UNKNOWN, nothing was changed."""

    def __init__(self, reason: Reason, remark: str, *, counted: bool = False, again_ms: int = 0) -> None:
        """`counted`: True if the metric of refused requests has counted this one already. `again_ms`: milliseconds
        after which the request may be accepted, if that is known."""
        super().__init__(remark)
        self.reason = reason
        self.remark = remark
        self.counted = counted
        self.again_ms = again_ms


class NotTaken(Refused):
    """Raised if this node's state says that the topic does not accept the message. The state of a former leader may be
    outdated."""


def no_such_queue(queue: int, topic: str, queues: int) -> str:
    """Returns the remark for a send to a queue that the topic does not have in this group of brokers. `queues`: the
    number of queues that it has."""
    has = f"{queues} queues" if queues else "no queues in this group of brokers; ask for its route again"
    return f"request queueId[{queue}] is illegal, topic {topic} has {has}"


def over_limit(gate: Gate, over: Over) -> Refused:
    """Returns the refusal of a request that the gate does not accept, for the reason `over`, and counts it."""
    gate.refused(over)
    return Refused(Reason.BUSY, over.remark, counted=True)


def not_written(
    outcome: Outcome, remark: str, *, fail: str = "no leader took it", unknown: str = "proposed and undecided"
) -> Refused:
    """Returns the refusal for a write whose outcome is not OK. `fail` and `unknown` are the remarks for these outcomes
    if `remark` is empty."""
    if outcome is Outcome.FAIL:
        return Refused(Reason.UNAVAILABLE, remark or fail)
    return Refused(Reason.UNKNOWN, remark or unknown)


def when_confirmed(services: Services, act: Callable[[], None], refuse: Callable[[Refused], None]) -> None:
    """Calls `act` once reads of the applied state are linearizable. Calls `refuse` with a Refused (UNAVAILABLE) if no
    leader confirms this, or with a Refused that `act` raises."""

    def confirmed(ok: bool) -> None:
        try:
            if not ok:
                raise Refused(Reason.UNAVAILABLE, "no leader confirmed the read; try again")
            act()
        except Refused as refused:
            refuse(refused)

    services.read_index(confirmed)


def when_decided(services: Services, act: Callable[[], None], refuse: Callable[[Refused], None]) -> None:
    """Calls `act` once everything that this leader has proposed so far is applied. Calls `refuse` with the reason if
    that cannot be known, or with a Refused that `act` raises."""

    def decided(result: ProposeResult) -> None:
        try:
            if result.outcome is not Outcome.OK:
                raise not_written(result.outcome, "", fail="the message was lost with its leader; nothing was done")
            act()
        except Refused as refused:
            refuse(refused)

    services.propose([], decided)
