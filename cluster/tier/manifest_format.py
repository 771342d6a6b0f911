"""The format of the manifest: the content of `manifest/HEAD` and of the objects to which it leads (docs/tier.md,
docs/adr/0072).

A manifest names the newest segments itself, and older ones through *pages*: immutable objects, each with the segments
whose first byte lies in one stretch of the log. A new version therefore costs only what is new, however large the tier
is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

from cluster.config.sealed_json import Schema
from cluster.tier.object_names import HEAD, LOG, manifest_version
from cluster.tier.store.errors import BadAnswer, OtherFormat
from cluster.tier.store.object_store import Data
from raftlog.format_versions import BASELINE, is_known, why_above, why_unknown
from raftlog.work import charge
from raftmq_wire.json_text import MALFORMED
from statemachine.levels import LEVEL
from statemachine.tier import TierSegment

SCHEMA = 10
HEAD_BYTES_MAX = 4096


class TierObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that holds a part of a segment. `name` is below the cluster's folder."""

    name: str
    size: int
    xxh3: str
    """XXH3 of the content, 128 bits. Checks compare the size and the CRC-32C."""
    crc32c: int


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment: the log's bytes [base, end). Its log parts follow each other in the order of their names."""

    base: int
    end: int
    first_index: int
    last_index: int
    first_ms: int
    last_ms: int
    """`first_ms` and `last_ms`: the log times of the first and the last entry."""
    term: int
    parts: list[TierObject]
    index: list[TierObject]


class ManifestPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page: an object with a JSON list of segments."""

    base: int
    end: int
    """`base` and `end`: the positions at which its first segment begins and its last one ends."""
    name: str
    """The object's name, below the cluster's folder."""
    segments: int
    size: int
    sha256: str


class TierManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the manifest, which names all VERIFIED segments as of `applied_index`."""

    schema: int
    cluster_id: str
    version: int
    term: int
    applied_index: int
    """The index of the last entry that was applied when the rows were read. The rows may be newer."""
    segments: list[Segment]
    """The newest segments, lowest first. If a segment does not begin at the end of the one before, the log between them
    was trimmed before it was uploaded."""
    pages: list[ManifestPage] = []
    """Pages of all older segments, lowest first."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `manifest/HEAD`."""

    schema: int
    """The version of the format of HEAD and of the manifest."""
    cluster_id: str
    version: int
    term: int
    applied_index: int
    key: str
    """Name of the manifest, below the cluster's folder."""
    sha256: str
    """SHA-256 of the manifest's bytes."""
    level: int = BASELINE
    """The level of the cluster when HEAD was written."""


ROWS_AT_ONCE = 64
ROW_UNITS = 15
"""Work units (`raftlog.work`) that the meter counts for one row in a manifest."""

T = TypeVar("T")


def decode(data: Data, kind: type[T]) -> T:
    """Decodes JSON as `msgspec.json.decode` does. Raises msgspec.DecodeError, and nothing else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        raise
    except MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def decode_head(data: Data) -> Head:
    """Decodes HEAD. Raises OtherFormat if it has a format or a level that this version does not know; the caller must
    not replace it then, because it could lose what a newer version wrote. Raises msgspec.DecodeError if HEAD is
    malformed, or does not name a manifest of its version."""
    schema = decode(data, Schema).schema
    if not is_known(schema, SCHEMA):
        what, why, fix = why_unknown(HEAD, schema, SCHEMA)
        raise OtherFormat(f"{what}; {why}", fix)
    head = decode(data, Head)
    if head.level > LEVEL:
        what, why, fix = why_above(HEAD, head.level, LEVEL)
        raise OtherFormat(f"{what}; {why}", fix)
    if manifest_version(head.key) != head.version:
        raise msgspec.ValidationError(f"{HEAD} names {head.key[:80]!r}, which is no manifest of version {head.version}")
    return head


def segment_of(row: TierSegment) -> Segment:
    """Returns the Segment that a manifest has for a row of the tier."""
    span = row.span
    parts = [TierObject(name=p.name, size=p.size, xxh3=p.digest.hex(), crc32c=p.crc32c) for p in row.parts]
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


async def segments_of(rows: Sequence[TierSegment]) -> list[Segment]:
    """Returns the Segments that a manifest has for many rows. Works in several turns of the event loop, because each
    row takes 15 us."""
    found: list[Segment] = []
    for at in range(0, len(rows), ROWS_AT_ONCE):
        await asyncio.sleep(0)
        some = rows[at : at + ROWS_AT_ONCE]
        charge(ROW_UNITS * len(some))
        found += map(segment_of, some)
    await asyncio.sleep(0)  # encoding them takes a turn of its own
    return found


async def all_segments(manifest: TierManifest, get: Callable[[str, int], Awaitable[Data]]) -> list[Segment]:
    """Returns all segments, including those of the pages, lowest first. `get` (name below the cluster's folder, size)
    reads an object. Raises BadAnswer if a page is not what the manifest says, and what `get` raises."""
    found: list[Segment] = []
    for page in manifest.pages:
        found += decode_page(page, await get(page.name, page.size))
    return found + manifest.segments


def decode_page(page: ManifestPage, data: Data) -> list[Segment]:
    """Returns the page's segments. Raises BadAnswer."""
    if sha256(data).hexdigest() != page.sha256:
        raise BadAnswer(f"{page.name} is not what the manifest says", "the leader writes it again")
    try:
        return decode(data, list[Segment])
    except msgspec.DecodeError as error:
        raise BadAnswer(f"{page.name} is no page: {error}", "was it written by a newer RaftMQ?") from None
