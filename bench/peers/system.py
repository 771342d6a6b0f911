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
    """A system cannot be had here; the text says why, for the report."""


class NoLeader(Exception):
    """No node takes writes at present."""


class Load(NamedTuple):
    """One row: body bytes, messages per request, requests in flight on one connection, and for how long."""

    size: int
    batch: int
    in_flight: int
    seconds: float


class Node(NamedTuple):
    """A node of a system: its number from 0, the port of its clients, the pid of its process, and where it is."""

    number: int
    port: int
    pid: int
    host: str = HOST


class Place(NamedTuple):
    """The place of a node: its address, and the command that starts another node there; the command is empty for this
    host.
    """

    host: str
    enter: tuple[str, ...] = ()


class Places(NamedTuple):
    """The places of a system's nodes, and the address at which they reach what the benchmark itself starts."""

    nodes: tuple[Place, ...]
    hub: str


HERE = Places((Place(HOST),) * NODES, HOST)
"""All on this machine's loopback."""


class Generator(Protocol):
    """A load generator on one connection: an asyncio.Protocol with these results once `done` is.

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
    """Storage that holds a message when its send is acknowledged, in words."""
    warm_s: float
    """Seconds of load that a leader needs before it is measured; a JVM compiles meanwhile."""
    batches: bool
    """It can store many messages with one request."""


class System(Protocol):
    """Three nodes of one product. Every method blocks, and raises OSError or NoLeader for what went wrong."""

    traits: Traits
    processes: Processes

    def start(self, directory: Path) -> None:
        """Starts the nodes with their data below `directory` (empty) and returns once one of them takes writes."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, also those that were killed."""

    def leader(self) -> Node:
        """The node that leads now, by its own word. Raises NoLeader."""

    def generator(self, load: Load) -> Generator:
        """A new generator; call it on the event loop that will run it."""

    def restart(self, node: Node) -> None:
        """Starts a node again that was killed and reaped."""

    def stop(self) -> None:
        """Ends all processes; the data stays."""
