"""Bounds the memory that the connections of a node hold together, and decides when one of them waits.

There are two accounts (`cluster.runtime.resource_budget`): bytes of answers that clients have not read yet, and bytes
of frames that have not arrived completely. Memory is reserved in both before the work. A client without room is not
refused: nothing more is read from its connection until there is room. A connection that holds nothing always has room
for a small frame and a small answer, whatever others hold. One that holds much and makes no progress is closed, which
frees its room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cluster.remoting.request import Handler, Request, handle_late
from cluster.requests.table import ROWS
from cluster.runtime.resource_budget import Room
from cluster.runtime.turns.work import Soon

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from cluster.flow.gate import Gate
    from cluster.requests.verb import Size
    from statemachine.broker_state import BrokerState


SMALL_FRAME_BYTES = 256 << 10
"""Frames up to this many bytes are read even if other connections hold all the memory, because each connection has at
most one."""
EARLY_BYTES = 64 << 10
"""Bytes of a larger frame that must arrive before room is reserved for it, because any sender can announce a great
length at no cost."""
FIRST_ANSWER_BYTES = 256 << 10
"""An answer up to this many bytes is made even if other connections hold all the memory, for a client that has read all
earlier answers."""
COUNTED_BYTES = 16 << 10
"""Answers above this many bytes are counted when they are made, smaller ones once per turn of the loop."""
CLOGGED_BYTES = 64 << 10
"""Bytes that a transport buffers for a client before it reports that the client is slow (asyncio's high-water mark)."""
FRAME_HEAD_BYTES = 64 << 10
"""Bytes allowed for a header besides a message."""
PROGRESS_BYTES = 4 << 10
"""Bytes of an unfinished frame that a client must send within `limits.stalled_ms`, unless it finishes one."""
PRESSED_MS, PRESSED_BYTES = 1_000, 64 << 10
"""The stricter demand on a client that holds room while others wait for it: it must send PRESSED_BYTES bytes within
PRESSED_MS milliseconds."""
PRESSED_TAKES_MS = 2_000
"""Milliseconds within which a client must read some of its answers while others wait for room (besides
`limits.stalled_ms`)."""


class ConnectionMemory:
    """The memory accounts of one node's connections. Event loop only."""

    def __init__(self, limits: LimitsSection, soon: Soon, gate: Gate) -> None:
        self.gate = gate
        """The accounts of the bytes that requests of these connections keep in flight."""
        self.unsent = Room(limits.node_unsent_bytes_max, soon)
        """Bytes of answers that were made, or are about to be, and that no client has read."""
        self.unfinished = Room(limits.node_inflight_bytes_max, soon)
        """Bytes of frames that have arrived in part."""
        self._oversize = self.unfinished.inside(limits.node_inflight_bytes_max)
        """The part of `unfinished` for frames larger than any message, so that these never take the place of
        messages."""
        self.reload(limits)

    def reload(self, limits: LimitsSection) -> None:
        """Uses `limits` from now on. The limit on unsent bytes of a connection that is open already stays."""
        self.connection_unsent_max = limits.connection_unsent_bytes_max
        self.stalled_ms = limits.stalled_ms
        self._message_frame_max = limits.message_bytes_max + FRAME_HEAD_BYTES
        largest = limits.frame_bytes_max + 4
        self.unsent.resize(limits.node_unsent_bytes_max)
        self.unfinished.resize(limits.node_inflight_bytes_max)
        self._oversize.resize(max(largest, limits.node_inflight_bytes_max // 4))

    def frame_room(self, size: int) -> Room:
        """Returns the account to which an unfinished frame of `size` bytes counts."""
        return self.unfinished if size <= self._message_frame_max else self._oversize

    @property
    def pressed(self) -> bool:
        """True if an unfinished frame waits for room that others hold."""
        return bool(self.unfinished.waiting or self._oversize.waiting)


# Requests whose answer may be much larger than the request: they wait for memory before anything is read.
#
# The size of the answer is estimated, and that many bytes are reserved until the answer is sent. Pulls have a better
# estimate and reserve memory themselves (`cluster.broker.pulls.pull_service`).

Sizes = Mapping[int, Callable[[], int]]
"""Request code -> a function that estimates the present size of its answer in bytes."""


def sizes(state: BrokerState, limits: Callable[[], LimitsSection]) -> Sizes:
    """Returns the estimate for each request with a large answer. `limits` returns the limits in force."""

    def bound(size: Size) -> Callable[[], int]:
        return lambda: size(state, limits())

    return {verb.code: bound(verb.answer_bytes) for verb in ROWS if verb.answer_bytes is not None}


def with_room(handlers: Mapping[int, Handler], sizes: Sizes) -> dict[int, Handler]:
    """Returns the handlers by request code. Those of requests with large answers are wrapped: they wait for memory
    first."""
    return {code: _waiting(handler, sizes[code]) if code in sizes else handler for code, handler in handlers.items()}


def _waiting(handler: Handler, size: Callable[[], int]) -> Handler:
    def handle(request: Request) -> None:
        if not request.room_for(size(), lambda: handle(request)):
            return
        request.promise(size())
        handle_late(handler, request)  # an answer releases the reserved memory, so the request must be answered

    return handle
