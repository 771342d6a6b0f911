"""What a consumer wants of a topic, and the filter that follows from it: tags by their hashes, or SQL92."""

from __future__ import annotations

import functools
from typing import NamedTuple

from cluster.broker.filters.errors import FilterError
from cluster.broker.filters.sql import SqlFilter, sql_filter
from cluster.broker.refusal import Reason, Refused
from cluster.wire.java_hash import java_hash

TagFilter = frozenset[int] | None
"""Hashes of the wanted tags as the consume queue stores them; None lets everything through."""
MessageFilter = TagFilter | SqlFilter
SQL92 = "SQL92"


class Subscription(NamedTuple):
    """One topic of a consumer group. `version` is the client's clock when it subscribed; the newest wins."""

    topic: str
    expression_type: str
    sub_string: str
    version: int


class Expression(NamedTuple):
    """Which messages of a topic a consumer wants, as it says it; None and "" mean tags, and all of them."""

    type: str | None
    text: str | None


def message_filter(expression_type: str | None, sub_string: str | None) -> MessageFilter:
    """The filter of a subscription. Raises Refused: BAD_SUBSCRIPTION, or ERROR for a type that no RocketMQ has."""
    if not expression_type or expression_type == "TAG":
        return tag_hashes(sub_string or "*")
    if expression_type != SQL92:
        remark = f"The broker does not support consumer to filter message by {expression_type[:40]}"
        raise Refused(Reason.ERROR, remark)
    try:
        return sql_filter(sub_string or "")
    except FilterError as error:
        raise Refused(Reason.BAD_SUBSCRIPTION, f"not an SQL92 filter: {error}") from None


TEXT_MAX = 32 << 10
"""Characters of a subscription: each group and each pull that waits keeps one."""
CACHED_TEXT_MAX, CACHED_MAX = 256, 1024
"""Characters of a text that is remembered with its hashes, and how many are: some 10 MB at most."""


def tag_hashes(sub_string: str) -> TagFilter:
    """Java's hash of each tag of "a || b"; None for "*" and for no tag at all. Raises Refused if it is too long."""
    if len(sub_string) <= CACHED_TEXT_MAX:
        return _cached_hashes(sub_string)
    check_text(sub_string)
    return _hashes(sub_string)


def check_text(sub_string: str) -> None:
    """Raises Refused (BAD_SUBSCRIPTION) if a subscription is too long to be kept."""
    if len(sub_string) > TEXT_MAX:
        remark = f"a subscription of {len(sub_string)} characters is too long; at most {TEXT_MAX} are allowed"
        raise Refused(Reason.BAD_SUBSCRIPTION, remark)


@functools.lru_cache(maxsize=CACHED_MAX)
def _cached_hashes(sub_string: str) -> TagFilter:
    return _hashes(sub_string)


def _hashes(sub_string: str) -> TagFilter:
    if sub_string.strip() in ("", "*"):
        return None
    return frozenset(java_hash(tag.strip()) for tag in sub_string.split("||") if tag.strip()) or None
