"""A system of three processes, one for each node; base class of most systems."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers.processes import Processes
from bench.peers.system import HERE, NODES, Node, NoLeader, Places
from raftmq.local.process import free_base_port


class Group(ABC):
    """The nodes of a `bench.peers.system.System`, each of them a process that joins the others by itself."""

    def __init__(self, places: Places = HERE) -> None:
        self.places = places
        self.processes = Processes()
        self._home = Path()
        self._base = 0
        self._nodes: list[Node] = []

    @property
    def nodes(self) -> Sequence[Node]:
        """The three nodes, including killed ones."""
        return self._nodes

    @abstractmethod
    def leader(self) -> Node:
        """Returns the node that says that it leads now. Raises NoLeader."""

    def restart(self, node: Node) -> None:
        """Starts a node again that was killed and reaped."""
        self._nodes[node.number] = node._replace(pid=self._start(node.number))

    def stop(self) -> None:
        """Stops all processes; the data stays."""
        self.processes.end()

    def _start_all(self, port_of: Callable[[int], int]) -> None:
        """Starts every node; `port_of`: number -> port for its clients."""
        self._nodes = [
            Node(number, port_of(number), self._start(number), place.host)
            for number, place in enumerate(self.places.nodes)
        ]

    def _start_in_pairs(self, directory: Path, ready_s: float) -> None:
        """Starts every node in `directory` with two ports: `_base` + number for its clients, and one NODES higher for
        the other nodes. Waits for a leader as `_await_leader` does."""
        self._home, self._base = directory, free_base_port(2 * NODES)
        self._start_all(lambda number: self._base + number)
        self._await_leader(ready_s)

    @abstractmethod
    def _start(self, number: int) -> int:
        """Starts the process of a node; returns its pid."""

    def _await_leader(self, ready_s: float, poll_s: float = 0.2) -> None:
        """Waits for a leader, at most `ready_s` or until a process ends by itself; asks every `poll_s`. Raises
        NoLeader."""
        until = time.monotonic() + ready_s
        while True:
            try:
                self.leader()
            except NoLeader:
                if time.monotonic() > until or self.processes.ended():
                    raise
                time.sleep(poll_s)
            else:
                return
