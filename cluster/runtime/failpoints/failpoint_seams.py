"""Failpoints at the seams of a node that are not files: a lane's drain, and Raft messages to peers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from cluster.runtime.failpoints.failpoints import CallsLater, FailpointSet
from cluster.runtime.lanes import Lane
from raftlog.messages import Message

Job = TypeVar("Job")
Done = TypeVar("Done")

logger = logging.getLogger(__name__)


class SendsMessages(Protocol):
    """The driver's MessageSender."""

    def send(self, messages: Iterable[Message]) -> None:
        """Queues messages."""


class FailpointLane(Generic[Job, Done]):
    """A Lane whose drains pass through a point: `apply.batch` over the apply lane."""

    def __init__(self, inner: Lane[Job, Done], points: FailpointSet, point: str) -> None:
        self._inner = inner
        self._points = points
        self._point = point
        self.idle_after_s: float | None = inner.idle_after_s
        if hasattr(inner, "weigh"):  # see `lanes.room_of`
            self.weigh, self.weight_max = inner.weigh, inner.weight_max  # type: ignore[attr-defined]

    def drain(self, batch: Sequence[Job]) -> Done:
        """Does the batch when the failpoint lets it pass. `error` is raised, which is final for the node."""
        return self._points.run(self._point, lambda: self._inner.drain(batch))

    def idle(self) -> None:
        """Tells the lane that nothing came for `idle_after_s`."""
        self._inner.idle()


class FailpointTransport:
    """A MessageSender whose messages pass through `peer.send`; with `error` they are lost, as on any network."""

    def __init__(self, inner: SendsMessages, points: FailpointSet, loop: CallsLater) -> None:
        self._inner = inner
        self._points = points
        self._loop = loop

    def send(self, messages: Iterable[Message]) -> None:
        """Sends the messages when `peer.send` lets them pass."""
        kept = list(messages)  # the driver may use its list again while these are held
        try:
            self._points.when_clear("peer.send", self._loop, lambda: self._inner.send(kept))
        except OSError:
            logger.debug("%d messages lost at failpoint peer.send", len(kept))
