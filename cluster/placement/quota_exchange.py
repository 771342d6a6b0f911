"""Sends the demand under each quota once a second (`cluster.flow.quota_shares` adds up and divides). A follower sends
its demand to its leader, and gets the demand of all other nodes. The leaders of other groups send theirs to the leader
of the first group, and get the demand of all other groups.

    DEMANDS   []    payload: msgpack [[subject, owner, limit, demand], ...]

A frame has all demands of its sender, so it replaces the sender's last frame. Nothing is sent while there is no quota.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgpack

from cluster.flow.quota_limits import PULLS, SENDS
from cluster.flow.quota_shares import DEMAND_MAX, KEYS_MAX, LOOK_MS, Demands, QuotaChild
from cluster.runtime.peer_frames import Kind, PeerLinks, WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from raftlog.work import charge

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.flow.quota_shares import QuotaShares
    from cluster.peer.group_links import GroupLink, GroupLinks
    from cluster.runtime.turns.work import Turns, WorkSteps

PAYLOAD_MAX: Final = 960 << 10
"""The most bytes of a frame's payload: less than a frame of the channel `group` may have."""
TEXT_MAX: Final = 1_024
KEYS_PER_UNIT: Final = 4


class QuotaExchange:
    """Sends and receives the demands of one node. Event loop only."""

    def __init__(
        self,
        shares: QuotaShares,
        peers: PeerLinks,
        links: GroupLinks,
        turns: Turns,
        *,
        group: int,
        leader: Callable[[], NodeId],
        leads: Callable[[], bool],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """`group`: the number of this node's group. `leader` returns the node that this node follows, NOBODY (0) if it
        knows none. `leads` returns True if this node leads its group and takes writes."""
        self._shares, self._peers, self._links, self._turns = shares, peers, links, turns
        self._group, self._leader, self._leads = group, leader, leads
        self._now_ms = monotonic_ms
        self._due_ms = 0
        self._is_on = False
        self._looks = False
        """True while the steps of a measurement are in progress."""
        self._others: dict[int, GroupLink] = {}
        """Number of another group -> the connection over which its leader has sent demands. Used by the leader of the
        first group."""
        links.takes(Kind.DEMANDS, self._on_group_frame)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="quota shares", tick=self.tick, frames={Kind.DEMANDS: self._on_frame})

    def tick(self, now_ms: int) -> None:
        """Begins a measurement, and then sends the demands, once a second while there is a quota. May be called more
        often."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + LOOK_MS
        if not self._shares.active:
            if self._is_on:
                self._is_on = False
                self._shares.forget()
            return
        self._is_on = True
        if not self._looks:
            self._looks = True
            self._turns.begin("quota shares", self._look(now_ms))

    def _look(self, now_ms: int) -> WorkSteps:
        try:
            yield from self._shares.look(now_ms)
            if self._leads():
                yield from self._tell_as_leader()
            elif (leader := self._leader()) != NOBODY:
                self._peers.send_frame(leader, Kind.DEMANDS, [], encode(self._shares.below()))
        finally:
            self._looks = False

    def _tell_as_leader(self) -> WorkSteps:
        for node in self._peers.connected_members():
            told = self._shares.beside(("node", node), PULLS)
            self._peers.send_frame(node, Kind.DEMANDS, [], encode(told))
            yield
        if self._group != FIRST_GROUP:
            first = self._links.leader_link(FIRST_GROUP)
            if first is not None:
                first.send(Kind.DEMANDS, [], encode(self._shares.below()))
            return
        self._shares.leads_all()
        for group, link in list(self._others.items()):
            told = self._shares.beside(("group", group), (*SENDS, *PULLS))
            if not link.send(Kind.DEMANDS, [], encode(told)) and self._others.get(group) is link:
                del self._others[group]
            yield

    # --- frames ------------------------------------------------------------------------------------------------------

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Handles the demands that a node of this group sends. Raises WireError if they are malformed."""
        demands = decode(payload)
        if self._leads():
            self._heard(("node", peer), demands)
        elif peer == self._leader():
            self._shares.told(demands)

    def _on_group_frame(self, link: GroupLink, header: list[Any], payload: bytes) -> None:
        """Handles the demands that a node of another group sends. Raises WireError if they are malformed."""
        demands = decode(payload)
        if not self._leads():
            return
        if self._group == FIRST_GROUP:
            self._others[link.group] = link
            self._heard(("group", link.group), demands)
        elif link.group == FIRST_GROUP:
            self._shares.told(demands)

    def _heard(self, child: QuotaChild, demands: Demands) -> None:
        self._shares.heard(child, demands, self._now_ms())


def encode(demands: Demands) -> bytes:
    """Returns the payload of a frame. Demands that do not fit into PAYLOAD_MAX bytes are left out."""
    charge(1 + len(demands) // KEYS_PER_UNIT)
    rows = [[*key, demand] for key, demand in demands.items()]
    packed: bytes = msgpack.packb(rows)
    while len(packed) > PAYLOAD_MAX:
        rows = rows[: len(rows) // 2]
        packed = msgpack.packb(rows)
    return packed


def decode(payload: bytes) -> Demands:
    """Returns the demands in the payload of a frame. Raises WireError if the payload is malformed or too long."""
    if len(payload) > PAYLOAD_MAX:
        raise WireError(f"{len(payload)} bytes of demands, at most {PAYLOAD_MAX} are allowed")
    try:
        rows = msgpack.unpackb(payload, max_array_len=KEYS_MAX, max_map_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"malformed demands: {error!s:.200}") from error
    if not isinstance(rows, list):
        raise WireError("malformed demands: no list")
    charge(1 + len(rows) // KEYS_PER_UNIT)
    demands: dict[tuple[str, str, str], float] = {}
    for row in rows:
        match row:
            case [str(subject), str(owner), str(limit), float(demand)] if max(
                len(subject), len(owner), len(limit)
            ) <= TEXT_MAX and math.isfinite(demand):
                demands[subject, owner, limit] = min(max(demand, 0.0), DEMAND_MAX)
            case _:
                raise WireError(f"malformed demand: {row!r:.200}")
    return demands
