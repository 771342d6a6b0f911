"""The return of messages that a consumer could not handle (request 36): each message is delivered again later, or
becomes a dead letter.

The delay is one of RocketMQ's delay levels. A return is identified by the group and the message's position, so a return
that is repeated after a lost answer leaves one copy.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta

from raftmq.client.cluster_view import ClusterView
from raftmq.client.message import Message
from raftmq.client.producing.delivery_delay import Delay, in_seconds
from raftmq_wire.codes import RequestCode

RETRY_PREFIX = "%RETRY%"
"""The prefix of retry topics: `%RETRY%group` is the topic in which the messages of `group` come again."""
RETRY_TOPIC = "RETRY_TOPIC"
"""The property of a retried message with the name of the topic to which it was first sent."""
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of the delay levels 1, 2 and so on: the default of `timer.delay_levels`."""
BY_BACK_OFF, DEAD = 0, -1
"""Two values that stand in place of a delay level. BY_BACK_OFF: 10 s, and one level more with each failure. DEAD: no
further attempt."""


def level_of(after: Delay, level: int | None) -> int:
    """Returns the shortest level that waits at least `after` (seconds or a timedelta), or `level`; BY_BACK_OFF if
    neither is given. Raises ValueError if both are given, if there is no such level, or if `after` exceeds the longest
    level."""
    if after is not None and level is not None:
        raise ValueError("a retry comes after a time or at a level, not both")
    if level is not None:
        if not 1 <= level <= len(LEVELS_S):
            raise ValueError(f"level={level} is not between 1 and {len(LEVELS_S)}")
        return level
    if after is None:
        return BY_BACK_OFF
    seconds = seconds_of(after)
    if seconds > LEVELS_S[-1]:
        raise ValueError(f"after={seconds:g} s: the longest delay of a retry is {LEVELS_S[-1]} s")
    return bisect_left(LEVELS_S, seconds) + 1


def seconds_of(after: float | timedelta) -> float:
    """Returns `after` in seconds. Raises ValueError or TypeError if it is not a valid delay."""
    seconds = in_seconds("after=", after)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"after={seconds}; it is a number of seconds from 0 up")
    return seconds


async def send_back(view: ClusterView, group: str, message: Message, level: int, max_retries: int | None) -> None:
    """Sends a message back to the cluster; returns when a majority has the copy on disk. `max_retries=None` leaves the
    limit to the group. Raises RaftMQError; Unknown if the copy may have been stored."""
    ext = {
        "group": group,
        "offset": str(message.position),
        "delayLevel": str(level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
    }
    if max_retries is not None:
        ext["maxReconsumeTimes"] = str(max_retries)
    what = f"sending back {message.place} of group {group}"
    of_message = await view.groups.at(message.queue_id)
    await of_message.call(
        RequestCode.CONSUMER_SEND_MSG_BACK, ext, what=what, timeout_s=view.environment.patience.send_back_s, writes=True
    )
