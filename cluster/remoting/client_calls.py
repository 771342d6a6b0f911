"""Requests that this node has sent over a client's connection and that wait for the client's answer."""

from __future__ import annotations

from collections.abc import Callable

from cluster.broker.client_request import ClientAnswer
from cluster.wire.codec import Header, ext_of

Ended = Callable[[ClientAnswer | None], None]


class ClientCalls:
    """Of one connection. Every call ends once: with the answer, or with None."""

    def __init__(self) -> None:
        self._waiting: dict[int, Ended] = {}

    def begin(self, opaque: int, ended: Ended) -> Callable[[], None]:
        """`ended` is called with the answer that carries `opaque`. Returns a function that gives up."""
        self._waiting[opaque] = ended
        return lambda: self._end(opaque, None)

    def on_response(self, header: Header, body: bytes) -> None:
        """The client answered; nobody may be waiting any more. Raises CodecError for malformed fields."""
        if header.opaque in self._waiting:
            self._end(header.opaque, ClientAnswer(header.code, header.remark or "", ext_of(header), body))

    def close(self) -> None:
        """The connection closed."""
        for opaque in list(self._waiting):
            self._end(opaque, None)

    def _end(self, opaque: int, answer: ClientAnswer | None) -> None:
        ended = self._waiting.pop(opaque, None)
        if ended is not None:
            ended(answer)
