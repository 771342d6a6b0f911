"""The content of a tier of a cluster whose nodes are lost: copies of the state, and the log's bytes by position.

The listing says what is there, and each object proves itself: its name has its hash, and its frames continue the chain
of the log. So nothing here relies on a manifest that may be older than the objects, or lost.
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
from raftmq_wire.errors import ExitCode, LocalError


class Folder(NamedTuple):
    """A cluster's folder that holds bytes of the log."""

    cluster_id: str
    last_index: int | None
    """The log went on elsewhere after this entry; None for the cluster itself."""


class LogObject(NamedTuple):
    """An object with frames."""

    folder: Folder
    part: PartName


class TierObjects:
    """The objects that were listed. Nothing here changes the store."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.copies: list[StateCopy] = []
        """Newest first."""
        self.bad_copies: list[str] = []
        """A sentence for each that cannot be read."""
        self.known_index = -1
        """The cluster had applied at least this entry, as the manifest and the copies say."""
        self._log: list[LogObject] = []

    async def load(self, origin: Sequence[tuple[str, int]] = ()) -> None:
        """Lists the store. `origin`: the cluster's ancestors, if they are known otherwise. Raises StoreError."""
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
        """True if nothing of the cluster is there."""
        return not (self._log or self.copies or self.bad_copies)

    def begins(self) -> int | None:
        """The lowest position of the log that is there; None if none is."""
        return min((each.part.base for each in self._log), default=None)

    def reaches(self, position: int) -> int:
        """The log is there without a gap from `position` up to this one, by the names."""
        for each in sorted(self._log, key=lambda each: each.part.base):
            if each.part.base <= position < each.part.end:
                position = each.part.end
        return position

    def at(self, position: int) -> list[LogObject]:
        """Those that have the byte at `position`: of the cluster itself first, the longest first."""
        found = [each for each in self._log if each.part.base <= position < each.part.end]
        return sorted(found, key=lambda each: (each.folder.last_index is not None, each.part.base, -each.part.end))

    async def read(self, wanted: LogObject) -> tuple[bytes, str]:
        """(the object's bytes, ""), or (b"", what is wrong with it). Raises StoreError if the store does not answer."""
        name, size = f"{wanted.folder.cluster_id}/{wanted.part}", wanted.part.end - wanted.part.base
        try:
            return await read_checked(self.store, name, size, wanted.part.is_of, "in its name"), ""
        except DamagedObjectError as error:
            return b"", str(error)


async def find_cluster(store: ObjectStore, url: str, wanted: str | None) -> str:
    """The cluster id in the store; `wanted` if it is there. Raises LocalError, StoreError."""
    if wanted is not None:
        async for _ in store.list(wanted):
            return wanted
    found = sorted({name async for name in _clusters(store)})
    if wanted is None and len(found) == 1:
        return found[0]
    there = ", ".join(found[:5]) or "no cluster's"
    if wanted is not None:
        why = f"the objects there are of {there}" if found else "there are no objects of any cluster"
        raise LocalError(f"{url} has nothing of cluster {wanted}", why, "check the URL, or --cluster", ExitCode.REFUSED)
    if not found:
        raise LocalError(
            f"{url} holds no tier",
            "no object there lies below the id of a cluster",
            "give the URL that was tier.url of the lost cluster",
            ExitCode.REFUSED,
        )
    raise LocalError(
        f"{url} holds the tiers of {len(found)} clusters",
        there,
        f"raftmq restore --from-tier {url} --cluster {found[0]} --into DIR",
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
