"""The manifest: a copy of the tier's rows in the store itself, for readers that have no cluster to ask.

`manifest/HEAD` is the only object of the tier that is replaced, by compare-and-swap. It names an immutable manifest,
which lists the VERIFIED segments as of one applied index. The log's state is authoritative: a manifest may be older
than the state, but never names a segment that the state did not list when it was made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import msgspec

from cluster.tier.manifest_format import (
    HEAD_BYTES_MAX,
    SCHEMA,
    Head,
    ManifestPage,
    Segment,
    TierManifest,
    decode,
    decode_head,
    segments_of,
)
from cluster.tier.manifest_pages import COPIES_MAX, KEPT, ManifestPages, holds, stretches
from cluster.tier.object_names import HEAD, MANIFESTS, manifest_name
from cluster.tier.store.errors import AlreadyExists, BadAnswer, NotFound
from cluster.tier.store.object_store import OBJECT_BYTES_MAX, ObjectStore
from raftlog.format_versions import BASELINE
from statemachine.tier import TierSegment, TierState

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """The newest version of the manifest in the store, after a call of `publish`."""

    version: int
    applied_index: int
    by_this: bool
    """True if this call published the version. False if the store already had one that is as new or newer."""


class ManifestPublisher:
    """Publishes manifests. Event loop only."""

    def __init__(self, store: ObjectStore, folder: str, cluster_id: str, page_bytes: int = 32 << 30) -> None:
        """`page_bytes`: bytes of the log for each page of older segments."""
        self._page_bytes = page_bytes
        self._pages = ManifestPages(store, folder)
        self._store = store
        self._folder = folder
        self._cluster_id = cluster_id

    async def publish(
        self, rows: Sequence[TierSegment], term: int, applied_index: int, level: int = BASELINE
    ) -> Published:
        """Publishes the VERIFIED rows as of `applied_index`, unless the store has a version that is as new or newer.
        Raises StoreError. Conflict means that another leader has published, so the caller must read the rows again.
        BadAnswer means that the written manifest cannot be read, so the caller must publish it again."""
        known, tag = await self._head()
        # HEAD never goes back: a deposed leader that is slow must not hide segments that a later version names.
        if known is not None and (known.term, known.applied_index) >= (term, applied_index):
            if await self._is_true(known):
                return Published(known.version, known.applied_index, False)
            known = None  # otherwise one damaged digit in HEAD could stop all later publishing
        version = 1 + (await self._newest_version() if known is None else known.version)
        verified = [row for row in rows if row.state is TierState.VERIFIED]
        *older, newest = list(stretches(verified, self._page_bytes)) or [()]
        pages = await self._pages.write(older, await self._published_pages(known)) if older else []
        segments = await segments_of(newest)
        for _ in range(COPIES_MAX):
            manifest = self._manifest(pages, segments, version, term, applied_index)
            name, body = encode(manifest)
            with suppress(AlreadyExists):  # an earlier attempt wrote this very content and came no further
                await self._store.create(f"{self._folder}/{name}", body)
            # The manifest is read back before HEAD names it, because readers trust what HEAD names.
            if await holds(self._store, f"{self._folder}/{name}", body):
                break
            version += 1  # objects are never replaced, so another version gets another name
        else:
            raise BadAnswer(f"manifests read back wrong {COPIES_MAX} times", "look at the store")
        head = Head(
            schema=manifest.schema,
            cluster_id=self._cluster_id,
            version=version,
            term=term,
            applied_index=applied_index,
            key=name,
            sha256=sha256(body).hexdigest(),
            level=level,
        )
        # HEAD is replaced only if it is still the one that was read. If another leader has replaced it, this one raises
        # Conflict.
        if tag:
            await self._store.replace(f"{self._folder}/{HEAD}", msgspec.json.encode(head), tag)
        else:
            await self._store.create(f"{self._folder}/{HEAD}", msgspec.json.encode(head))
        # HEAD has no checksum of its own, so it counts as published only once it was read back.
        if (await self._head())[0] is None:
            raise BadAnswer(
                f"{HEAD} reads back wrong", "the node writes it again; if that does not end, look at the store"
            )
        if verified:
            self._pages.published(verified[0].base)
        await self._drop_old(version)
        return Published(version, applied_index, True)

    def _manifest(
        self, pages: list[ManifestPage], segments: list[Segment], version: int, term: int, applied_index: int
    ) -> TierManifest:
        return TierManifest(
            schema=SCHEMA,
            cluster_id=self._cluster_id,
            version=version,
            term=term,
            applied_index=applied_index,
            segments=segments,
            pages=pages,
        )

    async def _published_pages(self, head: Head | None) -> Sequence[ManifestPage]:
        """Returns the pages of the version that `head` names; () if they cannot be read. Returns () too if this node
        has published pages itself, because it knows them."""
        if head is None or not self._pages.is_empty:
            return ()
        try:
            body = (await self._store.get(f"{self._folder}/{head.key}", OBJECT_BYTES_MAX)).data
            if sha256(body).hexdigest() == head.sha256:
                return decode(body, TierManifest).pages
        except (NotFound, BadAnswer, msgspec.DecodeError) as error:
            logger.warning("tier: %s cannot be read, so every page of the manifest is: %s", head.key, error)
        return ()

    async def _head(self) -> tuple[Head | None, str]:
        """Returns HEAD and its tag: (None, "") if there is none; (None, tag) if it cannot be read and is to be
        replaced."""
        try:
            stored = await self._store.get(f"{self._folder}/{HEAD}", OBJECT_BYTES_MAX)
        except NotFound:
            return None, ""
        try:
            if len(stored.data) > HEAD_BYTES_MAX:
                raise msgspec.DecodeError(f"it has {len(stored.data)} bytes")
            return decode_head(stored.data), stored.tag
        except msgspec.DecodeError as error:
            logger.warning("tier: %s cannot be read and is written again: %s", HEAD, error)
            return None, stored.tag

    async def _is_true(self, head: Head) -> bool:
        """Returns True if the manifest that HEAD names confirms it, because HEAD has no checksum of its own. If another
        leader's manifest is gone because there are newer ones, HEAD has changed too, so that replacing it fails."""
        try:
            body = (await self._store.get(f"{self._folder}/{head.key}", OBJECT_BYTES_MAX)).data
            if sha256(body).hexdigest() == head.sha256 and _who(decode(body, TierManifest)) == _who(head):
                return True
        except (NotFound, BadAnswer, msgspec.DecodeError) as error:
            logger.warning("tier: %s names %s, which cannot be read: %s", HEAD, head.key, error)
            return False
        logger.warning("tier: %s says other than %s: it is written again", HEAD, head.key)
        return False

    async def _newest_version(self) -> int:
        """Returns the highest version in the names of the manifests in the store; 0 if there is none."""
        newest = 0
        async for info in self._store.list(f"{self._folder}/{MANIFESTS}"):
            number = info.name.removeprefix(f"{self._folder}/{MANIFESTS}/").partition(".")[0]
            newest = max(newest, int(number) if number.isdecimal() else 0)
        return newest

    async def _drop_old(self, version: int) -> None:
        """Removes manifests that are more than KEPT versions older than `version`, and old pages. A reader that has
        just read HEAD therefore still finds its manifest. Does nothing unless `version` is a multiple of KEPT."""
        if version % KEPT:
            return  # it is not listed each time: a listing takes a request for each thousand names
        low = f"{MANIFESTS}/{max(0, version - KEPT):020d}"
        async for info in self._store.list(f"{self._folder}/{MANIFESTS}"):
            name = info.name.removeprefix(f"{self._folder}/")
            # Newer manifests stay: a reader that has just read an older HEAD still follows it.
            if name != HEAD and name < low:
                await self._store.delete(info.name)
        await self._pages.drop_old()


def _who(of: Head | TierManifest) -> tuple[int, int, int, str]:
    return of.version, of.term, of.applied_index, of.cluster_id


def encode(manifest: TierManifest) -> tuple[str, bytes]:
    """Returns (name below the cluster's folder, content) of the manifest's object."""
    body = msgspec.json.encode(manifest)
    return manifest_name(manifest.version, sha256(body).hexdigest()[:16]), body
