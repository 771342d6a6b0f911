"""Collects garbage in short pauses, none of which grows with the amount of data that the node holds.

Python searches for unreachable cycles by walking over objects while everything else waits. Its third generation
contains all long-lived objects, here perhaps a hundred thousand parked pulls or topics, and walking over all of them
takes a fifth of a second. So objects that have survived a collection of that generation are set aside (`gc.freeze`) and
not visited again: a collection visits only objects that were made since, `WALKED` at most.

Objects that were set aside are still freed by reference counting, which frees nearly all of them. Only cycles that
became garbage after they were set aside stay. A thorough collection (`thorough`) visits everything again and frees
them. It is due when as many objects were set aside since the last one as that one left; a leader waits for more. The
objects that remain are counted first, because many are freed soon after they were set aside, such as filters that a
cache drops. The count takes an eighth of the pause. If a thorough collection found next to nothing, it was not worth
its pause: the next one waits for twice as many objects, up to RARE times as many.
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
"""The most objects that an automatic collection visits."""
NEW = WALKED // 4
"""The number of new objects (made, less freed) after which the collector visits them. The oldest generation may have
three times as many before the collector visits all of it and the new objects."""
ASIDE_MIN = 1_000_000
"""The least number of objects that must be set aside, some 100 MB, before all objects are visited again."""
LEADER_PATIENCE = 4
"""A leader waits until this many times as many objects were set aside, because its pause delays all clients."""
RARE = 64
"""The greatest value of `_patience`. With it, a node whose thorough collections find nothing collects once a day rather
than every few minutes."""
WORTH = 100
"""A thorough collection was worth its pause if more than 1/WORTH as many objects were garbage as are left."""
LOOK_EVERY_S = 5.0


class Collector:
    """Controls Python's garbage collector in this process. Several nodes may use it, one after the other."""

    def __init__(self, aside_min: int = ASIDE_MIN) -> None:
        self._aside_min = aside_min
        self._live = 0
        """Number of objects that the last thorough collection left."""
        self._patience = 1
        """The factor by which the number of objects that must be set aside is multiplied. It doubles after each
        thorough collection that found too little."""
        self.aside = 0
        """Objects that were set aside since the last thorough collection, less those found to be freed at the last
        count."""
        gc.set_threshold(NEW, 0, 0)
        gc.callbacks.append(self._heard)

    def thorough(self) -> int:
        """Visits all objects, which takes long if there are many. Returns the number of objects in garbage cycles."""
        gc.unfreeze()
        self.aside = 0
        found = gc.collect()
        gc.collect()  # finds nothing; after it Python delays the next full collection until many objects were made
        self._live, self.aside = self.aside, 0
        logger.info("garbage: %d objects were in cycles of all %d", found, self._live + found)
        return found

    def look(self) -> None:
        """Runs `thorough` while clients wait. If it found too little, the next one comes later."""
        found = self.thorough()
        self._patience = 1 if found * WORTH > self._live else min(RARE, 2 * self._patience)

    def due(self, leads: bool) -> bool:
        """Returns True if a thorough collection is worth its pause, because so many objects may be garbage. `leads`:
        True if this node leads, which then waits for LEADER_PATIENCE times as many."""
        enough = max(self._aside_min, self._live) * self._patience * (LEADER_PATIENCE if leads else 1)
        if self.aside < enough:
            return False
        self.aside = max(0, gc.get_freeze_count() - self._live)  # without the objects that were freed since
        return self.aside >= enough

    async def tend(self, leads: Callable[[], bool]) -> None:
        """Runs `look` whenever a thorough collection is due, until it is cancelled. `leads` returns True if this node
        leads."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.due(leads()):
                self.look()

    def close(self) -> None:
        """Restores Python's own collector, except for its thresholds."""
        gc.callbacks.remove(self._heard)
        gc.unfreeze()

    def _heard(self, phase: Literal["start", "stop"], info: dict[str, Any]) -> None:
        """Freezes the objects that survived a full collection (`gc.freeze`), so that no later one visits them. Python
        calls it before and after each collection, on the thread whose allocation started the collection."""
        if phase == "stop" and info["generation"] == 2:
            self.aside += len(gc.get_objects(generation=2))
            gc.freeze()


class Untracked(msgspec.Struct, gc=False, eq=False):
    """A base of classes with annotated fields, which are the arguments of the constructor. The garbage collector does
    not track its objects.

    Reference counting still frees them, but a cycle through such an object is never freed. An object to which it refers
    may therefore refer back only while both are needed, and must then drop the reference.
    """
