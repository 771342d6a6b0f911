"""The hash of a tag, by which consumers filter."""

from __future__ import annotations

from functools import lru_cache

from cluster.wire.java_hash import java_hash
from raftlog.work import charge

CACHED_TAG_MAX = 64
"""Bytes of a tag whose hash is remembered; longer ones are rare, and 65,536 of them would be gigabytes."""
LETTERS_PER_UNIT = 16
"""Of a long tag, for the meter."""


@lru_cache(maxsize=65536)
def cached_tag_hash(tag: bytes) -> int:
    """Of a tag of at most CACHED_TAG_MAX bytes that is not empty."""
    return java_hash(tag.decode("utf-8", "replace"))


def tag_hash(tag: bytes) -> int:
    """RocketMQ's tagsCode: Java hash of the tag, 0 without one."""
    if not tag:
        return 0
    if len(tag) <= CACHED_TAG_MAX:
        return cached_tag_hash(tag)
    charge(len(tag) // LETTERS_PER_UNIT)
    return java_hash(tag.decode("utf-8", "replace"))
