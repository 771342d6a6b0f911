"""Defines the records that describe the groups of a cluster (the leader of each, and the addresses of its members), and
decides which record is newer. Pure, and without a clock.

Nodes of different groups tell each other what they know (frame GROUPS, docs/wire-protocol.md), and each merges it into
its own map (docs/adr/0108-groups-share-one-truth-and-copy-it.md). A map (number of a group -> its record) is a hint: it
says which nodes to dial and what to answer clients. The epochs of a group only rise. So records may arrive in any
order, and more than once, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from cluster.config.address import split_address
from cluster.config.local_layout import node_object
from cluster.runtime.peer_frames import WireError
from raftlog.core.message_plausibility import TERM_MAX
from raftlog.types import FIRST_GROUP, GROUPS_MAX

MEMBERS_MAX = 16
"""The most members of a group in a map. A group has at most nine voters."""
LISTENERS_MAX = 16
TEXT_MAX = 255
"""The most characters of a name or an address."""
RECORD_BYTES_MAX = 8 << 10
"""The most bytes of one encoded record."""
MAP_BYTES_MAX = GROUPS_MAX * RECORD_BYTES_MAX + 16
"""The most bytes of an encoded map. A map of accepted records is never larger, so it can always be sent and stored."""
_INDEX_MAX = 1 << 62
LEVEL_MAX = 65535

_Node = Annotated[int, Meta(ge=1, le=65535)]
_Text = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
_TextOrNone = Annotated[str, Meta(max_length=TEXT_MAX)]


class Epoch(NamedTuple):
    """The age of a record: the record of a group with the higher epoch is the newer one. A term has one leader, whose
    log only grows, so epochs only rise."""

    term: Annotated[int, Meta(ge=0, le=TERM_MAX)]
    index: Annotated[int, Meta(ge=0, le=_INDEX_MAX)]  # type: ignore[assignment]
    """The index of the log entry that last changed the members; 0 for GENESIS, the first entry."""
    change: Annotated[int, Meta(ge=0, le=_INDEX_MAX)] = 0
    """The number of times in this term that the leader has lost or found a voter, or that the group's level rose. Nodes
    other than the leader write 0."""


class GroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A voter of a group, with its addresses."""

    node: _Node
    host: _Text
    port: Annotated[int, Meta(ge=1, le=65535)]
    """The peer port of the member, at `host`."""
    http: _TextOrNone
    """The "host:port" of the member's HTTP API; "" if it is unknown."""
    listeners: Annotated[dict[_Text, _Text], Meta(max_length=LISTENERS_MAX)]
    """Name of a listener -> the "host:port" that the member advertises for it."""


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of one group, made by a node that knew the group's leader. Later versions may add fields at the end of
    this array and of a member's."""

    group: Annotated[int, Meta(ge=FIRST_GROUP, le=GROUPS_MAX)]
    name: _Text
    epoch: Epoch
    leader: _Node
    """The leader in the term of `epoch`."""
    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=MEMBERS_MAX)]
    """The voters, in the order of their ids."""
    away: Annotated[list[_Node], Meta(max_length=MEMBERS_MAX)] = []
    """The voters that the leader cannot reach, in ascending order. Clients are sent to other nodes instead."""
    level: Annotated[int, Meta(ge=0, le=LEVEL_MAX)] = 0
    """A level that the group has at least (statemachine/levels.py), which never falls; 0 if it is unknown."""
    retired: bool = False
    """True if the sender's own state says that the group has retired. Stored maps never contain True, because each node
    adds what its own state says when it sends."""

    def addresses(self, listener: str) -> dict[int, str]:
        """Returns node -> the "host:port" that the node advertises for that listener. Nodes without the listener are
        left out."""
        return {each.node: each.listeners[listener] for each in self.members if listener in each.listeners}

    def http_address(self, node: int) -> str:
        """Returns the "host:port" of the node's HTTP API; "" if it is unknown."""
        return next((each.http for each in self.members if each.node == node), "")


GroupRecords = Mapping[int, GroupRecord]
"""Number of a group -> its record."""

_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(Annotated[list[GroupRecord], Meta(max_length=GROUPS_MAX)])


def encode(records: Iterable[GroupRecord]) -> bytes:
    """Returns the payload of a frame GROUPS: the records in msgpack, ordered by group (docs/wire-protocol.md)."""
    return _encoder.encode(sorted(records, key=lambda record: record.group))


def decode(payload: bytes) -> list[GroupRecord]:
    """Returns the records in the payload of a frame GROUPS, or in a file. Raises WireError if the payload is malformed:
    the range of each number and text, the length of each list and the total size are checked."""
    if len(payload) > MAP_BYTES_MAX:
        raise WireError(f"a map of groups of {len(payload)} bytes")
    try:
        records: list[GroupRecord] = _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"malformed map of groups: {error!s:.200}") from error
    if not _rise([record.group for record in records]):
        raise WireError("the groups of a map do not rise")
    for record in records:
        _check(record)
    return records


def _check(record: GroupRecord) -> None:
    """Raises WireError if the record has too many bytes, if its members are not in ascending order, or if a name or
    address cannot be displayed or dialled."""
    if (size := len(_encoder.encode(record))) > RECORD_BYTES_MAX:
        raise WireError(f"group {record.group}: a record of {size} bytes")
    if not _rise([member.node for member in record.members]) or not _rise(record.away):
        raise WireError(f"group {record.group}: its members do not rise")
    texts = [record.name]
    for member in record.members:
        addresses = [*member.listeners.values(), *([member.http] if member.http else [])]
        texts += [member.host, *member.listeners, *addresses]
        try:
            for address in addresses:
                split_address(address)
        except ValueError as error:
            raise WireError(f"{node_object(record.group, member.node)}: {error!s:.200}") from error
    if any(not text.isprintable() or " " in text for text in texts):
        raise WireError(f"group {record.group}: a name or an address with a character that none has")


def _rise(numbers: list[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


# --- merging ---------------------------------------------------------------------------------------------------------


def rank(record: GroupRecord) -> tuple[Epoch, bytes]:
    """Returns the sort key of a record among the records of one group: the highest wins. The higher epoch comes first.
    Two members may know different addresses in one epoch, from their own configurations. Then the encoded bytes decide,
    so that all nodes keep the same record."""
    return record.epoch, _encoder.encode(record)


def news(known: GroupRecords, heard: Iterable[GroupRecord], own: int = 0) -> dict[int, GroupRecord]:
    """Returns group -> record, of those records of `heard` that are newer than the known ones. Their `retired` is
    set to False. Records of the group `own` are left out, because its members know better; `own` is 0 if no group is
    left out."""
    found: dict[int, GroupRecord] = {}
    for each in heard:
        record = replace(each, retired=False) if each.retired else each
        before = found.get(record.group) or known.get(record.group)
        if record.group != own and (before is None or rank(record) > rank(before)):
            found[record.group] = record
    return found


def same_names(known: GroupRecords) -> dict[int, int]:
    """Returns group -> the group with the lowest number that has the same name, and keeps it. Groups that keep their
    names are not in the result."""
    holders: dict[str, int] = {}
    for group in sorted(known):
        holders.setdefault(known[group].name, group)
    return {group: holders[record.name] for group, record in known.items() if holders[record.name] != group}


def same_addresses(known: GroupRecords) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (group, node) -> the (group, node) with the same peer address in the group with the lowest number. A
    process is a member of one group only. So one of the two members no longer exists, or has a wrong address."""
    holders: dict[tuple[str, int], tuple[int, int]] = {}
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for group in sorted(known):
        for member in known[group].members:
            name = group, member.node
            holder = holders.setdefault((member.host, member.port), name)
            if holder != name:
                found[name] = holder
    return found


def dialled(own: int, known: Iterable[int]) -> list[int]:
    """Returns the groups of which a node of the group `own` dials one member. With the groups in a ring in the order of
    their numbers, these are 1, 2, 4, ... places after `own`. Group 1 is left out, because nodes dial every member of
    it.

    Every distance in the ring is a sum of powers of two. So news reaches a group over as many links as its distance has
    binary ones: at most six among 64 groups.
    """
    ring = sorted({own, *known})
    at = ring.index(own)
    steps = [1 << step for step in range(len(ring).bit_length()) if 1 << step < len(ring)]
    return [group for step in steps if (group := ring[(at + step) % len(ring)]) != FIRST_GROUP]
