"""Tells the clusters apart whose tiers are in one store: the range of time that each covers, and which cluster
continues which.

A cluster that was restored from a tier keeps the same `tier.url`. Therefore a store often has both the lost cluster and
the restored one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster.backup.replay import RestoreTarget
from cluster.backup.tier_objects import TierObjects
from cluster.runtime.events import rfc3339
from cluster.tier.store.errors import BadAnswer
from cluster.tier.store.object_store import ObjectStore
from raftlog.errors import FrameError
from raftlog.frame import decode_entries

MEASURED_MAX = 10
"""The most clusters whose ranges are read. Each takes the reading of two objects."""


class RestorePoint(NamedTuple):
    """An entry of the log, by its index and its log time. A restore accepts either."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{rfc3339(self.timestamp_ms)} (index {self.index})"


class Coverage(NamedTuple):
    """The range of the log to which one cluster can be restored from its tier alone."""

    cluster_id: str
    first: RestorePoint | None = None
    """The earliest possible entry; None if the tier has nothing to begin with."""
    last: RestorePoint | None = None
    """The last possible entry; None if nothing of the log can be read."""
    ancestors: Sequence[tuple[str, int]] = ()
    """(cluster id, last shared index) of the clusters whose logs this one continues, the nearest last."""

    def holds(self, target: RestoreTarget) -> bool:
        """Returns True if the target lies in this range. A target without index and time means the end of the log,
        which lies in every range that is not empty."""
        if self.first is None or self.last is None or target.is_below(*self.first):
            return False
        return target == RestoreTarget() or target.is_below(*self.last) or target == target.like(*self.last)

    def nearest(self, target: RestoreTarget) -> RestoreTarget:
        """Returns the target if it lies in this range, else the nearest end of the range."""
        if self.first is None or self.last is None or self.holds(target):
            return target
        return target.like(*(self.first if target.is_below(*self.first) else self.last))

    def __str__(self) -> str:
        if self.first is None or self.last is None:
            told = "nothing to begin with, or no log that can be read"
        else:
            told = f"{self.first} to {self.last}"
        if self.ancestors:
            told += ", continues {} from index {}".format(*self.ancestors[-1])
        return f"{self.cluster_id}: {told}"


async def coverage_of(store: ObjectStore, cluster_id: str) -> Coverage:
    """Returns the range of a cluster. Damaged objects are left out. The range is empty if a newer version wrote
    `manifest/HEAD`, or if the store answers wrongly (BadAnswer). Raises StoreError for all other errors of the
    store."""
    objects = TierObjects(store, cluster_id)
    try:
        await objects.load()
    except BadAnswer:
        return Coverage(cluster_id)
    ancestors = [(name, index) for name, index in objects.copies[0].origin] if objects.copies else []
    first = await _first(objects)
    return Coverage(cluster_id, first, await _last(objects), ancestors)


async def _first(objects: TierObjects) -> RestorePoint | None:
    if objects.begins() == 0:
        for wanted in objects.at(0):
            data, _ = await objects.read(wanted)
            if data:
                entry = next(decode_entries(data))
                return RestorePoint(entry.index, entry.timestamp_ms)
    oldest = objects.oldest_copy()
    return None if oldest is None else RestorePoint(oldest.index, oldest.timestamp_ms)


async def _last(objects: TierObjects) -> RestorePoint | None:
    last = None if not objects.copies else RestorePoint(objects.copies[0].index, objects.copies[0].timestamp_ms)
    newest = objects.newest()
    if newest is not None:
        data, _ = await objects.read(newest)
        try:
            for entry in decode_entries(data):
                last = max(last or RestorePoint(-1, 0), RestorePoint(entry.index, entry.timestamp_ms))
        except FrameError:  # the copies of the state, and the entries so far, still count
            pass
    return last


def choose(found: Sequence[Coverage], target: RestoreTarget) -> tuple[Coverage, str]:
    """Returns (the cluster that is most likely meant, a text that says why). If only one cluster's range has the
    target, it is that one. Otherwise it is the one that began first, among the clusters that continue no other of
    them."""
    having = [each for each in found if each.holds(target)]
    if len(having) == 1 and target != RestoreTarget():
        return having[0], f"the only one that has {target}"
    pool = having or [each for each in found if each.last is not None] or list(found)
    names = {each.cluster_id for each in pool}
    roots = [each for each in pool if names.isdisjoint(name for name, _ in each.ancestors)]
    chosen = min(roots or pool, key=lambda each: (each.first or RestorePoint(0, 1 << 62)).timestamp_ms)
    others = [each for each in pool if any(name == chosen.cluster_id for name, _ in each.ancestors)]
    why = "others continue it" if others else "it began first"
    return chosen, why if having or target == RestoreTarget() else f"none has {target}; {why}"
