"""Passes a request to the leader if its handler could not answer it because this node does not lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.remoting.forward.forwarded_path import ForwardedPath
from cluster.remoting.request import Request
from cluster.runtime.resource_budget import Share


class PassOn(Protocol):
    """The type of `cluster.remoting.forward.forwarder.Forwarder.forward`, which sends a request on to the leader."""

    def __call__(self, frame: Frame, promised: Share | None = None) -> None: ...


class Handover:
    """Forwards requests that their handlers have not carried out to the leader. The router keeps their frames
    (`Request.may_come_back`)."""

    def __init__(self, pass_on: PassOn, leads: Callable[[], bool]) -> None:
        """`pass_on` forwards a request that a client sent to this node, not one that another node forwarded to it.
        `leads` returns True if this node leads and its writes are open."""
        self._pass_on = pass_on
        self._leads = leads

    def to_leader(self, request: Request) -> bool:
        """Forwards the request to the leader. Returns True if another node now answers it. Returns False if this node
        leads or cannot forward it; the handler must then answer."""
        if not isinstance(request, RemotingRequest) or request.received is None or self._leads():
            return False
        frame, promised = request.received, request.given_away()
        if not isinstance(frame.path, ForwardedPath):
            self._pass_on(frame, promised)
            return True
        if promised is not None:
            promised.hold(0)
            frame.path.room_given_back()
        frame.path.hand_back()  # the request was forwarded by another node, which forwards it to the next leader
        return True
