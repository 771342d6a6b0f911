"""Counts the rows of a state that does not know its sums, at a start, and says how far it is.

That is rare: after an update that counts other rows (`statemachine.sums.VERSION`), or one of a version without sums. It
takes a minute for 30 million rows, in which the node serves nobody yet: no peer and no client waits for its event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cluster.state.recovery_status import Stages
from statemachine.kv import KV
from statemachine.sums import Sums, count

logger = logging.getLogger(__name__)

SAY_EVERY_S = 5.0


class Counting:
    """Called with a state; its time is the stage `sums`, which is part of `state`."""

    def __init__(self, stages: Stages, monotonic_s: Callable[[], float]) -> None:
        self._stages = stages
        self._monotonic_s = monotonic_s
        self._said_s = 0.0
        self._said = False

    def __call__(self, kv: KV) -> Sums:
        """The sums of all rows."""
        self._said_s, self._said = self._monotonic_s(), False
        with self._stages.stage("sums"):
            counted = count(kv, self._progress)
        if self._said:
            logger.info("all rows of the state are counted")
        return counted

    def _progress(self, family: str, rows: int) -> None:
        now_s = self._monotonic_s()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s, self._said = now_s, True
            logger.info(
                "the state does not know its sums, so its rows are counted before the node serves: %d so far, in %s",
                rows,
                family,
            )
