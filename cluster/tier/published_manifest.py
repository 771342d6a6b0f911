"""The manifest: a copy of the tier's rows in the store itself, for readers that have no cluster to ask.

`manifest/HEAD` is the only object of the tier that is replaced, by compare-and-swap. It names an immutable manifest,
which lists the VERIFIED segments as of one applied index. The log's state is the truth: a manifest may be older, and
never names what the state did not say when it was made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import msgspec

from cluster.tier.object_names import HEAD, LOG, MANIFESTS, manifest_name
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import Data, ObjectStore
from statemachine.tier import TierSegment, TierState

logger = logging.getLogger(__name__)

SCHEMA = 1
HEAD_BYTES_MAX = 4096
COPIES_MAX = 8
"""Names tried in a row."""
KEPT = 16
"""Versions before the newest that stay, for readers that have just read their name."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An object. `name` is below the cluster's folder."""

    name: str
    size: int
    sha256: str
    crc32c: int


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The log's bytes [base, end). Its log parts follow each other in the order of their names."""

    base: int
    end: int
    first_index: int
    last_index: int
    first_ms: int
    last_ms: int
    """Log times."""
    term: int
    parts: list[Part]
    index: list[Part]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version."""

    schema: int = SCHEMA
    cluster_id: str
    version: int
    term: int
    applied_index: int
    """The rows are those of this entry."""
    segments: list[Segment]
    """Lowest first. Where one does not begin at the end of the one before, the log was trimmed before it was
    uploaded."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest/HEAD`."""

    schema: int = SCHEMA
    cluster_id: str
    version: int
    term: int
    applied_index: int
    key: str
    """Name of the manifest, below the cluster's folder."""
    sha256: str
    """Of the manifest's bytes."""


class Published(NamedTuple):
    """What is in the store now."""

    version: int
    applied_index: int
    by_this: bool
    """Whether this call did it: else what was there is as new, or another leader's."""


class ManifestPublisher:
    """Event loop only."""

    def __init__(self, store: ObjectStore, folder: str, cluster_id: str) -> None:
        self._store = store
        self._folder = folder
        self._cluster_id = cluster_id

    async def publish(self, rows: Sequence[TierSegment], term: int, applied_index: int) -> Published:
        """Makes the rows as of `applied_index` the newest version, unless a later one is there. Raises StoreError,
        among them Conflict: another leader published meanwhile, so look again; and BadAnswer: what was written cannot
        be read, so publish again."""
        known, tag = await self._head()
        if known is not None and (known.term, known.applied_index) >= (term, applied_index):
            return Published(known.version, known.applied_index, False)
        version = 1 + (await self._newest_version() if known is None else known.version)
        for _ in range(COPIES_MAX):
            name, body = self._encode(rows, version, term, applied_index)
            with suppress(AlreadyExists):  # this very content, of an attempt that came no further
                await self._store.create(f"{self._folder}/{name}", body)
            if await self._holds(name, body):
                break
            version += 1  # objects are never replaced: another version has another name
        else:
            raise BadAnswer(f"manifests read back wrong {COPIES_MAX} times", "look at the store")
        head = Head(
            cluster_id=self._cluster_id,
            version=version,
            term=term,
            applied_index=applied_index,
            key=name,
            sha256=sha256(body).hexdigest(),
        )
        if tag:
            await self._store.replace(f"{self._folder}/{HEAD}", msgspec.json.encode(head), tag)
        else:
            await self._store.create(f"{self._folder}/{HEAD}", msgspec.json.encode(head))
        if (await self._head())[0] is None:
            raise BadAnswer(
                f"{HEAD} reads back wrong", "the node writes it again; if that does not end, look at the store"
            )
        await self._drop_old(version)
        return Published(version, applied_index, True)

    def _encode(self, rows: Sequence[TierSegment], version: int, term: int, applied_index: int) -> tuple[str, bytes]:
        """(name, content) of a version."""
        manifest = Manifest(
            cluster_id=self._cluster_id,
            version=version,
            term=term,
            applied_index=applied_index,
            segments=[_segment(row) for row in rows if row.state is TierState.VERIFIED],
        )
        body = msgspec.json.encode(manifest)
        return manifest_name(version, sha256(body).hexdigest()[:16]), body

    async def _holds(self, name: str, body: bytes) -> bool:
        """Whether the object has this content: read back, as every other object is, before anything names it."""
        try:
            return (await self._store.get(f"{self._folder}/{name}", len(body))).data == body
        except (NotFound, BadAnswer):
            return False

    async def _head(self) -> tuple[Head | None, str]:
        """HEAD and its tag; (None, "") if there is none, (None, tag) if it cannot be read: then it is replaced."""
        try:
            stored = await self._store.get(f"{self._folder}/{HEAD}", HEAD_BYTES_MAX)
        except NotFound:
            return None, ""
        try:
            return decode_head(stored.data), stored.tag
        except msgspec.DecodeError as error:
            logger.warning("tier: %s cannot be read and is written again: %s", HEAD, error)
            return None, stored.tag

    async def _newest_version(self) -> int:
        """By the names of the manifests that are there."""
        newest = 0
        async for info in self._store.list(f"{self._folder}/{MANIFESTS}"):
            number = info.name.removeprefix(f"{self._folder}/{MANIFESTS}/").partition(".")[0]
            newest = max(newest, int(number) if number.isdecimal() else 0)
        return newest

    async def _drop_old(self, version: int) -> None:
        """Removes manifests that nobody can have begun to read lately."""
        if version % KEPT:
            return  # a listing costs a request for each thousand names
        low = f"{MANIFESTS}/{max(0, version - KEPT):020d}"
        async for info in self._store.list(f"{self._folder}/{MANIFESTS}"):
            name = info.name.removeprefix(f"{self._folder}/")
            if name != HEAD and name < low:
                await self._store.delete(info.name)


def decode_head(data: Data) -> Head:
    """Reads HEAD. Raises BadAnswer if a newer release wrote it: it may say what would be lost. Raises
    msgspec.DecodeError if it is none."""
    schema = msgspec.json.decode(data, type=_Schema).schema
    if schema > SCHEMA:
        raise BadAnswer(
            f"{HEAD} has schema {schema}, this release knows {SCHEMA}: written by a newer RaftMQ", "use that release"
        )
    return msgspec.json.decode(data, type=Head)


class _Schema(msgspec.Struct):
    schema: int


def _segment(row: TierSegment) -> Segment:
    span = row.span
    parts = [Part(name=p.name, size=p.size, sha256=p.sha256.hex(), crc32c=p.crc32c) for p in row.parts]
    return Segment(
        base=row.base,
        end=span.end,
        first_index=span.first_index,
        last_index=span.last_index,
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        term=row.term,
        parts=[part for part in parts if part.name.startswith(f"{LOG}/")],
        index=[part for part in parts if not part.name.startswith(f"{LOG}/")],
    )
