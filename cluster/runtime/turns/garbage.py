"""Garbage collection in short pauses that do not grow with the amount of data in a node.

Python looks for unreachable cycles by walking over objects, and everything else waits meanwhile. Its third generation
holds all long-lived objects, here a hundred thousand parked pulls or topics, and walking over all of them takes a fifth
of a second. Objects that have lived through a collection of that generation are therefore set aside (`gc.freeze`) and
not looked at again: a collection walks only over objects that were made since, at most `WALKED`.

References are still counted for objects that were set aside, so nearly all of them are freed as usual. Only cycles that
became garbage after they were set aside remain. For them, all objects are looked at again (`thorough`) when as many
objects were set aside since the last such look, and still exist, as there were before, while this node does not lead; a
leader waits longer. Existing objects are counted first, which takes an eighth of the pause, because many objects are
set aside and freed soon after, such as filters that a cache drops. If a look found next to nothing, it was not worth
its pause, and the next one waits for twice as many objects, up to RARE times.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any, Literal

logger = logging.getLogger(__name__)

WALKED = 40_000
"""The most objects over which an automatic collection walks."""
NEW = WALKED // 4
"""The number of objects that are made, minus those that are freed, before the collector looks at them. The oldest
generation may hold three times as many before all of it is looked at, together with the new ones."""
ASIDE_MIN = 1_000_000
"""The least number of objects set aside, some 100 MB, before all objects are looked at again."""
LEADER_PATIENCE = 4
"""A leader waits until this many times as many objects were set aside, because its pause delays every client."""
RARE = 64
"""The largest factor by which a node waits longer if its looks find nothing: once a day, not every few minutes."""
WORTH = 100
"""A look was worth its pause if one in this many objects was garbage."""
LOOK_EVERY_S = 5.0


class Collector:
    """The garbage collector of this process, for one node after another."""

    def __init__(self, aside_min: int = ASIDE_MIN) -> None:
        self._aside_min = aside_min
        self._live = 0
        """Number of objects that the last thorough collection left."""
        self._patience = 1
        """The factor by which this node waits longer at present."""
        self.aside = 0
        """The number of objects that were set aside since then, minus those that were freed when they were last
        counted."""
        gc.set_threshold(NEW, 0, 0)
        gc.callbacks.append(self._heard)

    def thorough(self) -> int:
        """Looks at all objects, which takes long if there are many. Returns the number of objects in unreachable
        cycles."""
        gc.unfreeze()
        self.aside = 0
        found = gc.collect()
        gc.collect()  # of nothing: Python puts a collection off until a quarter of what the last one left has come anew
        self._live, self.aside = self.aside, 0
        logger.info("garbage: %d objects were in cycles of all %d", found, self._live + found)
        return found

    def look(self) -> None:
        """Calls `thorough`, while everything else waits. If it found little, the next one comes later."""
        found = self.thorough()
        self._patience = 1 if found * WORTH > self._live else min(RARE, 2 * self._patience)

    def due(self, leads: bool) -> bool:
        """Returns True if a thorough collection is worth its pause, because there may be enough garbage."""
        enough = max(self._aside_min, self._live) * self._patience * (LEADER_PATIENCE if leads else 1)
        if self.aside < enough:
            return False
        self.aside = max(0, gc.get_freeze_count() - self._live)  # what has gone was no garbage
        return self.aside >= enough

    async def tend(self, leads: Callable[[], bool]) -> None:
        """Collects thoroughly from time to time, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.due(leads()):
                self.look()

    def close(self) -> None:
        """Restores Python's collector, except for its thresholds."""
        gc.callbacks.remove(self._heard)
        gc.unfreeze()

    def _heard(self, phase: Literal["start", "stop"], info: dict[str, Any]) -> None:
        """Called by Python on the thread that made the last object."""
        if phase == "stop" and info["generation"] == 2:
            self.aside += len(gc.get_objects(generation=2))
            gc.freeze()
