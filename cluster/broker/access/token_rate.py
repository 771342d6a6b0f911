"""Limits the rate of the tokens that a user creates for itself.

Each token that is created or revoked is an entry of the log and a row of the audit. The audit keeps a limited number of
rows, so a user without any right could otherwise push out the rows of all other users. Revoking a token is not limited,
because it needs a token that was created before.
"""

from __future__ import annotations

from typing import Final

from cluster.broker.refusal import Reason, Refused

AT_ONCE: Final = 30
"""The most tokens that a user may create for itself at once. Each login creates a token too."""
EVERY_MS: Final = 2_000
"""Milliseconds after which a user may create one more token."""


class TokenRate:
    """Keeps a budget of tokens for each user, at the leader. It remembers only users whose budget is not full."""

    def __init__(self) -> None:
        self._full_ms: dict[int, int] = {}
        """User id -> time in milliseconds at which the user's budget is full again."""
        self._looked_ms = 0

    def __len__(self) -> int:
        """Returns the number of users that are remembered."""
        return len(self._full_ms)

    def take(self, user_id: int, name: str, now_ms: int) -> None:
        """Takes one token from the budget of a user. `name`: the user's name, for the error. Raises Refused (BUSY) if
        the budget is used up."""
        if not 0 <= now_ms - self._looked_ms < EVERY_MS:
            self._looked_ms = now_ms
            self._full_ms = {user: full_ms for user, full_ms in self._full_ms.items() if full_ms > now_ms}
        full_ms = max(self._full_ms.get(user_id, now_ms), now_ms) + EVERY_MS
        wait_ms = full_ms - now_ms - AT_ONCE * EVERY_MS
        if wait_ms > 0:
            why = (
                f"user {name} has given itself {AT_ONCE} tokens, by logins too, and one more every {EVERY_MS // 1000} s"
            )
            raise Refused(Reason.BUSY, f"{why}: ask again in {-(-wait_ms // 1000)} s")
        self._full_ms[user_id] = full_ms
