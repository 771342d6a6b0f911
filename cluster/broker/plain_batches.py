"""The short way of the messages of a batch request: from its body to what is stored, by the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.kernel import twin

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.replication.message_batch import BatchMessage


@twin
class PlainBatches:
    """Divides batches whose messages are all plain: named by a UNIQ_KEY, and with no property that the broker acts on.
    In Python there is no shorter way than `Sends.split_batch`: it divides none."""

    def __init__(self, limits: LimitsSection, suffix: bytes) -> None:
        """`suffix`: properties that the broker adds to every message."""

    def split(self, body: bytes) -> tuple[BatchMessage, ...] | None:
        """The messages of a batch request to a topic without dedup=strict; None if one is not plain, does not fit the
        limits or is malformed."""
        return None
