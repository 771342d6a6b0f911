"""Finds out that the data directory of this running node was deleted or moved away, or that of a silent node beside it.

The running node has its files open, so it goes on and acknowledges, but none of this survives its end: it cannot start
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path

from cluster.admin.findings.finding import Condition, node_object
from cluster.config.local_layout import has_no_identity, is_lost

CODE = "data_lost"


class DataWatch:
    """Looks for IDENTITY in data directories. Event loop only; each look is one call on a thread, and the next one
    waits for it, however long the disk takes."""

    def __init__(self, directory: Path, node: int) -> None:
        self._directory = directory
        self._node = node
        self._look: asyncio.Future[frozenset[int]] | None = None
        self.lost: frozenset[int] = frozenset()
        """The nodes whose data directories were lost, as last seen: this one, and those that it was to look for."""

    def look(self, silent: Collection[int] = ()) -> None:
        """Takes the result of the last look, if there is one, and begins the next. `silent`: other nodes of the same
        local cluster whose directories are looked for too."""
        if self._look is not None and not self._look.done():
            return
        if self._look is not None and self._look.exception() is None:  # a disk that fails shows elsewhere
            self.lost = self._look.result()
        self._look = asyncio.get_running_loop().run_in_executor(None, self._lost_of, frozenset(silent))

    def _lost_of(self, silent: frozenset[int]) -> frozenset[int]:
        """Returns the lost ones of this node and the silent ones. Runs on a thread. Raises OSError."""
        own = {self._node} if has_no_identity(self._directory) else set[int]()
        return frozenset(own | {each for each in silent if is_lost(str(self._directory), each)})

    def conditions(self) -> Iterator[Condition]:
        """Yields the condition that the directory was lost."""
        if self._node in self.lost:
            says = (
                f"{self._directory} was deleted or moved away while node {self._node} runs: the node goes on with the "
                "files that it has open, but cannot start again; do not stop it before it is replaced"
            )
            yield Condition(CODE, node_object(self._node), says)
