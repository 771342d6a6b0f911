"""Finds the newest changes of users that the cluster's findings need: the end of enforcing, and the operator's last
change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.access.user_admin import OPERATOR
from statemachine.access.users import Mode

if TYPE_CHECKING:
    from statemachine.access.users import Access, AuditRow

LOOKED_AT: Final = 200
"""The most recent changes that are searched, once after each change."""
_NEWEST: Final = (1 << 63) - 1
_ABOUT_MODE: Final = "auth.mode"
_ABOUT_USER: Final = "User:"


class Recent(NamedTuple):
    """The changes that were found."""

    turned_off: AuditRow | None
    """The change that turned judging off; None while requests are judged."""
    by_operator: AuditRow | None
    """The newest change of a user by the operator, rather than by a Super."""


class RecentChanges:
    """Searches the newest changes again whenever there are new ones."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._version = -1
        self._found = Recent(None, None)

    def look(self) -> Recent:
        """Returns the newest changes. A result stays valid until it is replaced, even when 200 later changes hide
        it."""
        if self._version == self._access.version:
            return self._found
        self._version = self._access.version
        rows = list(self._access.audit(_NEWEST, LOOKED_AT))
        mode = next((row for row in rows if row.about == _ABOUT_MODE), self._found.turned_off)
        acts = [row for row in rows if row.user == OPERATOR and row.about.startswith(_ABOUT_USER)]
        is_off = self._access.mode is Mode.OFF
        self._found = Recent(mode if is_off else None, acts[0] if acts else self._found.by_operator)
        return self._found
