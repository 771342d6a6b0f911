"""Where messages stand in the Raft log (700005), ours: positions of messages in, index and term of their entries out.

Drawn in docs/wire-protocol.md. Every node answers from its own log, out of the positions of entries that it has in
memory or in a segment's sidecar; no message is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import refuse, refusing
from cluster.wire.codes import RequestCode, ResponseCode
from raftlog.errors import OutOfRangeError, RaftLogError

if TYPE_CHECKING:
    from cluster.broker.entry_reads import ReadEntries
    from cluster.broker.services import Services
    from cluster.remoting.request import Handler, Request

POSITIONS_MAX = 1024
"""Of one request: as many as a pull has messages."""
_POSITION_SIZE = 8


class EntryRequests:
    """The handler of 700005."""

    def __init__(self, services: Services, read: ReadEntries) -> None:
        self._services = services
        self._read = read

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; it is not forwarded."""
        return {RequestCode.ENTRIES_AT: refusing(self._answer)}

    def _answer(self, request: Request) -> None:
        positions = _positions(request.body)
        services = self._services
        if services.fenced():
            raise Refused(Reason.BUSY, f"node {services.node_id} serves nothing: its rows are known to be wrong")
        if positions and positions[-1] >= services.state.applied_mark.end_position:
            raise Refused(Reason.UNAVAILABLE, f"node {services.node_id} has not applied position {positions[-1]} yet")
        self._read(positions, partial(self._told, request))

    def _told(self, request: Request, found: bytes | RaftLogError) -> None:
        node = self._services.node_id
        if isinstance(found, bytes):
            request.reply(ResponseCode.SUCCESS, body=found)
        elif isinstance(found, OutOfRangeError):
            remark = f"the log of node {node} does not reach down to the message: {found}"
            refuse(request, Refused(Reason.NOT_FOUND, remark))
        else:
            refuse(request, Refused(Reason.BUSY, f"node {node} cannot tell: {found}"))


def _positions(body: bytes) -> Sequence[int]:
    """Raises Refused (29) unless they ascend and are few enough."""
    if len(body) % _POSITION_SIZE or len(body) > POSITIONS_MAX * _POSITION_SIZE:
        raise Refused(Reason.INVALID, f"the body has {len(body)} bytes; at most {POSITIONS_MAX} positions of 8 may be")
    positions: tuple[int, ...] = struct.unpack(f">{len(body) // _POSITION_SIZE}Q", body)
    if any(after < before for before, after in pairwise(positions)):
        raise Refused(Reason.INVALID, "the positions do not ascend")
    return positions
