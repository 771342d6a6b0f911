"""Lists the objects in the tier of a cluster whose nodes are lost: copies of the state, and pieces of the log.

The store's listing says which objects exist, and each object proves its own contents: its name contains its hash, and
its frames continue the log. Nothing here needs a manifest, which may be lost, or older than the objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from cluster.tier.manifest_format import HEAD_BYTES_MAX, decode_head
from cluster.tier.object_names import HEAD, LOG, PartName, parse
from cluster.tier.state_copies.state_copier import STATE, StateCopy, is_description, read_copy
from cluster.tier.store.errors import BadAnswer, NotFound, OtherFormat
from cluster.tier.store.object_store import ObjectStore
from cluster.tier.stored_files import BadDescriptionError, DamagedObjectError, read_checked
from raftlog.types import LogTail
from raftmq_wire.errors import ExitCode, LocalError


class Folder(NamedTuple):
    """A folder of the store with pieces of the log: that of the cluster, or that of an ancestor from which it was
    restored."""

    cluster_id: str
    last_index: int | None
    """The last index that the restored cluster shares with the ancestor; None in the cluster's own folder."""


class LogObject(NamedTuple):
    """An object with frames of the log. Its name says at which positions."""

    folder: Folder
    part: PartName


class TierObjects:
    """The objects of one cluster that the store lists. This class only reads the store."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.copies: list[StateCopy] = []
        """Copies of the state that can be read, newest first."""
        self.bad_copies: list[str] = []
        """One sentence for each copy of the state that cannot be read."""
        self.known_index = -1
        """The highest index that the cluster is known to have applied, from its manifest and its copies of the state;
        -1 if none is known."""
        self._log: list[LogObject] = []

    async def load(self, origin: Sequence[tuple[str, int]] = ()) -> None:
        """Lists the store. `origin` are the cluster's ancestors as (cluster uuid, last shared index), if the caller
        knows them. They are used if no copy of the state names the ancestors. Raises StoreError."""
        folder = Folder(self.cluster_id, None)
        names = await self._names(folder, STATE)
        for name in sorted(filter(is_description, names), reverse=True):
            try:
                self.copies.append(await read_copy(self.store, self.cluster_id, name))
            except (BadDescriptionError, BadAnswer, NotFound) as error:
                self.bad_copies.append(f"{self.cluster_id}/{name} cannot be read: {error}")
        self.known_index = max([await self._published_index(), *(copy.index for copy in self.copies)])
        ancestors = self.copies[0].origin if self.copies else origin
        for each in (folder, *(Folder(*ancestor) for ancestor in reversed(ancestors))):
            parts = filter(None, map(parse, await self._names(each, LOG)))
            self._log += [LogObject(each, part) for part in parts if part.folder == LOG]

    async def _names(self, folder: Folder, below: str) -> list[str]:
        prefix = f"{folder.cluster_id}/"
        return [info.name.removeprefix(prefix) async for info in self.store.list(f"{prefix}{below}")]

    async def _published_index(self) -> int:
        try:
            stored = await self.store.get(f"{self.cluster_id}/{HEAD}", HEAD_BYTES_MAX)
            return decode_head(stored.data).applied_index
        except OtherFormat:
            raise
        except (NotFound, BadAnswer, msgspec.DecodeError):
            return -1

    @property
    def is_empty(self) -> bool:
        """True if the store holds nothing of the cluster."""
        return not (self._log or self.copies or self.bad_copies)

    def begins(self) -> int | None:
        """Returns the lowest position of the log in the store; None if there is no log."""
        return min((each.part.base for each in self._log), default=None)

    def oldest_copy(self) -> StateCopy | None:
        """Returns the oldest copy of the state for which the store has the log that it needs; None if there is none."""
        usable = (
            copy
            for copy in reversed(self.copies)
            if self.reaches(LogTail(*copy.log_begins).end_position) >= copy.position
        )
        return next(usable, None)

    def newest(self) -> LogObject | None:
        """Returns the object with the end of the log in the cluster's own folder; None if the folder has no log."""
        own = [each for each in self._log if each.folder.last_index is None]
        return max(own, key=lambda each: (each.part.end, -each.part.base), default=None)

    def reaches(self, position: int) -> int:
        """Returns the position up to which the store has the log without a gap, beginning at `position`. Judges by the
        objects' names."""
        for each in sorted(self._log, key=lambda each: each.part.base):
            if each.part.base <= position < each.part.end:
                position = each.part.end
        return position

    def at(self, position: int) -> list[LogObject]:
        """Returns the objects that contain the byte at `position`. Those of the cluster itself come first. Within both
        parts, objects that begin earlier come first, and of those that begin at one position the longest."""
        found = [each for each in self._log if each.part.base <= position < each.part.end]
        return sorted(found, key=lambda each: (each.folder.last_index is not None, each.part.base, -each.part.end))

    async def read(self, wanted: LogObject) -> tuple[bytes, str]:
        """Returns (bytes of the object, ""), or (b"", a sentence) if it is missing or damaged. Raises StoreError if the
        store does not answer."""
        name, size = f"{wanted.folder.cluster_id}/{wanted.part}", wanted.part.end - wanted.part.base
        try:
            return await read_checked(self.store, name, size, wanted.part.is_of, "in its name"), ""
        except DamagedObjectError as error:
            return b"", str(error)


async def find_clusters(store: ObjectStore, url: str, wanted: str | None) -> list[str]:
    """Returns the ids of the clusters in the store, ascending; only `wanted` if it is given. Raises LocalError if there
    is no cluster, or not the wanted one. Raises StoreError."""
    if wanted is not None:
        async for _ in store.list(wanted):
            return [wanted]
    found = sorted({name async for name in _clusters(store)})
    if wanted is None and found:
        return found
    there = ", ".join(found[:5]) or "no cluster's"
    if wanted is not None:
        why = f"the objects there are of {there}" if found else "there are no objects of any cluster"
        raise LocalError(f"{url} has nothing of cluster {wanted}", why, "check the URL, or --cluster", ExitCode.REFUSED)
    raise LocalError(
        f"{url} holds no tier",
        "no object there lies below the id of a cluster: nothing was uploaded yet, or the tier lies elsewhere",
        "raftmq tier seal    (if the cluster still runs: it uploads all of its log; else give the URL that was "
        "tier.url of the lost cluster)",
        ExitCode.REFUSED,
    )


async def _clusters(store: ObjectStore) -> AsyncIterator[str]:
    async for info in store.list():
        first = info.name.partition("/")[0]
        try:
            if str(UUID(first)) == first:
                yield first
        except ValueError:
            continue
