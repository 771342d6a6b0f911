"""Finds out that the data directory of this running node was deleted or moved away.

The node has its files open, so it goes on and acknowledges, but none of this survives its end: it cannot start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from cluster.admin.findings.finding import Condition, node_object
from cluster.config.local_layout import has_no_identity

CODE = "data_lost"


class DataWatch:
    """Looks for IDENTITY in the data directory of this node. Event loop only; each look is one call on a thread, and
    the next one waits for it, however long the disk takes."""

    def __init__(self, directory: Path, node: int) -> None:
        self._directory = directory
        self._node = node
        self._look: asyncio.Future[bool] | None = None
        self._lost = False

    def look(self) -> None:
        """Takes the result of the last look, if there is one, and begins the next."""
        if self._look is not None and not self._look.done():
            return
        if self._look is not None and self._look.exception() is None:  # a disk that fails shows elsewhere
            self._lost = self._look.result()
        self._look = asyncio.get_running_loop().run_in_executor(None, has_no_identity, self._directory)

    def conditions(self) -> Iterator[Condition]:
        """Yields the condition that the directory was lost."""
        if self._lost:
            says = (
                f"{self._directory} was deleted or moved away while node {self._node} runs: the node goes on with the "
                "files that it has open, but cannot start again; do not stop it before it is replaced"
            )
            yield Condition(CODE, node_object(self._node), says)
