"""The times for which a client waits, and the intervals at which it asks."""

from __future__ import annotations

from typing import NamedTuple

COMMIT_EVERY_S = 5.0
"""The default interval between commits, in seconds (RocketMQ: persistConsumerOffsetInterval)."""


class Patience(NamedTuple):
    """Times of a client in seconds. Every client has the defaults, which suit RocketMQ's servers too."""

    heartbeat_every_s: float = 5.0
    """Interval at which a member of a group, or a producer of transactions, sends heartbeats."""
    relock_every_s: float = 1.0
    """Interval at which an ordered consumer asks again for the lock of a queue that another client still holds, and at
    which any consumer asks again for its share until it has it."""
    dealt_with_every_s: float = 0.05
    """Interval at which the consumer checks if the reader has finished the last message of a queue that it hands
    over."""
    commit_every_s: float = COMMIT_EVERY_S
    """Interval at which a consumer whose reader acknowledges each message commits."""
    long_poll_s: float = 15.0
    """Time for which a pull waits at the leader for messages."""
    pull_retry_s: float = 30.0
    """Time for which the pulls of a queue may fail with server errors before the reader gets the error."""
    switched_off_s: float = 3.0
    """Pause before a queue that may not be read now is asked again, as RocketMQ's clients do."""
    gone_s: float = 10.0
    """Time for which a deleted topic may be missing before it is created again. After it the reader gets the error."""
    route_pause_s: float = 0.5
    """Pause before the client fetches a topic's route again, to see if it still has a queue whose pull was refused."""
    send_back_s: float = 30.0
    """Time for which the client tries to send a message back to the cluster."""
    silent_s: float = 2.0
    """Time after which a server that answers nothing is dialled anew."""
    say_why_after_s: float = 1.0
    """Time after which a search for the leader logs why it has found none; its callers may wait for much longer."""
    accept_any_after_s: float = 2.0
    """Time after which a search for the leader accepts a node that only forwards requests."""
