"""Sends to `%RETRY%group`: a consumer whose request 36 was refused sends the message there itself.

It asks for a delay (property DELAY) and tells how often the message was tried. Past the maximum the message goes to
the dead letters of the group, without a delay. Source: RocketMQ's SendMessageProcessor.handleRetryAndDLQ.

An orderly Java consumer sends here what it gives up, after as many tries as it may. Up to version 5.1.0 it counts only
those before the last, so that its count never passes the maximum. What it asks for tells it from a concurrent one,
which has a try left at that count: both ask for the level `3 + tries before`, and the concurrent one's count is one
ahead.
RocketMQ 4.9 looks at the count alone, and takes the last try from concurrent consumers; from 5.1.1 on it takes every
send to here for a dead letter while any queue of the group is locked, which no client needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.broker.send_wish import SendWish
    from statemachine.groups import GroupConfig

V5_1_1 = 435
"""Protocol version of the first RocketMQ whose orderly consumers count the last try (MQVersion.V5_1_1)."""
_FIRST_LEVEL = 3
_DELAY = re.compile(r"(?:^|\x02)DELAY\x01(\d{1,9})(?:\x02|$)")
_DELAYS = ("DELAY\x01", "TIMER_DELIVER_MS\x01", "TIMER_DELAY_SEC\x01", "TIMER_DELAY_MS\x01")


class Target(NamedTuple):
    """Where a send goes, and with which properties."""

    topic: str
    queue_id: int
    properties: str


def redirected(wish: SendWish, groups: Mapping[str, GroupConfig], version: int) -> Target:
    """The target of a send to a %RETRY% topic as above; of every other send what it asks for. `version`: of the
    client's protocol."""
    properties = wish.properties
    if not wish.topic.startswith(RETRY_PREFIX):
        return Target(wish.topic, wish.queue_id, properties)
    name = wish.topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is not None:
        named = wish.max_reconsume_times
        maximum = named if named is not None and named >= 0 else group.retry_max_times
        tries = wish.reconsume_times or 0
        if tries > maximum or (tries == maximum and version < V5_1_1 and _is_given_up(properties, tries)):
            kept = [part for part in properties.split("\x02") if part and not part.startswith(_DELAYS)]
            properties = "".join(part + "\x02" for part in kept)
            return Target(DEAD_LETTER_PREFIX + name, 0, properties)
    return Target(wish.topic, wish.queue_id, properties)


def _is_given_up(properties: str, tries: int) -> bool:
    """Whether nobody who has a try left sends this."""
    asked = _DELAY.search(properties)
    return asked is None or int(asked[1]) >= _FIRST_LEVEL + tries
