"""Slows down clients that guess a user's secret, at the HTTP port and at the clients' ports alike.

After FREE wrong secrets for one user from one address, the secrets of that pair are checked one after the other, one
every EVERY_MS. So the rate of guesses for a pair of user and address is limited, however many connections send them.
Other users and other addresses are not slowed down. A right secret of the pair waits in the same line, for at most
WAITING_MAX * EVERY_MS. A client that has proven its user before is not checked again and does not wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

FREE: Final = 5
"""The number of wrong secrets of a pair (user, address) after which its secrets have to wait for their turn."""
EVERY_MS: Final = 75
WAITING_MAX: Final = 64
"""The most secrets of a pair that may wait for their turn; the last of them waits for 4.8 s."""
QUIET_MS: Final = 60_000
"""Milliseconds after the last wrong secret of a pair until its secrets are checked at once again."""
PAIRS_MAX: Final = 4_096
ALL_WAITING_MAX: Final = 1_024
NAME_MAX: Final = 64
TOLD_FROM: Final = 100
"""The number of wrong secrets of a pair from which on the pair is reported as a finding."""
TOLD_MAX: Final = 16
TOLD_MS: Final = 3_600_000

Turn = Callable[[bool], None]
"""Called once: with True when the secret may be checked, with False if too many secrets wait."""


class Guessed(NamedTuple):
    """Describes many wrong secrets for one user from one address."""

    name: str
    address: str
    times: int
    last_ms: int
    """The wall-clock time of the last wrong secret, in milliseconds."""


class _Pair:
    """The wrong and the waiting secrets for one user name from one address."""

    __slots__ = ("last_ms", "next_ms", "times", "waiting")

    def __init__(self) -> None:
        self.times = 0
        self.last_ms = 0
        self.next_ms = 0
        self.waiting: deque[Turn] = deque()


class Guesses:
    """Counts the wrong secrets at one node, and decides when the next secret may be checked. Event loop only."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        call_later: Callable[[int, Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._call_later = call_later
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        """(user name, address) -> its wrong secrets; the pair with the newest wrong secret comes last."""
        self._lines: dict[tuple[str, str], _Pair] = {}
        """The pairs with secrets that wait for their turn."""
        self._waiting = 0
        self._told: OrderedDict[tuple[str, str], Guessed] = OrderedDict()
        self._ticking = False

    def __len__(self) -> int:
        """Returns the number of pairs (user, address) that are remembered."""
        return len(self._pairs)

    @property
    def waiting(self) -> int:
        """The number of secrets that wait for their turn."""
        return self._waiting

    def must_wait(self, name: str, address: str) -> bool:
        """Returns True if the next secret of this user and address has to wait for its turn (see `wait`)."""
        pair = self._pairs.get(_key(name, address))
        return pair is not None and pair.times >= FREE and self._now_ms() - pair.last_ms < QUIET_MS

    def wrong(self, name: str, address: str) -> None:
        """Counts a wrong secret. A user with this name need not exist."""
        key, now_ms = _key(name, address), self._now_ms()
        pair = self._pairs.pop(key, None) or _Pair()
        self._pairs[key] = pair
        if now_ms - pair.last_ms >= QUIET_MS:
            pair.times = 0
        pair.times, pair.last_ms = pair.times + 1, now_ms
        if len(self._pairs) > PAIRS_MAX:
            self._forget_one()
        if pair.times >= TOLD_FROM:
            self._told.pop(key, None)
            self._told[key] = Guessed(*key, pair.times, self._wall_ms())
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)

    def right(self, name: str, address: str) -> None:
        """Takes one wrong secret of this user and address off the count, because it was right after all: this node had
        not yet applied a change of the secret."""
        pair = self._pairs.get(_key(name, address))
        if pair is not None and pair.times > 0:
            pair.times -= 1

    def _forget_one(self) -> None:
        for key, pair in self._pairs.items():
            if not pair.waiting:
                del self._pairs[key]
                return

    def wait(self, name: str, address: str, turn: Turn) -> None:
        """Calls `turn` once, at once or later: with True when the next secret of this user and address may be checked,
        with False if too many wait. The caller's `turn` must do nothing if its client has disconnected by then."""
        key = _key(name, address)
        pair, now_ms = self._pairs.get(key), self._now_ms()
        if pair is None or (not pair.waiting and now_ms >= pair.next_ms):
            if pair is not None:
                pair.next_ms = now_ms + EVERY_MS
            turn(True)
            return
        if len(pair.waiting) >= WAITING_MAX or self._waiting >= ALL_WAITING_MAX:
            turn(False)
            return
        pair.waiting.append(turn)
        self._waiting += 1
        self._lines[key] = pair
        if not self._ticking:
            self._ticking = True
            self._call_later(max(1, pair.next_ms - now_ms), self._tick)

    def _tick(self) -> None:
        """Calls the next waiting `turn` of each user and address. One timer runs for all of them while any wait."""
        self._ticking = False
        now_ms = self._now_ms()
        for key, pair in list(self._lines.items()):
            if now_ms < pair.next_ms:
                continue
            pair.next_ms = now_ms + EVERY_MS
            self._waiting -= 1
            turn = pair.waiting.popleft()
            if not pair.waiting:
                del self._lines[key]
            turn(True)
        if self._lines and not self._ticking:
            self._ticking = True
            due_ms = min(pair.next_ms for pair in self._lines.values())
            self._call_later(max(1, due_ms - now_ms), self._tick)

    def last_hour(self) -> list[Guessed]:
        """Returns the pairs with at least TOLD_FROM wrong secrets whose last one was in the last hour, newest first."""
        since_ms = self._wall_ms() - TOLD_MS
        return [each for each in reversed(self._told.values()) if each.last_ms >= since_ms]


def _key(name: str, address: str) -> tuple[str, str]:
    return name[:NAME_MAX], address
