"""Before a member's address changes: do the voters find that very node at the new one?

The leader asks every voter that it reaches, itself included. Each dials the new peer address and the new address of the
HTTP API, and says why the node with that uuid did not prove itself there. A majority of the voters must have found it:
an address that only the operator can reach would take the node out of the cluster.

A question is a FETCH (`cluster.repair.fetch`): an older node answers that it does not know it.

    arguments  [node id, node uuid, host, port, admin]    host "": the peer address stays; admin "": that address stays
    fields     [why not at the peer address, why not at the other]    "": found, or not asked for
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from cluster.config.config import split_address
from cluster.members.addresses import MemberAddresses
from cluster.peer.wire import NODE_ID_MAX
from raftlog.core.state.quorum import majority
from raftlog.membership import Membership
from raftlog.types import NodeId

FOUND_AT: Final = "found at"
"""Name of the fetch with which the leader asks a voter to find a node at its new address."""
ASK_MS: Final = 3500
"""Milliseconds that a voter may take: it dials both addresses at the same time (`cluster.peer.probe.PROBE_S`)."""
WHY_MAX: Final = 300
"""Characters of a reason."""
UNREACHED: Final = "the leader does not reach it, so it was not asked"


class Place(NamedTuple):
    """The addresses of a node that change, at which the others are to find it."""

    node: NodeId
    node_uuid: str
    host: str
    """"" if the peer address stays."""
    port: int
    admin: str
    """"" if that address stays, or is to be none."""

    def __str__(self) -> str:
        peer = [f"{self.host}:{self.port}"] if self.host else []
        return " and ".join([*peer, *([f"{self.admin} (HTTP)"] if self.admin else [])])


class Proof(NamedTuple):
    """Which voters found the node."""

    by: list[NodeId]
    """Ascending. The node itself is one of them when another voter found it."""
    not_by: dict[NodeId, str]
    """Voter -> why not."""
    needed: int
    """A majority of the voters."""

    @property
    def holds(self) -> bool:
        """A majority found it."""
        return len(self.by) >= self.needed

    @property
    def lines(self) -> list[str]:
        """One for each voter that did not find it."""
        return [f"node {voter}: {why}" for voter, why in sorted(self.not_by.items())]


class CheckUnderWay(Exception):
    """One such check goes on already."""


Ask = Callable[[NodeId, list[Any]], Awaitable["list[Any] | str"]]
"""Asks a peer; what it answers, or why it did not."""


class Prober(Protocol):
    """Dials (`cluster.peer.probe`, `cluster.members.addresses`)."""

    async def peer(self, place: Place) -> str:
        """Why the node is not at the peer address; "" if it is."""

    async def http(self, place: Place) -> str:
        """Returns why the node's HTTP API is not at its address; "" if it is."""


class Group(Protocol):
    """The members of the cluster (`cluster.members.service`)."""

    @property
    def in_force(self) -> Membership:
        """The members."""

    @property
    def own_id(self) -> NodeId:
        """This node."""


def place_of(node: NodeId, node_uuid: str, before: MemberAddresses | None, after: MemberAddresses) -> Place | None:
    """Returns those of a member's addresses that change; None if nodes dial it where they did."""
    is_same = before is not None and (before.host, before.port) == (after.host, after.port)
    host, port = ("", 0) if is_same else (after.host, after.port)
    admin = "" if before is not None and before.admin == after.admin else after.admin
    return Place(node, node_uuid, host, port, admin) if host or admin else None


class Moves:
    """Asks, as the leader, and answers, as a voter. Event loop only."""

    def __init__(self, members: Group, ask: Ask, connected: Callable[[NodeId], bool], prober: Prober) -> None:
        """`connected`: whether a peer can be asked now."""
        self._members = members
        self._ask = ask
        self._connected = connected
        self._prober = prober
        self._asking = self._dialling = False

    async def check(self, place: Place) -> Proof:
        """Asks the voters. Takes a few seconds at most. Raises CheckUnderWay."""
        if self._asking:
            raise CheckUnderWay
        self._asking = True
        try:
            voters = [NodeId(voter) for voter in sorted(self._members.in_force.voter_ids)]
            asked = [voter for voter in voters if voter != place.node] or voters
            answers = await asyncio.gather(*(self._asked(voter, place) for voter in asked))
        finally:
            self._asking = False
        return judge(place.node, voters, dict(zip(asked, answers, strict=True)))

    async def _asked(self, voter: NodeId, place: Place) -> str:
        """Why that voter did not find the node; "" if it did."""
        if voter == self._members.own_id:
            return _told(place, await self._dial(place))
        if not self._connected(voter):
            return UNREACHED
        answer = await self._ask(voter, list(place))
        if isinstance(answer, str):
            return answer[:WHY_MAX]
        match answer:
            case [str() as peer, str() as http]:
                return _told(place, (peer, http))
        return "its answer makes no sense"

    async def answer(self, peer: NodeId, arguments: list[Any]) -> list[Any]:
        """The fields of the answer to a member's question. Raises ValueError if it makes no sense, or the peer is no
        member; BlockingIOError while another question is being answered."""
        if peer not in self._members.in_force.node_uuids:
            raise ValueError("only a member may ask that")
        place = decode(arguments)
        if self._dialling:
            raise BlockingIOError("another address is being dialled: ask again in a moment")
        self._dialling = True
        try:
            return [why[:WHY_MAX] for why in await self._dial(place)]
        finally:
            self._dialling = False

    async def _dial(self, place: Place) -> tuple[str, str]:
        peer, http = self._prober.peer, self._prober.http
        found = await asyncio.gather(
            peer(place) if place.host else _not_asked(), http(place) if place.admin else _not_asked()
        )
        return found[0], found[1]


async def _not_asked() -> str:
    return ""


def judge(node: NodeId, voters: list[NodeId], answers: Mapping[NodeId, str]) -> Proof:
    """Returns the proof that the answers make. `answers`: voter -> why it did not find the node, "" if it did."""
    by = {voter for voter, why in answers.items() if not why}
    not_by = {voter: why for voter, why in answers.items() if why}
    if node in voters and by:
        by.add(node)
    return Proof(sorted(by), not_by, majority(len(voters)))


def decode(arguments: list[Any]) -> Place:
    """The place in a question. Raises ValueError."""
    match arguments:
        case [int() as node, str() as node_uuid, str() as host, int() as port, str() as admin] if (
            1 <= node <= NODE_ID_MAX
            and len(node_uuid) <= 36
            and len(host) <= 255
            and (not host or 1 <= port <= 65535)
            and len(admin) <= 300
        ):
            if admin:
                split_address(admin)
            return Place(NodeId(node), node_uuid, host, port, admin)
    raise ValueError("a question about a node's address that makes no sense")


def _told(place: Place, found: tuple[str, str]) -> str:
    """Returns the addresses at which a voter did not find the node, with the reasons; "" if it found it."""
    peer, http = (why[:WHY_MAX] if why.isprintable() else "its answer is not printable" for why in found)
    parts = [f"{place.host}:{place.port}: {peer}"] if peer else []
    return "; ".join([*parts, *([f"http://{place.admin}: {http}"] if http else [])])
