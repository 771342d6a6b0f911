"""A client's request that this node keeps until another node has answered it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.requests.table import COSTLY, KEPT, ONE_TRY, SENDS
from raftlog.types import NOBODY, NodeId
from raftmq_wire.codec import FLAG_ONEWAY

if TYPE_CHECKING:
    from cluster.flow.hold import Hold
    from cluster.remoting.connection.frame import Frame
    from cluster.remoting.connection.reply_path import OrderLine
    from cluster.runtime.resource_budget import Share

LEADERS_MAX = 2
"""The most leaders that may receive a request, one after the other, and disconnect without an answer. Then the request
is given up."""


class ForwardedRequest:
    """A client's request that this node keeps until it is answered."""

    __slots__ = (
        "came_ms",
        "deadline_ms",
        "frame",
        "hold",
        "line",
        "promised",
        "sent_to",
        "tries",
        "was_sent",
    )

    def __init__(self, frame: Frame, hold: Hold, came_ms: int, deadline_ms: int) -> None:
        self.frame = frame
        self.hold = hold
        self.came_ms = came_ms
        self.deadline_ms = deadline_ms
        self.promised: Share | None = None
        """The memory reserved for its answer, if that may be a large one; None otherwise."""
        self.sent_to: NodeId = NOBODY
        self.was_sent = False
        self.tries = 0
        """The number of leaders that received the request and did not return it. Each may have carried it out."""
        self.line: OrderLine | None = None
        """The order line of its connection, if its order must be kept; None otherwise."""

    def went_to(self, leader: NodeId) -> None:
        """Records that the request was sent to a leader."""
        self.sent_to = leader
        self.was_sent = True
        self.tries += 1

    def came_back(self) -> None:
        """Records that the leader has returned the request without having done anything with it."""
        self.tries -= 1
        if self.one_try:
            self.was_sent = False

    def left_its_leader(self) -> None:
        """Records that no leader has the request, because the one that had it is lost."""
        self.sent_to = NOBODY

    @property
    def one_try(self) -> bool:
        """True if the request must not be sent again after a leader received it, because a repetition could not be
        recognised."""
        return self.frame.header.code in ONE_TRY

    def is_with(self, leader: NodeId) -> bool:
        """Returns True if the request was sent to `leader`. Returns False if `leader` is NOBODY."""
        return leader == self.sent_to != NOBODY

    @property
    def oneway(self) -> bool:
        """True if its client waits for no answer."""
        return bool(self.frame.header.flag & FLAG_ONEWAY)

    @property
    def ends_with_client(self) -> bool:
        """True for a send or a costly request whose client waits for an answer: it is not carried out once that client
        has disconnected."""
        code = self.frame.header.code
        return (code in SENDS or code in COSTLY) and not self.oneway

    @property
    def is_orphan(self) -> bool:
        """True if the request ends with its client, which has disconnected."""
        return self.frame.path.closed and self.ends_with_client

    @property
    def waits_for_leader(self) -> bool:
        """True if the request is kept up to its deadline while there is no leader. That is harmless, because no client
        waits for an answer."""
        return self.oneway and self.frame.header.code in KEPT

    @property
    def spent(self) -> bool:
        """True if no further node, this node included, may carry out the request."""
        return self.tries >= (1 if self.one_try else LEADERS_MAX)
