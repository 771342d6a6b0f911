"""Lists the connections of clients for the HTTP API, with the rates since the list was last read."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.admin.node_interface import ClientGroup, ClientView
from cluster.broker.services import Client
from cluster.runtime.events import rfc3339
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.groups.group_members import Members
    from cluster.flow.gate import Holder

SHOWN_MAX = 1_000
STEP = 128
"""Number of connections that one step of `view` reads."""
SAMPLE_MS = 1_000
"""The shortest span in milliseconds over which a rate is computed. Only a younger connection has a shorter one."""


class ClientConnection(Client, Protocol):
    """A client's open connection, whatever protocol it speaks."""

    listener: str
    """The name of the listening port to which the client connected."""
    opened_s: float
    """The event loop's time in seconds at which the connection was opened."""
    received: int
    """Number of bytes received from the client."""
    handed: int
    """Number of bytes passed to the transport for the client."""
    in_flight: Holder
    """The client's requests that have not been answered yet."""

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that were passed to the transport and that it could not send yet."""

    def abort(self) -> None:
        """Closes the connection at once and drops the bytes that are not sent."""


class _Sample(NamedTuple):
    at_s: float
    received: int
    handed: int


_Samples = Mapping[ClientConnection, tuple[_Sample, _Sample]]


class ClientList:
    """The connections of clients to one node. Event loop only."""

    def __init__(
        self,
        connections: Collection[ClientConnection],
        members: Members,
        now_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """Keeps the arguments. `connections` is the live collection of open connections, oldest first. `now_s` returns
        the event loop's time in seconds, the clock of `opened_s`."""
        self._connections = connections
        self._members = members
        self._now_s = now_s
        self._wall_ms = wall_ms
        self._samples: dict[ClientConnection, tuple[_Sample, _Sample]] = {}
        """Connection -> (the sample from which its rates are computed, its newest sample)."""

    def view(self) -> Generator[None, None, tuple[int, list[ClientView]]]:
        """Returns (number of all connections, at most SHOWN_MAX of them), the busiest first. Yields between steps."""
        connections, now_s = list(self._connections), self._now_s()
        busiest: list[tuple[float, int, ClientConnection]] = []
        samples: dict[ClientConnection, tuple[_Sample, _Sample]] = {}
        for start in range(0, len(connections), STEP):
            yield
            charge(5 * ITEM_UNITS * STEP)
            part = connections[start : start + STEP]
            samples |= {each: self._sampled(each, now_s) for each in part}
            rated = [(-sum(self._rates(samples, each, now_s)), start + at, each) for at, each in enumerate(part)]
            busiest = heapq.nsmallest(SHOWN_MAX, [*busiest, *rated])
        self._samples = samples
        views = []
        for _, _, each in busiest:
            yield
            charge(10 * ITEM_UNITS)
            views.append(self._view(samples, each, now_s))
        return len(connections), views

    def disconnect(self, address: str) -> bool:
        """Closes the connection of the client at that "ip:port"; returns False if there is none."""
        found = next((each for each in self._connections if _address(each) == address), None)
        if found is not None:
            found.abort()
        return found is not None

    def _sampled(self, connection: ClientConnection, now_s: float) -> tuple[_Sample, _Sample]:
        opened = _Sample(connection.opened_s, 0, 0)
        base, newest = self._samples.get(connection, (opened, opened))
        if 1000 * (now_s - newest.at_s) < SAMPLE_MS:
            return base, newest
        return newest, _Sample(now_s, connection.received, connection.handed)

    def _rates(self, samples: _Samples, connection: ClientConnection, now_s: float) -> tuple[float, float]:
        base, _ = samples[connection]
        seconds = max(now_s - base.at_s, 0.001)
        return (connection.received - base.received) / seconds, (connection.handed - base.handed) / seconds

    def _view(self, samples: _Samples, connection: ClientConnection, now_s: float) -> ClientView:
        received, sent = self._rates(samples, connection, now_s)
        memberships = self._members.of(connection)
        member = memberships[0][2] if memberships else None
        return ClientView(
            address=_address(connection),
            listener=connection.listener,
            since=rfc3339(self._wall_ms() - int(1000 * (now_s - connection.opened_s))),
            language=member.language if member is not None else "",
            version=member.version if member is not None else 0,
            groups=[
                ClientGroup(name=name, role=role.value, client_id=each.client_id) for role, name, each in memberships
            ],
            received_bytes=connection.received,
            sent_bytes=connection.handed,
            received_bytes_per_s=round(received, 1),
            sent_bytes_per_s=round(sent, 1),
            unsent_bytes=connection.unsent_bytes,
            inflight_bytes=connection.in_flight.bytes,
        )


def _address(connection: ClientConnection) -> str:
    host, port = connection.peer_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
