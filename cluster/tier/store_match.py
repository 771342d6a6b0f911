"""Whether a store is the one that the log's state speaks of.

The rows of the tier name objects, and not the store that they are in: the URL is configuration, which may change, also
by mistake. A leader that trusted it would let messages go from the nodes that the new store never had.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.tier.store.errors import NotFound, StoreError
from cluster.tier.store.object_store import ObjectStore
from statemachine.tier import TierSegment, TierState


class WrongStoreError(StoreError):
    """The store holds nothing of what was uploaded."""


async def require_own(store: ObjectStore, folder: str, rows: Sequence[TierSegment]) -> None:
    """Looks for the first, a middle and the last VERIFIED segment; one that is there is enough, because single losses
    are for the scrub to find. Raises WrongStoreError, and StoreError if the store does not answer."""
    verified = [row for row in rows if row.state is TierState.VERIFIED]
    if not verified:
        return
    for row in (verified[-1], verified[0], verified[len(verified) // 2]):
        try:
            await store.head(f"{folder}/{row.parts[0].name}")
        except NotFound:
            continue
        return
    raise WrongStoreError(
        f"{store.root} has nothing of the {len(verified)} segments that were uploaded, so nothing more is",
        "set tier.url to the store that has them; or copy them there; or have the nodes write what they still have "
        "again: raftmq tier repair",
    )
