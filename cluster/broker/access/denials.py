"""Counts and logs denied requests of all protocols, and keeps the newest for `raftmq auth show`.

A denied client chooses the names in the reason, and may repeat its request as often as it likes. So a reason is
truncated, the number of kept denials is limited, and a user at an address gets at most one line a second in the log,
which says how many denials there were.
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
"""The most characters of a denial's reason that are kept and logged; a longer one is truncated."""
LINE_EVERY_MS: Final = 1_000
"""Milliseconds in which at most one line is logged for a user at an address."""
SAME_EVERY_MS: Final = 10_000
"""Milliseconds in which at most one line is logged for a user at an address if the reason is the same as in the line
before."""
LINES_MAX: Final = 100
"""The most lines in a second for all users and addresses together."""
PAIRS_MAX: Final = 1_024


class Denial(NamedTuple):
    """Requests of one address that were denied for one reason."""

    address: str
    why: str
    last: str
    """The last denied request: its request code, or its HTTP method and route."""
    enforced: bool
    """True if the last request was refused; False if it passed, because the mode is not `enforce`."""
    times: int
    """The number of such requests, counted since the last time that there was none for an hour."""
    last_ms: int
    """The wall-clock time of the last request, in milliseconds."""


class _Said(NamedTuple):
    """The last log line about a user at an address."""

    at_ms: int
    why: str
    unsaid: int
    """The number of denials since that line."""


class Denials:
    """Counts denials by address and reason. It keeps the KEPT_MAX pairs of address and reason with the newest denials,
    and shows those that had a denial in the last hour."""

    def __init__(self, wall_ms: Callable[[], int], counted: Callable[[bool], object] = lambda _: None) -> None:
        """`wall_ms` returns the wall-clock time. `counted` is called for each denial, with True if the request was
        refused, with False if it passed."""
        self._wall_ms = wall_ms
        self._counted = counted
        self._kept: OrderedDict[tuple[str, str], Denial] = OrderedDict()
        self._pairs: OrderedDict[tuple[int, str], _Said] = OrderedDict()
        """(user id, address) -> the last line about that pair; the pair with the newest denial comes last."""
        self._since_ms, self._lines = 0, 0
        """The second for which lines are counted, and the number of lines logged in it."""

    def note(self, user: int, address: str, why: str, what: str, *, enforced: bool) -> None:
        """Counts and logs a denied request. `user`: id of the user whose signature was verified, 0 if none was. `why`:
        the reason. `what`: the name of the request. `enforced`: False if the request passed."""
        self._counted(enforced)
        now_ms, why = self._wall_ms(), why[:TEXT_MAX]
        before = self._kept.pop((address, why), None)
        times = 1 + (before.times if before is not None and before.last_ms >= now_ms - HOUR_MS else 0)
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
        """Returns the denials whose last request was within the last hour, newest first."""
        since_ms = self._wall_ms() - HOUR_MS
        return [each for each in reversed(self._kept.values()) if each.last_ms >= since_ms]
