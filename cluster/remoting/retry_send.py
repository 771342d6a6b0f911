"""Sends to `%RETRY%group`: a consumer whose request 36 was refused sends the message there itself.

It asks for a delay (property DELAY) and tells how often the message was tried. The delay is that of `hold_back`,
whatever level is asked for; past the maximum the message goes to the dead letters of the group. Source: RocketMQ's
SendMessageProcessor.handleRetryAndDLQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.broker.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.remoting.send_header import SendHeader
    from statemachine.groups import GroupConfig

_DELAY = "DELAY\x01"
_V3_4_9 = 121


def redirect(fields: SendHeader, version: int, groups: Mapping[str, GroupConfig]) -> None:
    """Changes the fields of a send to a %RETRY% topic as above; leaves every other send alone."""
    if not fields.topic.startswith(RETRY_PREFIX):
        return
    if _DELAY in fields.properties:
        kept = [part for part in fields.properties.split("\x02") if part and not part.startswith(_DELAY)]
        fields.properties = "".join(part + "\x02" for part in kept)
    name = fields.topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is None:
        return
    named = fields.max_reconsume_times
    maximum = named if named is not None and named >= 0 and version >= _V3_4_9 else group.retry_max_times
    if (fields.reconsume_times or 0) > maximum:
        fields.topic, fields.queue_id = f"%DLQ%{name}", 0
