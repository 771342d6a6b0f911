"""The bytes on disk, frozen: a change here is a new format version, never an edit of these vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from raftlog.errors import CorruptLogError, FrameError, IdentityError
from raftlog.frame import FrameHeader, genesis_entry, make_entry, tail_after
from raftlog.storage.files import genesis as genesis_format
from raftlog.storage.files import identity as identities
from raftlog.storage.files import install_file, log_first, run_file, vote_withheld
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import decode_slot, encode_slot
from raftlog.storage.files.identity import Identity
from raftlog.storage.files.install_file import Install
from raftlog.storage.files.run_file import Run, RunState
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.segments.segment import (
    decode_header,
    decode_mark,
    encode_header,
    encode_mark,
    mark_of,
    newest_mark,
)
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index, encode_index
from raftlog.types import EMPTY_TAIL, EntryId, EntryType, HardState, LogTail, NodeId
from tests.support.rows import each_row

CLUSTER = UUID("00112233-4455-6677-8899-aabbccddeeff")
NODE = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
TAIL = LogTail(5, 41, 0x1122334455, 0xCAFEBABE, 0x1100000000, 1_700_000_000_123)

RUN = Run(
    RunState.STOPPED,
    4711,
    CLUSTER.bytes,
    1_700_000_000_000,
    41,
    5,
    0xCAFEBABE,
    1_700_000_000_001,
    1_700_000_000_002,
    1_700_000_000_003,
    40,
)
WITHHELD = VoteWithheld("a reason", 41, 5, 1_700_000_000_000)

VECTORS = {
    "genesis frame": (
        "524d5131cb73f2bb000000009a71bb4c0000004500000009000a00010000000000000000000000000000000000000000"
        "0000000000000000000000000000004d68656c6c6f"
    ),
    "messages frame": (
        "524d5131c7ba396ecb73f2bb92fd4bfa0000004300000009030a00000000000000000000000000020000000000000001"
        "0000000000000045000000000000004d000102"
    ),
    "noop that rolls": (
        "524d5131170c4393c7ba396e000000000000004000000009010a00010000000000000000000000030000000000000002"
        "00000000000000880000000000000063"
    ),
    "genesis payload": (
        "86a6666f726d61740aac636c75737465725f75756964c41000112233445566778899aabbccddeeffa867726f75705f69"
        "6409ac7365676d656e745f73697a65ce04000000aa637265617465645f6d73cf0000018bcfe56800a6766f7465727392"
        "82a2696401a475756964c410ffeeddccbbaa9988776655443322110082a2696402a475756964c4100011223344556677"
        "8899aabbccddeeff"
    ),
    "segment header": (
        "524d5153158a3757000a0000000000090000001122334455000000000000002a00000000000000050000018bcfe5687b"
        "cafebabe000000110000000000000000"
    ),
    "sync mark": ("524d5150d9e71c3d000000000000000c0000001122334455000000000000002a0000000000000005cafebabe00000000"),
    "first": (
        "524d5146158a3757000a0000000000090000001122334455000000000000002a00000000000000050000018bcfe5687b"
        "cafebabe000000110000000000000000"
    ),
    "install": (
        "524d514e1871cbe7000a00000000000988aa636865636b706f696e74bf30303030303030303030303030303030303034"
        "322d332d3930616231326364ab66697273745f696e64657828ae66697273745f706f736974696f6ecf00000011000000"
        "00a47465726d05a5696e64657829ac656e645f706f736974696f6ecf0000001122334455aa6865616465725f63726307"
        "aa646563696465645f6d73cf0000018bcfe56800"
    ),
    "index sidecar of members": (
        "524d515807dfa723000a0000000000090000001100000000000000000000002800000011223344550000000000000005"
        "00000000000000290000018bcfe5687bcafebabe00000002000000032e75498a00000001000000000000000000000028"
        "000000000000000400000000000000290000000000000005000000000000002a0000000000000064000000aa"
    ),
    "index sidecar": (
        "524d515816aaac55000a0000000000090000001100000000000000000000002800000011223344550000000000000005"
        "00000000000000290000018bcfe5687bcafebabe00000002000000022a74b6f700000000000000000000000000000028"
        "0000000000000004000000000000002900000000000000050000000000000064"
    ),
    "hard state slot": (
        "524d514804df7dfd000a0000000000090000000000000003000000000000000500000000000000020000000000000028"
        "00000000000000000000000000000000"
    ),
    "run slot": (
        "524d5152cc788dd9000a020000000009000000000000000300001267cafebabe00112233445566778899aabbccddeeff"
        "0000018bcfe56800000000000000002900000000000000050000018bcfe568010000018bcfe568020000018bcfe56803"
        "00000000000000280000000000000000"
    ),
    "vote withheld": (
        "524d51566aecf730000a00000000000984a6726561736f6ea86120726561736f6ea5696e64657829a47465726d05a873"
        "696e63655f6d73cf0000018bcfe56800"
    ),
    "identity": (
        "524d5149961b729c000a00000000000900000000000000020000018bcfe5680000112233445566778899aabbccddeeff"
        "ffeeddccbbaa998877665544332211000000000000000000"
    ),
}


INSTALL = Install(
    "00000000000000000042-3-90ab12cd", 40, TAIL.segment_base, EntryId(5, 41), TAIL.end_position, 7, 1_700_000_000_000
)


def genesis() -> Genesis:
    return Genesis(CLUSTER, 9, 64 * 1024 * 1024, 1_700_000_000_000, (Voter(NodeId(1), NODE), Voter(NodeId(2), CLUSTER)))


def index() -> SegmentIndex:
    built = SegmentIndex(TAIL.segment_base, 40)
    built.add(TAIL.segment_base, 4)
    built.add(TAIL.segment_base + 100, 5)
    return built


def members_index() -> SegmentIndex:
    built = index()
    built.add(TAIL.segment_base + 170, 5, EntryType.MEMBERSHIP)
    return built


def build() -> dict[str, bytes]:
    first = genesis_entry(b"hello", timestamp_ms=77, group_id=9)
    after = tail_after(EMPTY_TAIL, first)
    second = make_entry(
        after,
        term=2,
        entry_type=EntryType.MESSAGES,
        payload=b"\x00\x01\x02",
        timestamp_ms=50,
        group_id=9,
        segment_size=1000,
    )
    third = make_entry(
        tail_after(after, second),
        term=3,
        entry_type=EntryType.NOOP,
        payload=b"",
        timestamp_ms=99,
        group_id=9,
        segment_size=150,
    )
    return {
        "genesis frame": first.header + first.payload,
        "messages frame": second.header + second.payload,
        "noop that rolls": third.header,
        "genesis payload": genesis_format.encode(genesis()),
        "segment header": encode_header(TAIL, 9)[:64],
        "sync mark": encode_mark(mark_of(TAIL, 12)),
        "first": log_first.encode(TAIL, 9),
        "install": install_file.encode(INSTALL, 9),
        "index sidecar of members": b"".join(encode_index(members_index(), TAIL, 9)),
        "index sidecar": b"".join(encode_index(index(), TAIL, 9)),
        "hard state slot": encode_slot(3, HardState(5, NodeId(2), 40), 9),
        "run slot": run_file.encode_slot(RUN, 3, 9)[:112],
        "vote withheld": vote_withheld.encode(WITHHELD, 9),
        "identity": identities.encode(Identity(CLUSTER, 9, NodeId(2), NODE, 1_700_000_000_000)),
    }


@each_row("name", VECTORS)
def test_bytes_are_frozen(name: str) -> None:
    assert build()[name].hex() == VECTORS[name]


def test_vectors_decode() -> None:
    raw = {name: bytes.fromhex(value) for name, value in VECTORS.items()}
    header = FrameHeader(raw["messages frame"][:64], 9)
    assert (header.term, header.index, header.position, header.timestamp_ms) == (2, 1, 69, 77)
    assert (header.type, header.flags, header.frame_length) == (EntryType.MESSAGES, 0, 67)
    assert header.parent == FrameHeader(raw["genesis frame"][:64]).header_crc
    assert header.entry(b"\x00\x01\x02").payload == b"\x00\x01\x02"
    assert FrameHeader(raw["noop that rolls"]).flags == 1
    assert genesis_format.decode(genesis().entry()._replace(payload=raw["genesis payload"])) == genesis()
    assert decode_header(raw["segment header"], Path("f"), 9).previous == TAIL
    assert decode_mark(raw["sync mark"]) == mark_of(TAIL, 12)
    assert log_first.decode(raw["first"], 9) == TAIL
    assert install_file.decode(raw["install"], 9) == INSTALL
    _, decoded = decode_index(raw["index sidecar of members"], 9)
    assert (decoded.members, decoded.position(42)) == ([42], TAIL.segment_base + 170)
    head, decoded = decode_index(raw["index sidecar"], 9)
    assert head.tail == TAIL
    assert (decoded.offsets, decoded.terms) == (index().offsets, [(40, 4), (41, 5)])
    assert decode_slot(raw["hard state slot"], 9) == (3, HardState(5, NodeId(2), 40))
    assert run_file.decode_slot(raw["run slot"].ljust(512, b"\0"), 9) == (3, RUN)
    assert vote_withheld.decode(raw["vote withheld"], 9) == WITHHELD
    assert identities.decode(raw["identity"], Path("f")).node_uuid == NODE


def test_a_fresh_header_carries_two_marks_at_the_base() -> None:
    page = encode_header(TAIL, 9)
    assert len(page) == 4096
    assert newest_mark(page) == mark_of(TAIL, 1)
    assert decode_mark(page[512:560]) == mark_of(TAIL, 0)


@each_row("name", ["sync mark", "hard state slot", "identity", "segment header", "messages frame"])
def test_every_flipped_bit_is_noticed(name: str) -> None:
    raw = bytes.fromhex(VECTORS[name])
    for bit in range(len(raw) * 8):
        data = bytearray(raw)
        data[bit // 8] ^= 1 << bit % 8
        flipped = bytes(data)
        if name == "sync mark":
            assert decode_mark(flipped) is None
        elif name == "hard state slot":
            assert decode_slot(flipped, 9) is None
        elif name == "identity":
            with pytest.raises(IdentityError, match="damaged"):
                identities.decode(flipped, Path("f"))
        elif name == "segment header":
            with pytest.raises(CorruptLogError, match="damaged"):
                decode_header(flipped, Path("f"), 9)
        else:
            with pytest.raises(FrameError):
                FrameHeader(flipped[:64], 9).entry(flipped[64:])


def test_segment_of_another_group_or_format_is_refused() -> None:
    with pytest.raises(CorruptLogError, match="group 9, not 8"):
        decode_header(encode_header(TAIL, 9), Path("f"), 8)


@pytest.mark.parametrize("bad", [{"segment_size": 100}, {"voters": ()}, {"voters": (Voter(NodeId(0), NODE),)}])
def test_genesis_that_no_cluster_can_be_made_of(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"segment_size|voter ids"):
        genesis_format.encode(genesis()._replace(**bad))


def test_genesis_of_a_newer_format_says_so() -> None:
    payload = genesis_format.encode(genesis()).replace(b"\xa6format\x0a", b"\xa6format\x0b")
    with pytest.raises(FrameError, match="newer RaftMQ"):
        genesis_format.decode(genesis().entry()._replace(payload=payload))
