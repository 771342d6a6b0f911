"""Figures about requests to clients, as `cluster.broker.client_relay` sends and relays them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter

from cluster.broker.client_request import ClientAnswer
from cluster.broker.refusal import Reason, Refused
from cluster.broker.relay_frame import RelayStatus

if TYPE_CHECKING:
    from cluster.broker.client_request import ClientRequest

_ANSWERED: Final = "answered"
_HANDED_OVER: Final = "handed_over"
_UNANSWERED: Final = "unanswered"
_REFUSED: Final = {Reason.NO_CONSUMER: "absent", Reason.BUSY: "busy", Reason.INVALID: "too_long"}
_TAKEN: Final = {
    RelayStatus.HANDED_OVER: _HANDED_OVER,
    RelayStatus.ABSENT: "absent",
    RelayStatus.BUSY: "busy",
}


class RelayMetrics:
    """Fed per request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._asked = Counter(
            "raftmq_client_requests", "Requests of this node to clients", ["outcome"], registry=registry
        )
        self._relayed = Counter(
            "raftmq_client_requests_relayed", "Times that another node was asked to hand one over", registry=registry
        )
        self._taken = Counter(
            "raftmq_client_requests_taken",
            "Requests to clients that other nodes asked this one to hand over",
            ["outcome"],
            registry=registry,
        )
        for outcome in (_ANSWERED, _HANDED_OVER, _UNANSWERED, *_REFUSED.values()):
            self._asked.labels(outcome)
        for outcome in _TAKEN.values():
            self._taken.labels(outcome)

    def ended(self, request: ClientRequest, outcome: ClientAnswer | Refused) -> None:
        """A request of this node is done with."""
        if isinstance(outcome, ClientAnswer):
            self._asked.labels(_HANDED_OVER if request.oneway else _ANSWERED).inc()
        else:
            self._asked.labels(_REFUSED.get(outcome.reason, _UNANSWERED)).inc()

    def relayed(self) -> None:
        """A frame went to another node."""
        self._relayed.inc()

    def taken(self, status: RelayStatus) -> None:
        """What this node said when it was asked; the answer that follows later does not count again."""
        if status in _TAKEN:
            self._taken.labels(_TAKEN[status]).inc()
