"""Makes the pages of lists: reads the request's paging parameters, and collects items as JSON until the page is
full."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

from cluster.admin.errors import ApiError
from cluster.admin.handler_request import AdminHandler, Call
from cluster.admin.request_parsing import number_of
from cluster.admin.route import CALLER_CHOOSES, PAGE_BYTES_MAX, PAGE_ITEMS_MAX, Route, page
from cluster.admin.route_rights import Needs
from cluster.admin.streamed_json import Pieces
from cluster.config.source import SIMILAR, WORD_MAX
from cluster.requests.verb import Serves
from raftlog.work import charge, charge_text
from statemachine.access.rules import Action, Kind, Need
from statemachine.rows.sorted_map import SortedMap

ITEM_UNITS: Final = 20
"""Units of work that are charged for one item of a page, besides those for the bytes of its text."""


class Page:
    """Collects the items of one list as JSON. An item for which there is no room is left for the next page."""

    def __init__(self, call: Call, items_max: int = PAGE_ITEMS_MAX, bytes_max: int = PAGE_BYTES_MAX) -> None:
        self._call = call
        self.items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self.size = 0
        self.parts: list[bytes] = []

    @property
    def left(self) -> int:
        """Number of bytes that are left on the page."""
        return max(0, self._bytes_max - self.size)

    @property
    def full(self) -> bool:
        """True if no further item fits."""
        return self.items >= self.items_max or self.size >= self._bytes_max

    async def turn(self, units: int = 0) -> None:
        """Waits for the caller's turn and charges the work for one item. Called before each item is made. `units` is
        extra work."""
        await self._call.breathe()
        charge(ITEM_UNITS + units)

    def add(self, view: msgspec.Struct) -> bool:
        """Adds a small item; returns False if it does not fit. The first item of a page always fits."""
        return self.add_parts([msgspec.json.encode(view)])

    def add_parts(self, parts: list[bytes]) -> bool:
        """Adds an item that is JSON already, in parts; returns False if it does not fit. The first item of a page
        always fits."""
        size = 1 + sum(map(len, parts))
        if self.items and (self.full or size > self.left):
            return False
        charge_text(size)
        if self.items:
            self.parts.append(b",")
        self.parts += parts
        self.items += 1
        self.size += size
        return True

    def answer(self, view: msgspec.Struct, field: str) -> Pieces:
        """Returns the JSON of a view with the items of this page in its list `field`. The list must be empty in
        `view`."""
        before, after = around(view, field, b"[]")
        return Pieces([before, b"[", *self.parts, b"]", after])


def around(view: msgspec.Struct, field: str, value: bytes) -> tuple[bytes, bytes]:
    """Returns the JSON of a view up to the value of a field, and from behind the value on. `value` is the field's value
    as JSON. Texts in the view cannot be mistaken for the field, because their quotes are escaped."""
    mark = b'"%s":' % field.encode()
    before, found, after = msgspec.json.encode(view).partition(mark + value)
    assert found, f"{type(view).__name__} has no field {field} with {value!r}"
    return before + mark, after


AFTER: Final = "after"
"""Name of the query parameter for the next page. Its value is the `next` of the page before."""
LIMIT: Final = "limit"
PAGE_QUERY: Final = (AFTER, LIMIT)
NEIGHBOURS: Final = 100
"""Number of names at each of three places of the list that are compared with an unknown name. To compare all names
would take seconds."""
PREFIX: Final = 2
COMPARED: Final = 50
"""Number of pairs of characters in a comparison of two names that cost one unit of work."""


def limit_of(call: Call) -> int:
    """Returns the parameter ?limit=, the most items of a page. Raises ApiError if it is invalid or 0."""
    limit = number_of(call.query, LIMIT, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX)
    if not limit:
        raise ApiError("bad_query", "limit cannot be 0", f"use a whole number from 1 to {PAGE_ITEMS_MAX}")
    return limit


def after_of(call: Call) -> str | None:
    """Returns the parameter ?after=, a name; None without it, for the first page."""
    return call.query.get(AFTER) or None


async def neighbour(call: Call, name: str, names: SortedMap[str, Any]) -> str | None:
    """Returns the known name that is most similar to an unknown one; None if none is similar enough. Names at the
    beginning of the list, and names near the unknown one, are compared. Also returns None if the caller may not list
    all names, because a hint would reveal one. Each comparison is a step, because it takes long for long names."""
    needs = [Need(Kind.CLUSTER, call.port.config.cluster.name, (Action.LIST,))]
    if not call.port.served.rights.is_allowed(call.caller.party, needs):
        return None
    word = name[:WORD_MAX].lower()
    matcher, found, score = SequenceMatcher[str](b=word), None, SIMILAR
    near = names.keys_from(name[:PREFIX] or None, NEIGHBOURS) + names.keys_from(name or None, NEIGHBOURS)
    for each in dict.fromkeys([*near, *names.keys_from(None, NEIGHBOURS)]):
        await call.breathe()
        charge(ITEM_UNITS + len(word) * min(len(each), WORD_MAX) // COMPARED)
        matcher.set_seq1(each[:WORD_MAX])
        if matcher.real_quick_ratio() > score and matcher.quick_ratio() > score and matcher.ratio() > score:
            found, score = each, matcher.ratio()
    return found


def list_route(path: str, handler: AdminHandler, answer: type[msgspec.Struct], needs: Needs) -> Route:
    """Returns the route of a list that comes in pages. `needs` are the rights of a request code that lists the same.
    Any node may answer; ?consistency= of the caller decides how new the answer is."""
    return Route.of_verb(
        "GET", path, handler, answer, page(), needs, serves=Serves.READ, because=CALLER_CHOOSES, asks=PAGE_QUERY
    )
