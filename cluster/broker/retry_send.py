"""Sends to `%RETRY%group`: a consumer whose request 36 was refused sends the message there itself.

It asks for a delay (property DELAY) and tells how often the message was tried. Past the maximum the message goes to
the dead letters of the group, without a delay. Source: RocketMQ's SendMessageProcessor.handleRetryAndDLQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.broker.send_wish import SendWish
    from statemachine.groups import GroupConfig

_DELAYS = ("DELAY\x01", "TIMER_DELIVER_MS\x01", "TIMER_DELAY_SEC\x01", "TIMER_DELAY_MS\x01")


class Target(NamedTuple):
    """Where a send goes, and with which properties."""

    topic: str
    queue_id: int
    properties: str


def redirected(wish: SendWish, groups: Mapping[str, GroupConfig]) -> Target:
    """The target of a send to a %RETRY% topic as above; of every other send what it asks for."""
    properties = wish.properties
    if not wish.topic.startswith(RETRY_PREFIX):
        return Target(wish.topic, wish.queue_id, properties)
    name = wish.topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is not None:
        named = wish.max_reconsume_times
        maximum = named if named is not None and named >= 0 else group.retry_max_times
        if (wish.reconsume_times or 0) > maximum:
            kept = [part for part in properties.split("\x02") if part and not part.startswith(_DELAYS)]
            properties = "".join(part + "\x02" for part in kept)
            return Target(DEAD_LETTER_PREFIX + name, 0, properties)
    return Target(wish.topic, wish.queue_id, properties)
