"""MEMBERSHIP and IDENTITY format 2: frozen bytes, who the members are at an opening, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import pytest

from raftlog import membership as memberships
from raftlog.errors import FrameError, IdentityError
from raftlog.frame import make_entry
from raftlog.membership import Address, Membership
from raftlog.storage.files import identity as identities
from raftlog.storage.files.genesis import Voter
from raftlog.storage.files.identity import Ancestor, Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.members import all_above, members_at_opening, newest_above
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry, EntryType, NodeId

CLUSTER = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEXT = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
NODE = UUID(int=11)
MEMBERS = Membership(NEXT, (Voter(NodeId(1), NODE), Voter(NodeId(2), CLUSTER)), (), "restore", "of a test", 42)

CHANGED = MEMBERS._replace(
    learners=(Voter(NodeId(4), UUID(int=4)),),
    addresses=(Address(NodeId(4), "h", 7, "h:8", (("internal", "h:9"),)),),
    removed=(Voter(NodeId(3), UUID(int=3)),),
    manual=(NodeId(4),),
)

BEFORE_ADDRESSES = (
    "86a6666f726d61740aac636c75737465725f75756964c410ffeeddccbbaa99887766554433221100a6766f746572739282a26964"
    "01a475756964c4100000000000000000000000000000000b82a2696402a475756964c41000112233445566778899aabbccddeeff"
    "a86c6561726e65727390a6726561736f6ea7726573746f7265a664657461696ca96f6620612074657374"
)
NO_LEARNER = "a86c6561726e65727390"
LEARNER = "a86c6561726e6572739182a2696404a475756964c41000000000000000000000000000000004"
NOTHING_MORE = "a961646472657373657390a772656d6f76656490a66d616e75616c90"
MORE = (
    "a96164647265737365739185a2696404a4686f7374a168a4706f727407a561646d696ea3683a38a96c697374656e6572739192a869"
    "6e7465726e616ca3683a39a772656d6f7665649182a2696403a475756964c41000000000000000000000000000000003a66d616e75"
    "616c9104"
)
CONTINUED = (
    "524d51499bd83a96000a00000000000900000000000000020000018bcfe56800ffeeddccbbaa99887766554433221100"
    "0000000000000000000000000000000b000000010000000000112233445566778899aabbccddeeff0000000000000029"
)


def test_the_bytes_are_frozen() -> None:
    assert memberships.encode(MEMBERS).hex() == BEFORE_ADDRESSES.replace("86", "89", 1) + NOTHING_MORE
    assert memberships.encode(CHANGED).hex() == "89" + BEFORE_ADDRESSES[2:].replace(NO_LEARNER, LEARNER) + MORE
    assert memberships.decode_payload(memberships.encode(CHANGED), 42) == CHANGED
    identity = Identity(NEXT, 9, NodeId(2), NODE, 1_700_000_000_000, (Ancestor(CLUSTER, 41),))
    assert identities.encode(identity).hex() == CONTINUED
    assert identities.decode(bytes.fromhex(CONTINUED), Path("/data/IDENTITY")) == identity


def test_any_flipped_or_missing_byte_of_a_lineage_is_damage() -> None:
    data = bytes.fromhex(CONTINUED)
    for at in range(len(data)):
        for bad in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at]):
            with pytest.raises(IdentityError, match="is damaged"):
                identities.decode(bad, Path("/data/IDENTITY"))


@pytest.mark.parametrize(
    "change",
    [{"format": 11}, {"voters": [{"id": 1}]}, {"cluster_uuid": b"short"}, {"learners": 5}],
)
def test_a_payload_that_cannot_be_read_is_refused(change: dict[str, Any]) -> None:
    fields = {**msgpack.unpackb(memberships.encode(MEMBERS)), **change}
    with pytest.raises(FrameError, match="newer RaftMQ" if "format" in change else "not readable"):
        memberships.decode_payload(msgpack.packb(fields), 42)


@pytest.mark.parametrize("voters", [(), (Voter(NodeId(0), NODE),), (Voter(NodeId(1), NODE), Voter(NodeId(1), NEXT))])
def test_members_are_distinct_and_one_votes(voters: tuple[Voter, ...]) -> None:
    with pytest.raises(ValueError, match="distinct positive ids"):
        memberships.encode(MEMBERS._replace(voters=voters))


def append_members(log: SegmentedLog, members: Membership, term: int = 0) -> Entry:
    entry = make_entry(
        log.tail,
        term=term or log.tail.term + 1,
        entry_type=EntryType.MEMBERSHIP,
        payload=memberships.encode(members),
        timestamp_ms=0,
        group_id=log.genesis.group_id,
        segment_size=log.segment_size,
    )
    log.append([entry])
    return entry


def test_the_newest_membership_above_the_applied_index_counts(new_log: Any, frames: Any) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [10] * 100))
    assert newest_above(log, -1) is None
    first = append_members(log, MEMBERS)
    log.append(frames(log.tail, [700] * 40, term=log.tail.term))  # over several segment files
    second = append_members(log, MEMBERS._replace(detail="again"))
    log.append(frames(log.tail, [3000, 1, 1], term=log.tail.term))
    newest = MEMBERS._replace(detail="again", index=second.index)
    assert newest_above(log, -1) == newest_above(log, first.index) == newest
    assert newest_above(log, second.index) is None
    assert newest_above(log, log.tail.index) is None


def test_who_the_members_are(new_log: Any, genesis: Any, frames: Any) -> None:
    _, log = new_log()
    old = Identity(genesis.cluster_uuid, genesis.group_id, NodeId(1), NODE, 0)
    new = old._replace(cluster_uuid=NEXT, origin=(Ancestor(genesis.cluster_uuid, 0),))
    path = Path("/data")

    def members(identity: Identity, applied: Membership | None = None, index: int = -1) -> list[Membership]:
        return members_at_opening(path, identity, genesis, log, applied, index)

    base = memberships.of_genesis(genesis)
    assert members(old) == [base]
    assert members(new, MEMBERS, 0) == [MEMBERS]
    entry = append_members(log, MEMBERS)
    log.append(frames(log.tail, [700] * 30, term=log.tail.term))
    first = MEMBERS._replace(index=entry.index)
    assert members(new) == [base, first]
    assert members(new, first, entry.index) == [first]
    later = append_members(log, MEMBERS._replace(detail="of the same term"), term=log.tail.term)
    second = MEMBERS._replace(detail="of the same term", index=later.index)
    assert members(new) == [base, first, second]
    assert members(new, first, entry.index) == [first, second]
    with pytest.raises(IdentityError, match=r"(?s)goes on as cluster ffeeddcc.*was interrupted.*raftmq"):
        members(old)
    with pytest.raises(IdentityError, match="is no member of its cluster, which knows node 1"):
        members(new._replace(node_uuid=CLUSTER))
    assert members(new._replace(node_id=NodeId(7)))[-1] == second, "a node that is no member runs passively"


def test_the_id_of_a_node_that_left_is_not_another_nodes(new_log: Any, genesis: Any) -> None:
    _, log = new_log()
    append_members(log, MEMBERS._replace(cluster_uuid=genesis.cluster_uuid, removed=(Voter(NodeId(9), NODE),)))
    left = Identity(genesis.cluster_uuid, genesis.group_id, NodeId(9), NODE, 0)
    path = Path("/data")
    assert members_at_opening(path, left, genesis, log, None, -1)[-1].removed == (Voter(NodeId(9), NODE),)
    with pytest.raises(IdentityError, match="which knows node 9 as"):
        members_at_opening(path, left._replace(node_uuid=CLUSTER), genesis, log, None, -1)


def test_a_joining_node_receives_the_cluster_it_is_of_later(new_log: Any, genesis: Any, frames: Any) -> None:
    """A joining node of a cluster that was restored has only GENESIS at first, which is of the one before."""
    _, log = new_log()
    path = Path("/data")
    joins = Identity(NEXT, genesis.group_id, NodeId(4), CLUSTER, 0, (Ancestor(genesis.cluster_uuid, 3),))
    for number in range(4):
        assert members_at_opening(path, joins, genesis, log, None, -1) == [memberships.of_genesis(genesis)], number
        member = joins._replace(node_id=NodeId(1), node_uuid=genesis.voters[0].uuid)
        with pytest.raises(IdentityError, match="was interrupted"):  # a member of the old one had to write the entry
            members_at_opening(path, member, genesis, log, None, -1)
        log.append(frames(log.tail, [10]))
    with pytest.raises(IdentityError, match="was interrupted"):  # entry 4 should have been it
        members_at_opening(path, joins, genesis, log, None, -1)


def test_indexes_know_the_membership_entries_of_every_segment(new_log: Any, frames: Any) -> None:
    """Through rolls, conflicts, orderly and other stops, and without the sidecars."""
    fs, log = new_log()
    indexes = []
    for number in range(6):
        indexes.append(append_members(log, MEMBERS._replace(detail=str(number)), term=1).index)
        log.append(frames(log.tail, [900] * number))
    assert log.membership_indexes() == indexes
    cut = indexes.pop()
    log.append(frames(log.tail_at(cut - 1), [10], term=2))
    assert log.membership_indexes() == indexes
    for clean in (False, True, False):
        log.close(clean)
        for name in fs.listdir(path := Path("/data/log")):
            if name.endswith(".idx") and not clean:
                fs.unlink(path / name)
        fs.restart()
        log = SegmentedLog.open(fs, Path("/data"), group_id=log.genesis.group_id)
        assert log.membership_indexes() == indexes
        assert [one.detail for one in all_above(log, -1)] == ["0", "1", "2", "3", "4"]
        assert newest_above(log, indexes[-1]) is None


def test_a_membership_entry_behind_a_damaged_header_keeps_its_index(new_log: Any, frames: Any) -> None:
    fs, log = new_log()
    (lost,) = frames(log.tail, [10])
    log.append([lost])
    log.append(frames(log.tail, [10] * 3))
    index = append_members(log, MEMBERS, term=1).index
    log.append(frames(log.tail, [10] * 5))
    segment = log.state.segments[0].path
    fs.restart()
    file = fs.open(segment)
    file.pwritev([b"\xff" * 8], LOCAL_HEADER_SIZE + lost.position)
    log = SegmentedLog.open(fs, Path("/data"), group_id=log.genesis.group_id)
    assert [found[2:4] for found in log.damage.ranges] == [(lost.index, lost.index)]
    assert log.membership_indexes() == [index]


def test_members_below_a_damaged_entry_are_found(new_log: Any, frames: Any) -> None:
    fs, log = new_log()
    first = append_members(log, MEMBERS)
    lost = append_members(log, MEMBERS._replace(detail="lost"))
    last = append_members(log, MEMBERS._replace(detail="last"))
    log.append(frames(log.tail, [10], term=log.tail.term))
    fs.damage(log.state.segments[0].path, LOCAL_HEADER_SIZE + lost.position + 70, b"\xff")
    assert log.find_damage(0, log.tail.index + 1).first_index == lost.index
    assert [one.index for one in all_above(log, -1)] == [first.index, last.index]
    newest = newest_above(log, last.index - 1)
    assert newest
    assert newest.index == last.index
