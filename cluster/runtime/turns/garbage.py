"""Garbage collection in short pauses: none of them grows with what the node holds.

Python looks for cycles that nobody refers to by walking over objects, and everything else waits. Its third generation
holds whatever lives long, here a hundred thousand parked pulls or topics, and walking over all of it takes a fifth of a
second. So what has lived through a collection of that generation is set aside (`gc.freeze`) and not looked at again: a
collection walks over what was made since, `WALKED` objects at most.

References are still counted for what was set aside, so nearly all of it goes as ever. What stays are cycles that were
set aside before they became garbage. For them everything is looked at again (`thorough`) when as much stands that was
set aside since as there was before, while this node does not lead; one that leads waits longer. What stands is counted
first, for an eighth of the pause: much is set aside and goes soon after, such as filters that a cache drops. A look
that found next to nothing was not worth its pause: the next one waits for twice as much, up to RARE times.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

logger = logging.getLogger(__name__)

WALKED = 40_000
"""No automatic collection walks over more objects."""
NEW = WALKED // 4
"""Objects that are made, less those that went, before the collector looks at them. The oldest generation may hold three
times as many before all of it is looked at, and the new ones."""
ASIDE_MIN = 1_000_000
"""Objects that are set aside, some 100 MB, before all are looked at again."""
LEADER_PATIENCE = 4
"""A leader waits until so many times as much was set aside: it holds up everybody."""
RARE = 64
"""A node whose looks find nothing waits for so many times as much: they come once in a day, not every few minutes."""
WORTH = 100
"""A look was worth its pause if one in so many objects was garbage."""
LOOK_EVERY_S = 5.0


class Collector:
    """The garbage collector of this process, for one node after the other."""

    def __init__(self, aside_min: int = ASIDE_MIN) -> None:
        self._aside_min = aside_min
        self._live = 0
        """Number of objects that the last thorough collection left."""
        self._patience = 1
        """So many times as much as otherwise is waited for."""
        self.aside = 0
        """Objects that were set aside since then, less those that had gone when they were counted."""
        gc.set_threshold(NEW, 0, 0)
        gc.callbacks.append(self._heard)

    def thorough(self) -> int:
        """Looks at everything: long, if there is much. Returns how many objects were in cycles."""
        gc.unfreeze()
        self.aside = 0
        found = gc.collect()
        gc.collect()  # of nothing: Python puts a collection off until a quarter of what the last one left has come anew
        self._live, self.aside = self.aside, 0
        logger.info("garbage: %d objects were in cycles of all %d", found, self._live + found)
        return found

    def look(self) -> None:
        """`thorough` while others wait for it. If it was hardly worth that, the next one comes later."""
        found = self.thorough()
        self._patience = 1 if found * WORTH > self._live else min(RARE, 2 * self._patience)

    def due(self, leads: bool) -> bool:
        """True if a thorough collection is worth its pause: so much may be garbage."""
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
        """Python's collector is as it was, but for its thresholds."""
        gc.callbacks.remove(self._heard)
        gc.unfreeze()

    def _heard(self, phase: Literal["start", "stop"], info: dict[str, Any]) -> None:
        """On whichever thread made the last object."""
        if phase == "stop" and info["generation"] == 2:
            self.aside += len(gc.get_objects(generation=2))
            gc.freeze()


class Untracked(msgspec.Struct, gc=False, eq=False):
    """A base of classes with annotated fields, which are the arguments of its objects.

    References still end them, but a cycle through one stays for ever: what one refers to refers to it only for as long
    as both are needed, and then lets go of it.
    """
