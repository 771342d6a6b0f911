"""Defines the subscription of a consumer to a topic, and turns it into a filter: tags by their hashes, or SQL92."""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import NamedTuple

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.refusal import Reason, Refused
from raftlog.work import at_once, charge, charge_bytes
from raftmq_wire.message_format import java_hash

TagFilter = frozenset[int] | None
"""The hashes of the wanted tags, as the consume queue stores them; None if all messages are wanted."""
MessageFilter = TagFilter | SqlFilter
SQL92 = "SQL92"


class Subscription(NamedTuple):
    """The subscription of a consumer group to one topic. `version` is the time of the client's clock when it
    subscribed; the subscription with the highest version counts."""

    topic: str
    expression_type: str
    sub_string: str
    version: int


class Expression(NamedTuple):
    """A consumer's selection of a topic's messages, as the consumer wrote it. A type of None or "" means tags. A text
    of None or "" means all messages."""

    type: str | None
    text: str | None


TEXT_MAX = 32 << 10
"""The most characters of a subscription. There is a limit because each group and each waiting pull keeps one."""
CACHED_TEXT_MAX, CACHED_MAX = 256, 1024
"""The most characters of a text whose hashes are remembered, and the most such texts: some 10 MB together."""
TAG_UNITS, LETTERS_PER_UNIT = 3, 16
"""The units of work (`raftlog.work`) of hashing a tag, and the number of its letters that cost one more unit."""
STEP_UNITS = 200


def tag_hashes(sub_string: str) -> TagFilter:
    """Returns Java's hash of each tag of "a || b"; None for "*" and for an empty text. Raises Refused if the text is
    too long."""
    if len(sub_string) <= CACHED_TEXT_MAX:
        return _cached_hashes(sub_string)
    check_text(sub_string)
    return at_once(hashing(sub_string))


def hashing(sub_string: str) -> Generator[None, None, TagFilter]:
    """Returns what `tag_hashes` returns. Works in bounded steps. The caller has checked the length of the text."""
    if sub_string.strip() in ("", "*"):
        return None
    charge_bytes(len(sub_string))
    hashes: set[int] = set()
    units = 0
    for tag in map(str.strip, sub_string.split("||")):
        if tag:
            cost = TAG_UNITS + len(tag) // LETTERS_PER_UNIT
            charge(cost)
            hashes.add(java_hash(tag))
            units += cost
            if units >= STEP_UNITS:
                units = 0
                yield
    return frozenset(hashes) or None


def check_text(sub_string: str) -> None:
    """Raises Refused (BAD_SUBSCRIPTION) if a subscription is too long to be kept."""
    if len(sub_string) > TEXT_MAX:
        remark = f"a subscription of {len(sub_string)} characters is too long; at most {TEXT_MAX} are allowed"
        raise Refused(Reason.BAD_SUBSCRIPTION, remark)


@functools.lru_cache(maxsize=CACHED_MAX)
def _cached_hashes(sub_string: str) -> TagFilter:
    return at_once(hashing(sub_string))
