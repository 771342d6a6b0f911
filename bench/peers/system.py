"""The interface of a system under test, and the types that the parts of the benchmark share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.peers.processes import Processes

HOST = "127.0.0.1"
TOPIC = "bench"
NODES = 3


class Unavailable(Exception):
    """A system cannot be fetched or run here; the text says why, for the report."""


class NoLeader(Exception):
    """No node accepts writes at present."""


class Load(NamedTuple):
    """One row of the benchmark: body bytes, messages per request, requests in flight over all connections, seconds, and
    connections, which have equal shares of what is in flight."""

    size: int
    batch: int
    in_flight: int
    seconds: float
    connections: int = 1


class Node(NamedTuple):
    """A node of a system: its number from 0, the port for its clients, the pid of its process, and its host's
    address."""

    number: int
    port: int
    pid: int
    host: str = HOST


class Place(NamedTuple):
    """A place for a node: its address, and the command prefix that starts a process there, empty for this host."""

    host: str
    enter: tuple[str, ...] = ()


class Places(NamedTuple):
    """The places of a system's nodes, and the address at which they reach processes of the benchmark itself."""

    nodes: tuple[Place, ...]
    hub: str


HERE = Places((Place(HOST),) * NODES, HOST)
"""Places that are all on this machine's loopback."""


class Generator(Protocol):
    """A load generator on one connection: an asyncio.Protocol that has these results once `done` is set.

    `elapsed` is in seconds, `latencies` are milliseconds per request, `acked` counts messages, `errors` requests.
    """

    done: asyncio.Future[None]
    acked: int
    errors: int
    elapsed: float
    latencies: list[float]


class Traits(NamedTuple):
    """Facts about a system that are known before it starts."""

    name: str
    version: str
    durability: str
    """The storage that holds a message when its send is acknowledged, in words, for the report."""
    warm_s: float
    """Seconds of load that a leader needs before it is measured; a JVM compiles meanwhile."""
    batches: bool
    """True if the system can store many messages with one request."""


class System(Protocol):
    """A system under test: three nodes of one product. Every method blocks, and raises OSError or NoLeader if it
    fails."""

    traits: Traits
    processes: Processes

    def start(self, directory: Path) -> None:
        """Starts the nodes with their data below `directory` (empty) and returns once one of them takes writes."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, including killed ones."""

    def leader(self) -> Node:
        """Returns the node that says that it leads now. Raises NoLeader."""

    def generator(self, load: Load) -> Generator:
        """Returns a new generator; to be called on the event loop that will run it."""

    def restart(self, node: Node) -> None:
        """Starts a node again that was killed and reaped."""

    def stop(self) -> None:
        """Stops all processes; the data stays."""
