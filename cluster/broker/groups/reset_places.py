"""Places for resets of offsets: who asks for resets has few, and those who ask are served in turn.

A reset is small to ask for and slow to write: its rows are entries of their own, since rows of two in one entry would
take long to apply. Without places one client could ask for minutes of work in one write, and leave.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable

from cluster.broker.refusal import Reason, Refused

PLACES_EACH = 8
"""Most resets of one asker that are not done."""
PLACES = 256
"""Most resets that are not done, of all askers together."""
Write = Callable[[], None]


class ResetPlaces:
    """The resets of a node that are not done, and their order: one at a time is written, of each asker in turn."""

    def __init__(self, soon: Callable[[Write], object]) -> None:
        """`soon`: calls a function in a later turn."""
        self._soon = soon
        self._taken: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[Write]] = OrderedDict()
        """Resets to be written, by asker; the asker of the next one comes first."""
        self._writing = False
        """True while rows of a reset are proposed and not yet decided."""

    def take(self, asker: Hashable) -> None:
        """Takes a place until `leave`. Raises Refused (BUSY) if there is none."""
        if self._taken[asker] >= PLACES_EACH:
            remark = f"{PLACES_EACH} resets of offsets that you asked for are not done yet; ask again when one is"
            raise Refused(Reason.BUSY, remark)
        if self._taken.total() >= PLACES:
            raise Refused(Reason.BUSY, f"{PLACES} resets of offsets are not done yet; ask again in a second")
        self._taken[asker] += 1

    def leave(self, asker: Hashable) -> None:
        """Gives the place back, because the reset is done or refused."""
        self._taken[asker] -= 1
        if not self._taken[asker]:
            del self._taken[asker]

    def write(self, asker: Hashable, write: Write) -> None:
        """Calls `write` when no other reset is being written: at once, or in a later turn. Whoever writes calls
        `written` at the end, unless `write` raises."""
        if self._writing:
            self._waiting.setdefault(asker, deque()).append(write)
        else:
            self._begin(write)

    def written(self) -> None:
        """Notes that the rows of a reset are applied, lost or undecided; the next one begins."""
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
