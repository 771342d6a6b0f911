"""The return of messages that a consumer could not handle (36): each comes again later, or is a dead letter.

The cluster waits by RocketMQ's delay levels. A report is named by the group and the message's position, so one that is
repeated after a lost answer leaves one copy.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta

from raftmq.client.message import Message
from raftmq.client.producing.delay import Delay, in_seconds
from raftmq.client.view import ClusterView
from raftmq_wire.codes import RequestCode

RETRY_PREFIX = "%RETRY%"
"""The prefix that makes a group's name that of the topic in which its messages come again."""
RETRY_TOPIC = "RETRY_TOPIC"
"""Property of a message that comes again: the topic that it came from first."""
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Level 1 and so on, as `timer.delay_levels` has them unless it is configured otherwise."""
BY_BACK_OFF, DEAD = 0, -1
"""Two values in place of a delay level: a level more with each failure, from 10 s on; and no further try."""
_TIMEOUT_S = 30.0


def level_of(after: Delay, level: int | None) -> int:
    """The shortest level that waits at least `after` (seconds or a timedelta); BY_BACK_OFF for neither. Raises
    ValueError for both, a level that there is not, and more than the longest level."""
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
    """Raises ValueError or TypeError for what is no time to wait."""
    seconds = in_seconds("after=", after)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"after={seconds}; it is a number of seconds from 0 up")
    return seconds


async def send_back(view: ClusterView, group: str, message: Message, level: int, max_retries: int | None) -> None:
    """Returns when a majority has the copy on disk. `max_retries`: None leaves it to the group. Raises RaftMQError,
    Unknown if it may have been stored."""
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
    what = f"sending back {message.topic} queue {message.queue_id} offset {message.queue_offset} of group {group}"
    await view.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext, what=what, timeout_s=_TIMEOUT_S, writes=True)
