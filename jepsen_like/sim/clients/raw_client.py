"""A connection of the simulator that sends prepared bytes and matches the answers. It keeps the requests that have no
answer yet, and reports an answer that no open request expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from cluster.requests.table import SILENT
from jepsen_like.client_kit.frames import Answer, FrameConnection
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.machines.machine import BROKER_PORT
from jepsen_like.sim.machines.network import Endpoint
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, Header, encode_frame
from raftmq_wire.signature import Credentials


class UnansweredRequest(NamedTuple):
    """A request that has no answer yet."""

    code: int
    at_s: float
    silent: bool
    """True if the node may rightly leave the request unanswered while there is no leader."""
    parked_s: float
    """Time in seconds for which the node may rightly park the request."""
    heard: Callable[[Answer], None] | None


class RawConnection(FrameConnection):
    """A connection, as an asyncio protocol, whose requests the caller writes as bytes. `answered`: number of answers
    received. `unanswered`: opaque -> request without an answer."""

    transport: Endpoint

    def __init__(self, name: str, loop: SimLoop, report: Report, credentials: Credentials | None = None) -> None:
        """`credentials`: requests are signed with them; None: they are not signed, unless they bring their own
        signature."""
        super().__init__()
        self.name, self._loop, self._report, self._credentials = name, loop, report, credentials
        self.unanswered: dict[int, UnansweredRequest] = {}
        self.answered = 0
        self.on_lost: list[Callable[[], None]] = []
        self._asked: set[int] = set()
        self._next = 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for lost in self.on_lost:
            lost()

    async def reach(self, node: str, port: int = BROKER_PORT) -> Self:
        """Connects to a node. Raises OSError."""
        await self._loop.create_connection(lambda: self, node, port)
        return self

    def frame(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        oneway: bool = False,
        parked_s: float = 0.0,
        binary: bool = False,
        heard: Callable[[Answer], None] | None = None,
    ) -> bytes:
        """Returns the bytes of a request. Unless it is `oneway`, its answer is expected from now on, and passed to
        `heard` if that is not None. `binary`: the header has the binary form; raises struct.error if that form cannot
        hold the fields."""
        self._next += 1
        if self._credentials is not None:
            ext = self._credentials.signed(ext, body)
        flag = FLAG_ONEWAY if oneway else 0
        # This may raise struct.error. It comes before the request is recorded, so that no answer is expected then.
        data = encode_frame(code, self._next, flag, ext=ext, body=body, serialize_type=int(binary))
        if not oneway:
            self._asked.add(self._next)
            self.unanswered[self._next] = UnansweredRequest(code, self._loop.now, code in SILENT, parked_s, heard)
        return data

    def overdue(self, before_s: float, *, silent_since_s: float = 0.0) -> list[UnansweredRequest]:
        """Returns the requests without an answer that were due before `before_s`. A request is due when it is sent or,
        if it may be parked, at the end of its parking time. Of requests that may rightly get no answer while there is
        no leader, only those sent since `silent_since_s` are returned. Both times are virtual seconds. Returns an empty
        list if the connection does not work (it is closed, does not read, or leads nowhere)."""
        if self.closed or not self.transport.is_reading() or self.transport.leads_nowhere:
            return []
        due = [asked for asked in self.unanswered.values() if asked.at_s + asked.parked_s < before_s]
        return [asked for asked in due if not asked.silent or asked.at_s >= silent_since_s]

    def on_frame(self, header: Header, body: bytes) -> None:
        """Passes an answer to the request that waits for it; reports an answer that no request waits for."""
        if not header.flag & FLAG_RESPONSE:
            return
        asked = self.unanswered.pop(header.opaque, None)
        if asked is None:
            why = "a second time" if header.opaque in self._asked else "and was never asked for"
            self._report("answers", f"{self.name}: request {header.opaque} is answered {why}: code {header.code}")
            return
        self.answered += 1
        if asked.heard is not None:
            asked.heard(Answer.of(header, body))
