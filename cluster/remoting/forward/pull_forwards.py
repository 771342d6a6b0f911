"""Forwards pulls that this node cannot answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.remoting.connection.remoting_request import RemotingRequest

if TYPE_CHECKING:
    from cluster.remoting.forward.forwarder import Forwarder
    from cluster.remoting.request import Request


class PullForwards:
    """Forwards pulls that this node cannot answer to another node."""

    def __init__(self, forwarder: Forwarder, leads: Callable[[], bool], log_begins: Callable[[], int]) -> None:
        """`leads` returns True if this node leads and its writes are open. `log_begins` is explained at
        `cluster.remoting.router.Router`."""
        self._forwarder = forwarder
        self._leads = leads
        self._log_begins = log_begins

    def elsewhere(self, request: Request, position: int) -> bool:
        """Forwards a pull to the leader, which has the whole log, if this node lacks the log at `position`. Returns
        True if the pull was forwarded."""
        # Only a node with an incomplete log keeps the received frame.
        held = isinstance(request, RemotingRequest) and request.received is not None
        return held and position < self._log_begins() and self.to_leader(request)

    def to_leader(self, request: Request) -> bool:
        """Forwards a pull that only the leader can answer, unless this node leads. Returns True if the pull was
        forwarded."""
        if not isinstance(request, RemotingRequest) or request.received is None or self._leads():
            return False
        self._forwarder.forward(request.received)
        return True
