"""The part of `run` that both consumers share: when it commits, when it ends, and how a failure of the user's function
is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable

from raftmq.client.message import Message

_log = logging.getLogger("raftmq")


class RunTimes:
    """The times at which one `run` commits and ends. `now` returns the loop's time in seconds."""

    def __init__(self, now: Callable[[], float], commit_every_s: float, max_wait_s: float | None) -> None:
        self._now = now
        self._commit_every_s = commit_every_s
        self._max_wait_s = max_wait_s
        self._handled_at = now()
        self._commit_at = now() + commit_every_s

    def patience_s(self) -> float:
        """Returns the seconds to wait for the next message: until a commit is due or `max_wait_s` is over."""
        until = self._commit_at
        if self._max_wait_s is not None:
            until = min(until, self._handled_at + self._max_wait_s)
        return max(0.0, until - self._now())

    def handled(self) -> None:
        """Records that a message was handled just now."""
        self._handled_at = self._now()

    def waited_enough(self) -> bool:
        """Returns True if no message came for `max_wait_s`."""
        return self._max_wait_s is not None and self._now() - self._handled_at >= self._max_wait_s

    def commit_is_due(self) -> bool:
        """Returns True if a commit interval has passed since it last returned True."""
        due = self._now() >= self._commit_at
        if due:
            self._commit_at = self._now() + self._commit_every_s
        return due


def log_failure(group: str, message: Message, max_retries: int | None, ordered: bool) -> None:
    """Logs a failure of the user's function; called while its exception is handled. If `max_retries` is None, the
    cluster decides on the number of retries, and the log line says so; an `ordered` consumer retries without end."""
    retry = message.reconsume_times + 1
    if max_retries is not None and retry > max_retries:
        next_ = f"a dead letter after {message.reconsume_times} retries"
    elif max_retries is not None or ordered:
        next_ = f"retry {retry} follows"
    else:
        next_ = f"retry {retry} follows, or a dead letter if the group allows no more"
    _log.warning(
        "group %s: message %s of %s failed, %s", group, message.message_id, message.topic, next_, exc_info=True
    )
