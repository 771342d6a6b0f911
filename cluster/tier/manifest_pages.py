"""Pages of the manifest: the older segments, in immutable objects that each new version of the manifest names again.

Page boundaries depend only on positions of the log and, where segments are small, on log times. Every leader therefore
cuts the pages alike and gets the same bytes. A page changes only if the tier gives up its first segments; the rest then
becomes another page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import attrgetter

import msgspec

from cluster.tier.manifest_format import ManifestPage, segments_of
from cluster.tier.object_names import PAGES, page_base, page_name
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import ObjectStore
from statemachine.tier import Rows, TierSegment

COPIES_MAX = 8
"""The most names that are tried for one page."""
KEPT = 16
"""The number of older versions of the manifest that stay, for readers that have just read the name of one."""
ROWS_MAX = 1024
"""The most rows that a stretch of `page_bytes` of the log may have to become one page: twice the number of full
segments that fit into it."""
WEEK_MS = 604_800_000
"""Milliseconds of log time that one page covers if its stretch of the log has more than ROWS_MAX rows. With a segment
an hour that is 168 rows, with one in ten minutes 1,008."""


def stretches(rows: Sequence[TierSegment], page_bytes: int) -> Iterator[Rows]:
    """Yields the rows in groups, one for each stretch of `page_bytes` of the log. A stretch with more than ROWS_MAX
    rows is cut further, where weeks of log time end."""
    at = 0
    while at < len(rows):
        stop = _up_to(rows, at, attrgetter("base"), page_bytes)
        if stop - at <= ROWS_MAX:
            yield tuple(rows[at:stop])
        else:
            yield from _weeks(rows[at:stop])
        at = stop


def _weeks(rows: Sequence[TierSegment]) -> Iterator[Rows]:
    at = 0
    while at < len(rows):
        stop = _up_to(rows, at, attrgetter("span.first_ms"), WEEK_MS)
        yield tuple(rows[at:stop])
        at = stop


def _up_to(rows: Sequence[TierSegment], at: int, key: Callable[[TierSegment], int], size: int) -> int:
    """Returns the index after the last row whose key, divided by `size`, has the same quotient as that of row `at`.
    Keys ascend with the rows."""
    return bisect_left(rows, (key(rows[at]) // size + 1) * size, lo=at, key=key)


async def holds(store: ObjectStore, name: str, body: bytes) -> bool:
    """Returns True if the object has this content. It is read back before anything names it, like every other
    object."""
    try:
        return (await store.get(name, len(body))).data == body
    except (NotFound, BadAnswer):
        return False


class ManifestPages:
    """Writes and removes pages. Event loop only."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._known: dict[int, tuple[Rows, ManifestPage]] = {}
        """Position at which a page begins -> (its rows, the page), for the newest version that this node has
        written."""
        self._begins: deque[int] = deque(maxlen=KEPT + 1)
        """Positions at which the tier began in the last versions that this node published."""
        self._turn = 0

    @property
    def is_empty(self) -> bool:
        """Returns True if this node has published no page since it started."""
        return not self._known

    async def write(self, older: Sequence[Rows], published: Sequence[ManifestPage] = ()) -> list[ManifestPage]:
        """Returns one page for each group of rows, and writes those that are absent. Pages that this node has written,
        and those in `published`, which another leader has read back, are not written again. Each call still checks one
        of them, in rotation, so that damage does not stay unnoticed. Raises StoreError."""
        trusted = {page.base: page for page in published}
        self._turn = (self._turn + 1) % max(1, len(older))
        found: dict[int, tuple[Rows, ManifestPage]] = {}
        for number, rows in enumerate(older):
            base = rows[0].base
            known = self._known.get(base)
            if number != self._turn and known is not None and known[0] == rows:
                found[base] = known
            else:
                found[base] = rows, await self._page(rows, trusted.get(base))
        self._known = found
        return [page for _, page in found.values()]

    async def _page(self, rows: Rows, trusted: ManifestPage | None) -> ManifestPage:
        """Returns the page of these rows, which is in the store and was read back. Returns `trusted` without reading it
        if it has the same content. Raises StoreError."""
        body = msgspec.json.encode(await segments_of(rows))
        digest = sha256(body).hexdigest()
        if trusted is not None and trusted.sha256 == digest:
            return trusted
        for copy in range(COPIES_MAX):
            name = page_name(rows[0].base, rows[-1].end, digest[:16], copy)
            if not await holds(self._store, f"{self._folder}/{name}", body):
                with suppress(AlreadyExists):  # it is damaged; objects are never replaced, so the next name is tried
                    await self._store.create(f"{self._folder}/{name}", body)
                if not await holds(self._store, f"{self._folder}/{name}", body):
                    continue
            return ManifestPage(
                base=rows[0].base,
                end=rows[-1].end,
                name=name,
                segments=len(rows),
                size=len(body),
                sha256=digest,
            )
        raise BadAnswer(f"a page of the manifest read back wrong {COPIES_MAX} times", "look at the store")

    def published(self, begins: int) -> None:
        """Records the position `begins` at which the tier begins in the version that was just published."""
        self._begins.append(begins)

    async def drop_old(self) -> None:
        """Removes pages that no readable version names: those that begin below the lowest position in `_begins`. Does
        nothing until this node has published KEPT + 1 versions.

        Pages of later leaders begin there or above, so a removal that is delayed never hits one of them.
        """
        if len(self._begins) < KEPT + 1:
            return
        begins = min(self._begins)
        async for info in self._store.list(f"{self._folder}/{PAGES}"):
            base = page_base(info.name.removeprefix(f"{self._folder}/"))
            if base is not None and base < begins:
                await self._store.delete(info.name)
