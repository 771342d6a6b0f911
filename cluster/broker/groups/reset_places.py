"""Limits the offset resets in progress: each asker has few places for resets, and the askers are served in turn.

The request for a reset is small, but writing it is slow: the rows of each reset are in entries of their own, because
the rows of two resets in one entry would take long to apply. Without this limit one client could ask for minutes of
work in one packet, and disconnect.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable

from cluster.broker.refusal import Reason, Refused

PLACES_EACH = 8
"""The most resets of one asker that are in progress."""
PLACES = 256
"""The most resets of all askers together that are in progress."""
Write = Callable[[], None]


class ResetPlaces:
    """The resets of a node that are in progress. One reset is written at a time; the askers take turns."""

    def __init__(self, soon: Callable[[Write], object]) -> None:
        """`soon` calls a function in a later turn of the loop."""
        self._soon = soon
        self._taken: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[Write]] = OrderedDict()
        """Asker -> its resets that wait to be written. The asker whose turn it is comes first."""
        self._writing = False
        """True while the rows of a reset are proposed and not decided."""

    def take(self, asker: Hashable) -> None:
        """Takes a place for a reset, which is kept until `leave`. Raises Refused (BUSY) if the asker or the node has no
        place left."""
        if self._taken[asker] >= PLACES_EACH:
            remark = f"{PLACES_EACH} resets of offsets that you asked for are not done yet; ask again when one is"
            raise Refused(Reason.BUSY, remark)
        if self._taken.total() >= PLACES:
            raise Refused(Reason.BUSY, f"{PLACES} resets of offsets are not done yet; ask again in a second")
        self._taken[asker] += 1

    def leave(self, asker: Hashable) -> None:
        """Releases the place of a reset that is done or refused."""
        self._taken[asker] -= 1
        if not self._taken[asker]:
            del self._taken[asker]

    def write(self, asker: Hashable, write: Write) -> None:
        """Calls `write`, which proposes the rows of a reset, when no other reset is being written: at once, or in a
        later turn. The caller must call `written` when the rows are decided, unless `write` has raised."""
        if self._writing:
            self._waiting.setdefault(asker, deque()).append(write)
        else:
            self._begin(write)

    def written(self) -> None:
        """Records that the rows of a reset are decided. Begins to write the next reset."""
        self._writing = bool(self._waiting)
        if self._writing:
            self._soon(self._next)

    def _next(self) -> None:
        asker, line = self._waiting.popitem(last=False)
        write = line.popleft()
        if line:
            self._waiting[asker] = line
        self._begin(write)

    def _begin(self, write: Write) -> None:
        self._writing = True
        try:
            write()
        except Exception:
            self.written()
            raise
