"""Checks that the voters find a member at its new addresses, before the cluster accepts these addresses.

The leader asks every other voter that it reaches, and itself. Each of them dials the new peer address and the new
address of the HTTP API. Its answer has a text for each address: "" if the node with that uuid proved its identity
there, else the reason why it did not. A majority of the voters must find the node: an address that only the operator
can reach would cut the node off from the cluster.

A question is a FETCH (`cluster.repair.fetch`). A node of an older release answers that it does not know this kind.

    arguments  [node id, node uuid, host, port, admin]    host "": the peer address stays; admin "": that address stays
    fields     [reason for the peer address, reason for the HTTP address]    "": found there, or not asked for
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from cluster.config.address import split_address
from cluster.config.local_layout import node_object
from cluster.members.addresses import MemberAddresses
from cluster.peer.wire import NODE_ID_MAX
from raftlog.core.state.quorum import majority
from raftlog.membership import Membership
from raftlog.types import FIRST_GROUP, NodeId

FOUND_AT: Final = "found at"
"""Name of the fetch with which the leader asks a voter to find a node at its new address."""
ASK_MS: Final = 3500
"""Milliseconds for which the leader waits for a voter's answer. The voter dials both addresses at the same time
(`cluster.peer.probe.PROBE_S`)."""
WHY_MAX: Final = 300
"""The most characters of a reason."""
UNREACHED: Final = "the leader does not reach it, so it was not asked"


class MemberPlace(NamedTuple):
    """The new addresses of a node; an address that does not change is "". The voters must find the node at them."""

    node: NodeId
    node_uuid: str
    host: str
    """The new host of the peer address; "" if the peer address stays."""
    port: int
    admin: str
    """The new address of the HTTP API; "" if it stays or is removed."""

    def __str__(self) -> str:
        peer = [f"{self.host}:{self.port}"] if self.host else []
        return " and ".join([*peer, *([f"{self.admin} (HTTP)"] if self.admin else [])])


class Proof(NamedTuple):
    """The result of a check: which voters found the node, and which did not."""

    by: list[NodeId]
    """Ids of the voters that found the node, ascending. The node itself counts if another voter found it."""
    not_by: dict[NodeId, str]
    """Voter -> a sentence that says why it did not find the node."""
    needed: int
    """The number of voters that make a majority."""

    @property
    def holds(self) -> bool:
        """True if a majority found the node."""
        return len(self.by) >= self.needed

    def lines(self, group: int = FIRST_GROUP) -> list[str]:
        """Returns one line for each voter of the group that did not find the node."""
        return [f"{node_object(group, voter)}: {why}" for voter, why in sorted(self.not_by.items())]


class CheckUnderWay(Exception):
    """Raised if another check of new addresses is in progress."""


AskPeer = Callable[[NodeId, list[Any]], Awaitable["list[Any] | str"]]
"""Asks a peer with (node id, arguments). Returns the fields of its answer, or a sentence that says why none came."""


class Prober(Protocol):
    """Finds out if a node is at an address (implemented with `cluster.peer.probe` and `cluster.members.addresses`)."""

    async def peer(self, place: MemberPlace) -> str:
        """Dials the new peer address. Returns "" if the node is there, else the reason why it was not found."""

    async def http(self, place: MemberPlace) -> str:
        """Asks the new address of the HTTP API. Returns "" if the node answers there, else the reason why it was not
        found."""


class MemberGroup(Protocol):
    """The members of the cluster, as far as the checks need them (implemented by `cluster.members.service`)."""

    @property
    def in_force(self) -> Membership:
        """The membership in force."""

    @property
    def own_id(self) -> NodeId:
        """Id of this node."""


def place_of(
    node: NodeId, node_uuid: str, before: MemberAddresses | None, after: MemberAddresses
) -> MemberPlace | None:
    """Returns the addresses that change between `before` and `after`; None if none does."""
    is_same = before is not None and (before.host, before.port) == (after.host, after.port)
    host, port = ("", 0) if is_same else (after.host, after.port)
    admin = "" if before is not None and before.admin == after.admin else after.admin
    return MemberPlace(node, node_uuid, host, port, admin) if host or admin else None


class Moves:
    """Checks new addresses. On the leader it asks the voters, and on a voter it answers the leader. Event loop only."""

    def __init__(self, members: MemberGroup, ask: AskPeer, connected: Callable[[NodeId], bool], prober: Prober) -> None:
        """`ask` asks a peer; `connected(peer)` returns True if the peer can be asked now."""
        self._members = members
        self._ask = ask
        self._connected = connected
        self._prober = prober
        self._asking = self._dialling = False

    async def check(self, place: MemberPlace) -> Proof:
        """Asks the voters if they find the node at its new addresses, and returns the result. The node itself is asked
        only if it is the only voter. The check takes a few seconds at most. Raises CheckUnderWay while another check
        is in progress."""
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

    async def _asked(self, voter: NodeId, place: MemberPlace) -> str:
        """Asks one voter. Returns "" if it found the node, else the reason why not."""
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
        """Returns the fields of the answer to a member's question. Raises ValueError if the question is malformed or
        the peer is no member; BlockingIOError while another question is being answered."""
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

    async def _dial(self, place: MemberPlace) -> tuple[str, str]:
        peer, http = self._prober.peer, self._prober.http
        found = await asyncio.gather(
            peer(place) if place.host else _not_asked(), http(place) if place.admin else _not_asked()
        )
        return found[0], found[1]


async def _not_asked() -> str:
    return ""


def judge(node: NodeId, voters: list[NodeId], answers: Mapping[NodeId, str]) -> Proof:
    """Returns the result of a check. `answers`: voter -> the reason why it did not find the node, "" if it did."""
    by = {voter for voter, why in answers.items() if not why}
    not_by = {voter: why for voter, why in answers.items() if why}
    if node in voters and by:
        by.add(node)
    return Proof(sorted(by), not_by, majority(len(voters)))


def decode(arguments: list[Any]) -> MemberPlace:
    """Returns the new addresses from the arguments of a question. Raises ValueError if they are malformed."""
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
            return MemberPlace(NodeId(node), node_uuid, host, port, admin)
    raise ValueError("a question about a node's address that makes no sense")


def _told(place: MemberPlace, found: tuple[str, str]) -> str:
    """Returns a text about the addresses at which a voter did not find the node, and why; "" if it found the node at
    all of them."""
    peer, http = (why[:WHY_MAX] if why.isprintable() else "its answer is not printable" for why in found)
    parts = [f"{place.host}:{place.port}: {peer}"] if peer else []
    return "; ".join([*parts, *([f"http://{place.admin}: {http}"] if http else [])])
