"""What a listing of the store and the rows of the state say about each other. No I/O."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cluster.tier.object_names import part_base
from cluster.tier.store.object_store import ObjectInfo
from statemachine.tier import TierPart, TierSegment, TierState

PROBE_MS = 3_600_000
"""An object of a probe that is older was left by a node that died."""
_PROBE = re.compile(r"probe/[0-9a-f]+")


class Survey(NamedTuple):
    """Names are below the cluster's folder."""

    expected: dict[str, TierPart]
    """Objects of VERIFIED segments by name."""
    absent: list[str]
    """Of these: not in the listing. Only asking for each proves that it is gone."""
    sized_wrongly: dict[str, int]
    """Of these: in the listing with another size."""
    orphans: list[ObjectInfo]
    """Objects that no row names, and that none ever will."""
    unsettled: list[ObjectInfo]
    """Objects that no row names yet: of a segment whose upload goes on, or of a probe."""
    strange: list[str]
    """Whatever else is there: not this program's, so never removed."""


def survey(rows: Sequence[TierSegment], listed: Iterable[ObjectInfo], now_ms: int, kept_from: int = 0) -> Survey:
    """`listed`: everything below the cluster's folder but its manifests, with names below that folder. `kept_from`:
    position where the log begins that is kept anywhere."""
    named = {part.name for row in rows for part in row.parts}
    expected = {part.name: part for row in rows if row.state is TierState.VERIFIED for part in row.parts}
    sizes: dict[str, int] = {}
    found = Survey(expected, [], {}, [], [], [])
    for info in listed:
        base, probe = part_base(info.name), _PROBE.fullmatch(info.name)
        if info.name in named:
            sizes[info.name] = info.size
        elif base is None and probe is None:
            found.strange.append(info.name)
        elif _is_settled(rows, base, kept_from) if base is not None else info.modified_ms + PROBE_MS <= now_ms:
            found.orphans.append(info)
        else:
            found.unsettled.append(info)
    found.absent.extend(name for name in expected if name not in sizes)
    found.sized_wrongly.update(
        {name: sizes[name] for name, part in expected.items() if name in sizes and sizes[name] != part.size}
    )
    return found


def _is_settled(rows: Sequence[TierSegment], base: int, kept_from: int) -> bool:
    """Whether no upload will ever name an object of the segment there: its names are VERIFIED and stay as they are, or
    it lies below all rows, or below what is kept: uploads go on above both. Not the age of an object decides: a removal
    that a slow network delays could otherwise hit what an upload has found to be there, and has verified, meanwhile."""
    number = bisect_right(rows, base, key=lambda row: row.base) - 1
    if number >= 0 and base < rows[number].end:
        return rows[number].state >= TierState.VERIFIED
    return base < kept_from or bool(rows and base < rows[0].base)
