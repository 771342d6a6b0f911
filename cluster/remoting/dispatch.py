"""Where the requests of all client connections go: the seam between `cluster.remoting.server` and the node's router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.remoting.codec import FLAG_ONEWAY, FLAG_RESPONSE, Header, encode_frame
from cluster.remoting.codes import ResponseCode
from cluster.remoting.rooms import Rooms

if TYPE_CHECKING:
    from cluster.remoting.server import RemotingConnection, ReplyPath


class Dispatch:
    """Where the requests of all connections go. Subclassed by the node's router."""

    rooms: Rooms
    """What all of them may hold."""

    def on_request(
        self, path: ReplyPath, serialize_type: int, header: Header, header_bytes: bytes, body: bytes
    ) -> None:
        """Called for every request frame, oneway ones included."""
        raise NotImplementedError

    def on_open(self, connection: RemotingConnection) -> bool:
        """False refuses the connection (too many)."""
        raise NotImplementedError

    def on_close(self, connection: RemotingConnection) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def watch(self, connection: RemotingConnection) -> None:
        """Something of this connection is unfinished: see to it that it goes on (`cluster.remoting.patience`)."""
        raise NotImplementedError


class Leaving(Dispatch):
    """Takes the place of a connection's dispatch when the node is about to close it."""

    def __init__(self, before: Dispatch, remark: str) -> None:
        self._before = before
        self._remark = remark
        self.on_open = before.on_open  # type: ignore[method-assign]
        self.on_close = before.on_close  # type: ignore[method-assign]
        self.watch = before.watch  # type: ignore[method-assign]
        self.rooms = before.rooms

    def on_request(
        self, path: ReplyPath, serialize_type: int, header: Header, header_bytes: bytes, body: bytes
    ) -> None:
        """Refuses it: it was not looked at, so it may be sent again anywhere."""
        if not header.flag & FLAG_ONEWAY:
            path.write(
                encode_frame(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    header.opaque,
                    FLAG_RESPONSE,
                    remark=self._remark,
                    serialize_type=serialize_type,
                    language="JAVA",
                )
            )
