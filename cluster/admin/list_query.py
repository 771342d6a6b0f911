"""What a request says of the page that it wants: where it begins, and how long it may be."""

from __future__ import annotations

from typing import Any, Final

from cluster.admin.body import number_of
from cluster.admin.call import Call
from cluster.admin.cost import PAGE_ITEMS_MAX
from cluster.admin.errors import ApiError
from cluster.config.source import nearest
from statemachine.sorted_map import SortedMap

AFTER: Final = "after"
"""`next` of the page before."""
LIMIT: Final = "limit"
PAGE_QUERY: Final = (AFTER, LIMIT)
NEIGHBOURS: Final = 100
"""Names on each side that are compared with one that nobody knows: comparing all of them would take seconds."""
PREFIX: Final = 2


def limit_of(call: Call) -> int:
    """?limit=. Raises ApiError."""
    limit = number_of(call.query, LIMIT, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX)
    if not limit:
        raise ApiError("bad_query", "limit cannot be 0", f"use a whole number from 1 to {PAGE_ITEMS_MAX}")
    return limit


def after_of(call: Call) -> str | None:
    """?after=, a name; None for the first page."""
    return call.query.get(AFTER) or None


def neighbour(name: str, names: SortedMap[str, Any]) -> str | None:
    """The name most like one that is not there, among those that begin alike; None if none is."""
    near = names.keys_from(name[:PREFIX] or None, NEIGHBOURS) + names.keys_from(name or None, NEIGHBOURS)
    first = names.keys_from(None, NEIGHBOURS)
    return nearest(name, dict.fromkeys([*near, *first]))
