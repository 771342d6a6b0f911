"""The vote that a node withholds after it lost durable entries (raftlog/core/fit.py has the rule for its end)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from cluster.runtime.alarms import Alarms
from raftlog.core.raw_node import RawNode
from raftlog.storage import vote_withheld
from raftlog.storage.fs import FileSystem
from raftlog.storage.vote_withheld import VoteWithheld

logger = logging.getLogger(__name__)

ALARM = "vote_withheld"


class VoteKeeper:
    """Gives the vote back once the log has caught up: first the file goes, then the core hears of it."""

    def __init__(self, fs: FileSystem, directory: Path, raw: RawNode, alarms: Alarms, wake: Callable[[], None]) -> None:
        """`wake`: has the driver look at the core."""
        self._fs = fs
        self._directory = directory
        self._raw = raw
        self._alarms = alarms
        self._wake = wake
        self._release: asyncio.Task[None] | None = None

    def start(self, withheld: VoteWithheld | None) -> None:
        """`withheld`: what the directory says."""
        if withheld is not None:
            self._alarms.raise_alarm(
                ALARM,
                f"this node lost entries that it had acknowledged, and does not vote until it has caught up with a "
                f"leader: {withheld.reason}. If another node is down at the same time, the cluster may stop",
            )

    def tick(self) -> None:
        """Looks whether it is time; cheap."""
        if self._raw.caught_up_with_leader and self._release is None:
            self._release = asyncio.get_running_loop().create_task(self._give_back(), name="release-vote")

    async def close(self) -> None:
        """Ends what is under way: the vote then stays withheld, or is free."""
        if self._release is not None:
            self._release.cancel()
            await asyncio.gather(self._release, return_exceptions=True)

    async def _give_back(self) -> None:
        """Raises StorageError if the file cannot be removed; then the vote stays withheld, and it is tried again."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, vote_withheld.release, self._fs, self._directory)
            self._raw.release_vote()
        finally:
            self._release = None
        self._alarms.clear(ALARM)
        logger.warning("the log has caught up to index %d: this node votes again", self._raw.commit_index)
        self._wake()
