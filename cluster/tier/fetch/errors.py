"""Why bytes of the tier cannot be served, beside what stores raise (`cluster.tier.store.errors`)."""

from __future__ import annotations

from cluster.tier.store.errors import StoreError


class DamagedError(StoreError):
    """Bytes of the tier do not match their checksum, in the store and wherever else they were looked for."""


class NotTieredError(StoreError):
    """No verified segment of the tier holds the position, or the queue's offset."""
