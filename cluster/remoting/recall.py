"""RECALL_MESSAGE (code 370): the fields decoded, the broker asked, its outcome answered.

Facts in docs/wire-protocol.md; who decides is `cluster.broker.recalls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.fields import text
from cluster.wire.codes import RequestCode, ResponseCode
from cluster.wire.recall_handle import decode_recall_handle

if TYPE_CHECKING:
    from cluster.broker.recalls import Recalls
    from cluster.remoting.request import Handler, Request


class RecallRequests:
    """Handler of 370, the leader's."""

    def __init__(self, recalls: Recalls) -> None:
        self._recalls = recalls

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.RECALL_MESSAGE: refusing(self._recall)}

    def _recall(self, request: Request) -> None:
        topic = text(request, "topic")
        try:
            handle = decode_recall_handle(text(request, "recallHandle"))
        except ValueError as error:
            raise Refused(Reason.ILLEGAL, str(error)) from None

        def done(refused: Refused | None) -> None:
            if refused is None:
                request.reply(ResponseCode.SUCCESS, None, {"msgId": handle.unique_key})
            else:
                refuse(request, refused)

        self._recalls.recall(topic, handle, done)
