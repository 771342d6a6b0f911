"""Named sets of limits: what `limits.profile` changes where a key of [limits] is not given by itself."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection

PROFILES: dict[str, dict[str, int]] = {
    "rocketmq": {},
    "report-003": {"topic_length_max": 256, "message_bytes_max": 65_535},
}
"""`rocketmq` is what its broker enforces, and the default of every key: topics of 127 bytes, messages of 4 MiB.
`report-003` is what a widely read description of its commit log says: topics of 256, messages of 65,535."""


def with_profile(limits: LimitsSection, given: Container[str]) -> LimitsSection:
    """The limits with their profile's values for the keys that were not `given`."""
    return replace(limits, **{key: value for key, value in PROFILES[limits.profile].items() if key not in given})
