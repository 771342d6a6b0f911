"""One connection that writes what it is told and counts the answers: each request gets one, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from jepsen_like.hostile.wire import Answer, frames_of
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.machines.network import Endpoint
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, Header, encode_frame, ext_of
from raftmq_wire.signature import Credentials

Report = Callable[[str, str], None]


class Asked(NamedTuple):
    """A request on its way."""

    code: int
    at_s: float
    silent: bool
    """It may rightly get no answer while nobody leads."""
    parked_s: float
    """Seconds that the node may rightly keep it waiting."""
    heard: Callable[[Answer], None] | None


class RawConnection(asyncio.Protocol):
    """`answered`: how many answers came; `unanswered`: opaque -> what has none yet."""

    def __init__(self, name: str, loop: SimLoop, report: Report, credentials: Credentials | None = None) -> None:
        """`credentials`: requests are signed with them; None: with none, unless they bring their own signature."""
        self.name, self._loop, self._report, self._credentials = name, loop, report, credentials
        self.closed = False
        self.unanswered: dict[int, Asked] = {}
        self.answered = 0
        self.on_lost: list[Callable[[], None]] = []
        self.transport: Endpoint
        self._asked: set[int] = set()
        self._next = 0
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for lost in self.on_lost:
            lost()

    def frame(
        self,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        oneway: bool = False,
        silent: bool = False,
        parked_s: float = 0.0,
        binary: bool = False,
        heard: Callable[[Answer], None] | None = None,
    ) -> bytes:
        """The bytes of a request, whose answer is waited for from now on. `heard` gets the answer."""
        self._next += 1
        if self._credentials is not None:
            ext = self._credentials.signed(ext, body)
        flag = FLAG_ONEWAY if oneway else 0
        # Raises struct.error for a drawn name that the binary form cannot hold: nothing waits for an answer then.
        data = encode_frame(code, self._next, flag, ext=ext, body=body, serialize_type=int(binary))
        if not oneway:
            self._asked.add(self._next)
            self.unanswered[self._next] = Asked(code, self._loop.now, silent, parked_s, heard)
        return data

    def write(self, data: bytes) -> None:
        """Sends bytes; nothing if the connection has ended."""
        if not self.closed:
            self.transport.write(data)

    def overdue(self, before_s: float, *, silent_since_s: float = 0.0) -> list[Asked]:
        """Returns the requests without an answer on a connection that stands, that were sent before `before_s`, or were
        to be kept waiting no longer than until then. Of requests that may rightly get none while nobody leads, only
        those since `silent_since_s`.
        """
        if self.closed or not self.transport.is_reading() or self.transport.leads_nowhere:
            return []
        due = [asked for asked in self.unanswered.values() if asked.at_s + asked.parked_s < before_s]
        return [asked for asked in due if not asked.silent or asked.at_s >= silent_since_s]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for header, body in frames_of(self._buffer):
            self._on_frame(header, body)

    def _on_frame(self, header: Header, body: bytes) -> None:
        if not header.flag & FLAG_RESPONSE:
            return
        asked = self.unanswered.pop(header.opaque, None)
        if asked is None:
            why = "a second time" if header.opaque in self._asked else "and was never asked for"
            self._report("answers", f"{self.name}: request {header.opaque} is answered {why}: code {header.code}")
            return
        self.answered += 1
        if asked.heard is not None:
            asked.heard(Answer(header.code, ext_of(header), header.remark or "", body))
