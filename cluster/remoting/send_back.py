"""CONSUMER_SEND_MSG_BACK (code 36): the fields decoded, the broker asked, its outcome answered.

Facts in docs/wire-protocol.md; who decides is `cluster.broker.send_back`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.names import check_group_name
from cluster.broker.refusal import Refused
from cluster.broker.send_back import TIMES_MAX, SendBacks, SentBack
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.fields import integer_in, text
from cluster.remoting.remoting_request import RemotingRequest
from cluster.wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from cluster.remoting.request import Handler, Request

V3_4_9 = 121
"""Protocol version of the first RocketMQ whose consumers name their own maximum (MQVersion.V3_4_9)."""


class SendBackRequests:
    """Handler of 36, the leader's."""

    def __init__(self, send_backs: SendBacks) -> None:
        self._send_backs = send_backs

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: refusing(self._send_back)}

    def _send_back(self, request: Request) -> None:
        wanted = parse(request)
        assert isinstance(request, RemotingRequest), request
        assert request.received is not None

        def done(refused: Refused | None) -> None:
            if refused is None:
                request.reply(ResponseCode.SUCCESS)
            else:
                refuse(request, refused)

        self._send_backs.send_back(request.connection, len(request.received.header_bytes), wanted, done)


def parse(request: Request) -> SentBack:
    """The request's fields. Raises Refused (29)."""
    group = text(request, "group")
    check_group_name(group)
    position = integer_in(request, "offset", 0, (1 << 63) - 1)
    delay_level = integer_in(request, "delayLevel", -TIMES_MAX - 1, TIMES_MAX, 0)
    maximum = integer_in(request, "maxReconsumeTimes", -TIMES_MAX - 1, TIMES_MAX, -1)
    named = maximum >= 0 and request.version >= V3_4_9
    return SentBack(group, position, delay_level, maximum if named else None, request.ext.get("originTopic", ""))
