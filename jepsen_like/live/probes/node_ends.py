"""Finds the nodes that ended by themselves: a run that starts them again would not show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jepsen_like.live.subjects.processes import Processes


class NodeEnds:
    """Compares the exit codes of a table of processes with those of the last look."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[int, int] = {}
        """Node -> number of exit codes that were there at the last look."""

    def since_last(self) -> list[str]:
        """Returns a text for each end of a node since the last call, except by SIGKILL."""
        self._processes.look()
        found = []
        for node, codes in sorted(self._processes.exits.items()):
            found += [f"node {node} ended by itself with code {code}" for code in codes[self._known.get(node, 0) :]]
        self._known = {node: len(codes) for node, codes in self._processes.exits.items()}
        return found
