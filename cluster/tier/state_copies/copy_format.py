"""The description of a state copy, its names, and the choice of the copies that stay. No I/O.

::

    <cluster id>/state/<index>-<term>-<crc>.json      description; the name of the checkpoint that was copied
    <cluster id>/state/<index>-<sha256>.part          <index>: of the copy that wrote the part first
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from cluster.tier.stored_files import StoredFile

STATE = "state"
KEPT = 8
"""Copies that can be used."""
_DESCRIPTION = re.compile(r"state/(\d{20})-\d+-[0-9a-f]{8}\.json", re.ASCII)
_PART = re.compile(r"state/(\d{20})-[0-9a-f]{32}(?:-\d+)?\.part", re.ASCII)


class StateCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the state: the rows as of one applied index. Numbers that need 64 bits are hexadecimal text."""

    cluster_id: str
    checkpoint: str
    """Name of the checkpoint."""
    index: int
    """Index of the last applied entry, likewise the next four."""
    term: int
    position: int
    """End of that entry: the log from here on is not applied."""
    header_crc: int
    timestamp_ms: int
    """Log time."""
    made_ms: int
    """Wall clock of the node."""
    node: int
    group_id: int
    cluster_name: str
    broker_name: str
    segment_size: int
    log_begins: list[int]
    """The `LogTail` before the first segment that the rows refer to."""
    genesis: str
    """The frame at index 0 in hexadecimal digits."""
    origin: list[tuple[str, int]]
    """The cluster's ancestors, oldest first: (cluster uuid, last index)."""
    files: list[StoredFile]
    versions: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the description, below the cluster's folder."""
        return f"{STATE}/{self.checkpoint}.json"


def part_prefix(index: int) -> str:
    """Begins the names of the parts that the copy at `index` writes."""
    return f"{STATE}/{index:020d}"


def is_description(name: str) -> bool:
    """Returns True if a name below the cluster's folder is that of a state copy's description."""
    return _DESCRIPTION.fullmatch(name) is not None


def index_of(name: str) -> int | None:
    """The applied index in the name of a description or a part; None if it is neither."""
    found = _DESCRIPTION.fullmatch(name) or _PART.fullmatch(name)
    return None if found is None else int(found[1])


def pending(copies: Iterable[StateCopy], tier_end: int) -> list[StateCopy]:
    """Those that cannot be used yet: their state refers to bytes that the tier does not hold."""
    return [copy for copy in copies if copy.position > tier_end]


def kept(copies: Iterable[StateCopy], tier_end: int) -> list[StateCopy]:
    """Those that stay, oldest first: the newest KEPT that can be used, and the ones that cannot yet."""
    ordered = sorted(copies, key=lambda copy: copy.index)
    usable = [copy for copy in ordered if copy.position <= tier_end]
    return [*usable[-KEPT:], *pending(ordered, tier_end)]


def garbage(listed: Iterable[str], stay: Sequence[StateCopy]) -> list[str]:
    """Names below the cluster's folder that nothing needs: older than the oldest copy that stays, and named by none.

    Leftovers of an attempt that failed are older than that sooner or later; until then they are left alone, because
    another leader may be about to name them. Descriptions come first.
    """
    if not stay:
        return []
    oldest = min(copy.index for copy in stay)
    named = {part.name for copy in stay for file in copy.files for part in file.parts}
    old = [name for name in listed if name not in named and (index := index_of(name)) is not None and index < oldest]
    return sorted(old, key=lambda name: (not is_description(name), name))
