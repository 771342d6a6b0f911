"""Denied requests: counted, kept for `raftmq auth show`, and logged, for all protocols alike.

A denied client chooses the names in the reason, and may ask as often as it likes. So a reason is truncated, the number
of kept denials is limited, and a user at an address gets at most one line a second in the log, which says how many
there were.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
KEPT_MAX: Final = 256
TEXT_MAX: Final = 256
"""The most characters that are kept and logged of the reason of a denial."""
LINE_EVERY_MS: Final = 1_000
"""Milliseconds within which a user at an address leaves at most one line."""
SAME_EVERY_MS: Final = 10_000
"""Milliseconds within which it leaves at most one line with the same reason as the line before."""
LINES_MAX: Final = 100
"""The most lines in a second for all users and addresses together."""
PAIRS_MAX: Final = 1_024


class Denial(NamedTuple):
    """Requests of one address that were denied for one reason."""

    address: str
    why: str
    last: str
    """The last denied request: its code, or method and route."""
    enforced: bool
    """False if the last request passed, because the mode was not enforce."""
    times: int
    last_ms: int
    """The wall clock at the last request."""


class _Said(NamedTuple):
    """The last line about a user at an address."""

    at_ms: int
    why: str
    unsaid: int
    """Denials since that line."""


class Denials:
    """Counts denials by address and reason. The newest KEPT_MAX pairs are kept, for an hour after the last one."""

    def __init__(self, wall_ms: Callable[[], int], counted: Callable[[bool], object] = lambda _: None) -> None:
        """`counted` is called for each denial, with True if it was enforced."""
        self._wall_ms = wall_ms
        self._counted = counted
        self._kept: OrderedDict[tuple[str, str], Denial] = OrderedDict()
        self._pairs: OrderedDict[tuple[int, str], _Said] = OrderedDict()
        """(user id, address) -> its last line, the pair with the newest denial last."""
        self._since_ms, self._lines = 0, 0
        """The second that is counted, and the lines in it."""

    def note(self, user: int, address: str, why: str, what: str, *, enforced: bool) -> None:
        """Counts a denied request. `user`: id of the user who is proven, 0 if none is; `what`: the request."""
        self._counted(enforced)
        now_ms, why = self._wall_ms(), why[:TEXT_MAX]
        before = self._kept.pop((address, why), None)
        times = 1 + (before.times if before is not None else 0)
        self._kept[address, why] = Denial(address, why, what, enforced, times, now_ms)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        self._log((user, address), why, what, now_ms, "denied" if enforced else "would be denied")

    def _log(self, pair: tuple[int, str], why: str, what: str, now_ms: int, outcome: str) -> None:
        said = self._pairs.pop(pair, None) or _Said(-SAME_EVERY_MS, "", 0)
        if not 0 <= now_ms - self._since_ms < LINE_EVERY_MS:
            self._since_ms, self._lines = now_ms, 0
        wait_ms = SAME_EVERY_MS if why == said.why else LINE_EVERY_MS
        if 0 <= now_ms - said.at_ms < wait_ms or self._lines == LINES_MAX:
            said = said._replace(unsaid=said.unsaid + 1)
        else:
            self._lines += 1
            more = f" (the last of {said.unsaid + 1})" if said.unsaid else ""
            logger.warning("client %s: %s %s: %s%s", pair[1], what, outcome, ascii(why), more)
            said = _Said(now_ms, why, 0)
        self._pairs[pair] = said
        if len(self._pairs) > PAIRS_MAX:
            self._pairs.popitem(last=False)

    def last_hour(self) -> list[Denial]:
        """Returns the denials of the last hour, the newest first."""
        since_ms = self._wall_ms() - HOUR_MS
        return [each for each in reversed(self._kept.values()) if each.last_ms >= since_ms]
