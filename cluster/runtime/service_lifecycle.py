"""The parts of a node: a description, as one value, of how a service takes part in the life of its node.

A service describes itself by a Part. A Part names two stages: one says when it starts, the other when it closes.
Nothing else orders the parts. The node collects the hooks of all parts once, as one tuple of bound methods for each
kind of hook, with only the parts that have it. No tuple is walked per message: `applied` is called once per applied
run, and the handlers of frames and request codes are in dictionaries.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.findings import Condition
from raftlog.types import Entry, NodeId

if TYPE_CHECKING:
    from cluster.config.config import Config
    from cluster.runtime.periodic_tasks import Chore
    from raftlog.core.raw_node import RawNode

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object] | None]
"""A step of starting or closing. It blocks no longer than a turn of the loop may take; longer work is awaited."""
OnFrame = Callable[[NodeId, int, list[Any], bytes], None]
"""Handles a frame of a peer. The arguments are (peer, kind, header, payload). May raise WireError."""
Hook = TypeVar("Hook")


class AppliedRun(Protocol):
    """Entries that were applied together (`cluster.replication.apply_lane.Applied`)."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries in order; at least one."""


class Starting(IntEnum):
    """When a part starts. Each stage uses those before it. Within a stage, parts start in the order in which they were
    made."""

    SERVICES = 0
    """Services. They may only use parts that work from their constructors on."""
    PEERS = 1
    """The connections to peers, whose frames the services take."""
    CLIENTS = 2
    """The ports for clients."""
    DRIVER = 3
    """The first turn of the driver. A port that cannot be opened prevents it."""
    WORK = 4
    """Parts that begin work: the lanes, the HTTP API, backups, clocks and those that observe."""


class Closing(IntEnum):
    """When a part closes. Each stage uses those behind it until it has closed. Within a stage, parts close in the
    reverse order of their start."""

    WORK = 0
    """Parts that begin work: clocks, backups, the ports for clients and the HTTP API."""
    DRIVER = 1
    """The driver, which gives the lanes their jobs."""
    CLIENTS = 2
    """The connections of clients: no request reaches a service that has closed."""
    SERVICES = 3
    """Services, which use the lanes and the connections to peers."""
    PEERS = 4
    """The connections to peers."""
    WAITS = 5
    """The failpoints: a lane ends when none of its jobs waits at one any more."""
    LANES = 6
    """The lanes."""
    FILES = 7
    """The file of early answers, which is written until the last job of a lane has ended."""
    STORAGE = 8
    """The events, with the reason of the end, and the data directory, which is marked clean when nothing can write any
    more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One service, as the node sees it. Every hook is called on the event loop."""

    name: str
    start: Step | None = None
    """Starts the service. A part without this hook works, and must be closed, from its constructor on."""
    starts: Starting = Starting.SERVICES
    """The stage of `start`."""
    close: Step | None = None
    """Closes the service, idle or busy. Never called twice."""
    closes: Closing = Closing.SERVICES
    """The stage of `close`."""
    tick: Chore | None = None
    """Called several times a second; cheap (`cluster.runtime.periodic_tasks`)."""
    applied: Callable[[Any], object] | None = None
    """Called after each run of applied entries, with its `cluster.replication.apply_lane.Applied`."""
    role: Callable[[RawNode], object] | None = None
    """Called when the role, term or known leader changed."""
    opened: Callable[[], object] | None = None
    """Called when this node begins to accept writes."""
    peer_closed: Callable[[NodeId], object] | None = None
    """Called when a connection from or to a peer closed: frames sent to it, and answers to them, may be lost. A peer
    that dies closes several."""
    frames: Mapping[int, OnFrame] = field(default_factory=dict)
    """Kind of a peer's frame -> its handler."""
    codes: Mapping[int, Callable[[Any], None]] = field(default_factory=dict)
    """Request code -> its handler, which takes a `cluster.remoting.request.Request`. All else that is known of the code
    is in its row (`cluster.requests.table`)."""
    metrics: Sequence[ServiceMetrics] = ()
    """The metrics of the service, which the node's exporter shows."""
    findings: Callable[[], Iterable[Condition]] | None = None
    """Returns the problems that the service sees now, besides its alarms. Called about once a second on a node with an
    HTTP API; cheap."""
    may_reload: Callable[[Config], object] | None = None
    """Raises ConfigError if this part cannot use the given configuration; changes nothing."""
    reload: Callable[[Config], object] | None = None
    """Puts the given configuration in force. Does not raise."""


class Described(Protocol):
    """A service that describes itself by a Part."""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""


Service = TypeVar("Service", bound=Described)


class PartList(list[Part]):
    """The parts of several services, in the order in which they are made."""

    def of(self, service: Service) -> Service:
        """Adds the part of a service that was just made, and returns the service."""
        self.append(service.part())
        return service


class Parts:
    """All parts of one node. Event loop only."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """`parts` are in the order in which all hooks but `start` and `close` are called. Raises ValueError if two have
        one name, or take the same frames or requests."""
        self.parts = tuple(parts)
        names = [part.name for part in self.parts]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"parts of a node: {sorted(twice)} are there twice")
        self.ticks = _present(part.tick for part in self.parts)
        self.applied = _present(part.applied for part in self.parts)
        self.role = _present(part.role for part in self.parts)
        self.opened = _present(part.opened for part in self.parts)
        self.peer_closed = _present(part.peer_closed for part in self.parts)
        self.frames = _merged("frames", ((part.name, part.frames) for part in self.parts))
        self.codes = codes_of(self.parts)
        self.metrics = tuple(each for part in self.parts for each in part.metrics)
        self.findings = _present(part.findings for part in self.parts)
        self._may_reload = _present(part.may_reload for part in self.parts)
        self._reload = _present(part.reload for part in self.parts)
        self._starting = sorted(self.parts, key=lambda part: part.starts)
        self._closing = list(reversed(self._starting))
        self._closing.sort(key=lambda part: part.closes)
        self._open = {part.name for part in self.parts if part.start is None}

    async def start(self) -> None:
        """Starts the parts one after the other. If one cannot start, those before it are closed, and its exception is
        raised."""
        for part in self._starting:
            if part.start is None:
                continue
            try:
                await _done(part.start)
            except BaseException:
                await self.close(lambda _: None)
                raise
            self._open.add(part.name)

    async def close(self, failed: Callable[[BaseException], object]) -> None:
        """Closes the parts that were started, each once. The exception of one is passed to `failed`, and the others are
        closed."""
        for part in self._closing:
            if part.close is None or part.name not in self._open:
                continue
            self._open.discard(part.name)
            try:
                await _done(part.close)
            except Exception as error:
                logger.exception("%s: cannot be closed", part.name)
                failed(error)

    def reload(self, config: Config) -> None:
        """Applies `config` in all parts. Raises ConfigError, and changes nothing, if one part refuses it."""
        for may in self._may_reload:
            may(config)
        for put in self._reload:
            put(config)


async def _done(step: Step) -> None:
    waits = step()
    if inspect.isawaitable(waits):
        await waits


def _present(hooks: Iterable[Hook | None]) -> tuple[Hook, ...]:
    return tuple(hook for hook in hooks if hook is not None)


def codes_of(parts: Iterable[Part]) -> dict[int, Callable[[Any], None]]:
    """Returns request code -> its handler. Raises ValueError for a code that two parts serve, so that the node does not
    start."""
    return _merged("codes", ((part.name, part.codes) for part in parts))


def _merged(what: str, tables: Iterable[tuple[str, Mapping[int, Hook]]]) -> dict[int, Hook]:
    merged: dict[int, Hook] = {}
    for name, table in tables:
        if both := merged.keys() & table.keys():
            raise ValueError(f"{name} takes {what} {sorted(both)}, and so does another part")
        merged.update(table)
    return merged
