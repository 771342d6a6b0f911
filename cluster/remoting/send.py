"""Sends (codes 10, 310 and 320): the header decoded, the broker asked, a refusal answered. Fates: `send_reply`.

This is the hot path: no task, no future, no log line per message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.refusal import NotTaken, Refused
from cluster.broker.sends import Sends
from cluster.remoting.frame import Frame
from cluster.remoting.intake import Intake
from cluster.remoting.send_header import decode_send_header
from cluster.remoting.send_reply import SendReplyWriter
from cluster.replication.identity import Identity
from cluster.wire.codec import FLAG_ONEWAY

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection

V3_4_9 = 121
"""Protocol version of the first RocketMQ whose consumers name their own maximum (MQVersion.V3_4_9)."""


class SendHandler:
    """Takes send requests on the node that leads, and names those that it holds for a leader."""

    def __init__(
        self,
        sends: Sends[Frame],
        replies: SendReplyWriter,
        make_intake: Callable[[LimitsSection], Intake],
        limits: LimitsSection,
    ) -> None:
        self._sends = sends
        self._replies = replies
        self._make_intake = make_intake
        self.reload(limits)

    def reload(self, limits: LimitsSection) -> None:
        """Other limits from now on; `Sends` has them from the node."""
        self.intake = self._make_intake(limits)
        """Takes plain ones before their headers are decoded."""

    def on_send(self, frame: Frame, *, confirmed: bool = False) -> None:
        """Handles one request. Raises CodecError if its header is malformed.

        `confirmed`: a majority says that this node leads. Without that, no client is told that its topic is not there,
        or takes no messages.
        """
        header = frame.header
        wish = decode_send_header(header)
        if header.version < V3_4_9:
            wish.max_reconsume_times = None
        try:
            self._sends.send(frame, wish, oneway=header.flag & FLAG_ONEWAY != 0)
        except Refused as refused:
            if isinstance(refused, NotTaken) and not confirmed:
                self._sends.when_confirmed(frame, partial(self.on_send, frame, confirmed=True))
            else:
                self._replies.refuse(frame, refused)

    def name_held(self, frame: Frame) -> Identity | None:
        """The identity under which this node hands a client's send to one leader after the other.

        None: the client has named it, or it is oneway. Raises CodecError if its header is malformed.
        """
        wish = decode_send_header(frame.header)
        return None if frame.header.flag & FLAG_ONEWAY else self._sends.name_held(frame, wish)

    def remember_held(self, frame: Frame, identity: Identity) -> None:
        """Keeps the identity of a send that was handed on and never answered for good."""
        self._sends.remember_held(frame, decode_send_header(frame.header), identity)
