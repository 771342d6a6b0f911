"""Keeps apart what is new of the groups of a cluster: who leads each, and where its members are. Pure, and without a
clock.

Nodes of different groups tell each other what they know (frame GROUPS, docs/wire-protocol.md), and each merges it into
its own map (docs/adr/0108-groups-share-one-truth-and-copy-it.md). A map is a hint: it says whom to dial and what to
answer. The epochs of a group only rise, so the order in which news arrives, and its repetition, change nothing.
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
"""Members of a group in a map; a group has nine voters at most."""
LISTENERS_MAX = 16
TEXT_MAX = 255
"""Characters of a name or an address."""
RECORD_BYTES_MAX = 8 << 10
"""Bytes of one encoded record."""
MAP_BYTES_MAX = GROUPS_MAX * RECORD_BYTES_MAX + 16
"""Bytes of an encoded map: every map that is made of records that were accepted can be sent and kept."""
_INDEX_MAX = 1 << 62
LEVEL_MAX = 65535

_Node = Annotated[int, Meta(ge=1, le=65535)]
_Text = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
_TextOrNone = Annotated[str, Meta(max_length=TEXT_MAX)]


class Epoch(NamedTuple):
    """The age of a record. A group has one leader in a term, and the log of that leader only grows."""

    term: Annotated[int, Meta(ge=0, le=TERM_MAX)]
    index: Annotated[int, Meta(ge=0, le=_INDEX_MAX)]  # type: ignore[assignment]
    """Index of the entry with the newest change of the members; 0 for GENESIS."""
    change: Annotated[int, Meta(ge=0, le=_INDEX_MAX)] = 0
    """The number of times that the leader has lost or found a voter, or the group's level rose, in this term. Others
    than the leader say 0."""


class GroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A voter of a group, with its addresses."""

    node: _Node
    host: _Text
    port: Annotated[int, Meta(ge=1, le=65535)]
    """The member's peer port, at `host`."""
    http: _TextOrNone
    """The "host:port" of its HTTP API; "" if unknown."""
    listeners: Annotated[dict[_Text, _Text], Meta(max_length=LISTENERS_MAX)]
    """Listener name -> the "host:port" that it advertises."""


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """One group, as a node that knew its leader saw it. Later versions may add fields at the end of both arrays."""

    group: Annotated[int, Meta(ge=FIRST_GROUP, le=GROUPS_MAX)]
    name: _Text
    epoch: Epoch
    leader: _Node
    """The leader in the term of `epoch`."""
    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=MEMBERS_MAX)]
    """The voters, in the order of their ids."""
    away: Annotated[list[_Node], Meta(max_length=MEMBERS_MAX)] = []
    """The voters that the leader does not reach, ascending: clients are sent to others instead."""
    level: Annotated[int, Meta(ge=0, le=LEVEL_MAX)] = 0
    """The level that the group has at least (statemachine/levels.py); it never falls. 0 if it is unknown."""
    retired: bool = False
    """True if the node that tells it finds in its own state that the group has retired. It is in no map that is kept:
    each node says what it knows itself."""

    def addresses(self, listener: str) -> dict[int, str]:
        """Returns node -> the "host:port" that its listener of that name advertises."""
        return {each.node: each.listeners[listener] for each in self.members if listener in each.listeners}

    def http_address(self, node: int) -> str:
        """Returns the "host:port" of the node's HTTP API; "" if it is unknown."""
        return next((each.http for each in self.members if each.node == node), "")


GroupRecords = Mapping[int, GroupRecord]
"""Number of a group -> its record."""

_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(Annotated[list[GroupRecord], Meta(max_length=GROUPS_MAX)])


def encode(records: Iterable[GroupRecord]) -> bytes:
    """Returns the payload of a frame GROUPS: msgpack, docs/wire-protocol.md."""
    return _encoder.encode(sorted(records, key=lambda record: record.group))


def decode(payload: bytes) -> list[GroupRecord]:
    """Returns the records in the payload of a frame GROUPS, or in a file. Raises WireError for anything else: every
    number and text is checked for its range, every list for its length, and the whole for its size."""
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
    """Raises WireError if its bytes are too many, its members are not in order, or a text is none that can be shown or
    dialled."""
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
    """Returns what decides between two records of one group: the higher epoch. Two members may see other addresses in
    one epoch, from their own configurations; then the bytes decide, so that all nodes keep the same record."""
    return record.epoch, _encoder.encode(record)


def news(known: GroupRecords, heard: Iterable[GroupRecord], own: int = 0) -> dict[int, GroupRecord]:
    """Returns the records of `heard` that replace what is known. The own group's is never among them, because its
    members know better; `own` is 0 for a map of nobody."""
    found: dict[int, GroupRecord] = {}
    for each in heard:
        record = replace(each, retired=False) if each.retired else each
        before = found.get(record.group) or known.get(record.group)
        if record.group != own and (before is None or rank(record) > rank(before)):
            found[record.group] = record
    return found


def same_names(known: GroupRecords) -> dict[int, int]:
    """Returns group -> the group with the same name and the lowest number, which keeps the name; without that one."""
    holders: dict[str, int] = {}
    for group in sorted(known):
        holders.setdefault(known[group].name, group)
    return {group: holders[record.name] for group, record in known.items() if holders[record.name] != group}


def same_addresses(known: GroupRecords) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (group, node) -> the member of a lower group that has its peer address. A process is a member of one
    group, so one of the two no longer exists, or its address is wrong."""
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
    """Returns the groups of which a node of the group `own` dials one member: those 1, 2, 4, ... places after its own
    in the order of their numbers, all around. Of group 1 it dials every member, so that is not among them.

    Every distance is a sum of powers of two, so a group hears of every other over as many links as its distance has
    ones: six among 64 groups.
    """
    ring = sorted({own, *known})
    at = ring.index(own)
    steps = [1 << step for step in range(len(ring).bit_length()) if 1 << step < len(ring)]
    return [group for step in steps if (group := ring[(at + step) % len(ring)]) != FIRST_GROUP]
