"""RUN and VOTE_WITHHELD: what is read is what was written last, or what was there before; rot passes for neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import CorruptLogError, DiskFullError, StorageError
from raftlog.storage.files import run_file, vote_withheld
from raftlog.storage.files.run_file import Run, RunFile, RunState, load_run, stopped_in_order
from raftlog.storage.files.vote_withheld import VoteWithheld

DATA = Path("/data")
GROUP = 7
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-1, 2**63 - 1)
runs = st.builds(
    Run,
    st.sampled_from(list(RunState)),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
    u64,
    i64,
    u64,
    st.integers(0, 2**32 - 1),
    u64,
    u64,
    u64,
    i64,
)
withhelds = st.builds(VoteWithheld, st.text(max_size=300), i64, u64, u64)
RUN = Run(RunState.RUNNING, 1, bytes(16), 5)


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir(DATA)
    return fs


@given(run=runs, seq=st.integers(0, 2**64 - 1))
def test_a_run_is_read_back(run: Run, seq: int) -> None:
    assert run_file.decode_slot(run_file.encode_slot(run, seq, GROUP), GROUP) == (seq, run)
    assert run_file.decode_slot(run_file.encode_slot(run, seq, GROUP), GROUP + 1) is None


@given(withheld=withhelds)
def test_a_reason_is_read_back(withheld: VoteWithheld) -> None:
    assert vote_withheld.decode(vote_withheld.encode(withheld, GROUP), GROUP) == withheld
    assert vote_withheld.decode(vote_withheld.encode(withheld, GROUP), GROUP + 1) is None


@given(data=st.binary(max_size=600))
@example(bytes(512))
@example(b"")
def test_other_bytes_are_neither(data: bytes) -> None:
    assert run_file.decode_slot(data, GROUP) is None
    assert run_file.decode_slot(data.ljust(512, b"\0"), GROUP) is None
    assert vote_withheld.decode(data, GROUP) is None


@given(body=st.binary(max_size=100), run=runs, at=st.integers(8, 511), value=st.integers(0, 255))
def test_bytes_with_a_good_checksum_are_read_or_refused(body: bytes, run: Run, at: int, value: int) -> None:
    rest = b"\0\x0a\0\0" + GROUP.to_bytes(4) + body
    data = b"RMQV" + crc32c(rest).to_bytes(4) + rest
    assert isinstance(vote_withheld.decode(data, GROUP), VoteWithheld | None)
    slot = bytearray(run_file.encode_slot(run, 1, GROUP))
    slot[at] = value
    slot[4:8] = crc32c(bytes(slot[8:])).to_bytes(4)
    try:
        decoded = run_file.decode_slot(bytes(slot), GROUP)
    except CorruptLogError:
        assert slot[8:10] != b"\0\x0a"
    else:
        assert decoded is None or decoded[1].state in RunState


def test_every_flipped_bit_is_noticed() -> None:
    for raw, decode in (
        (run_file.encode_slot(RUN, 3, GROUP), run_file.decode_slot),
        (vote_withheld.encode(VoteWithheld("why", 4, 5), GROUP), vote_withheld.decode),
    ):
        for bit in range(len(raw) * 8):
            data = bytearray(raw)
            data[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(data), GROUP) is None


def test_a_newer_format_is_refused(fs: MemoryFileSystem) -> None:
    for raw, name in (
        (run_file.encode_slot(RUN, 0, GROUP), "RUN"),
        (vote_withheld.encode(VoteWithheld("why", 4, 5), GROUP), "VOTE_WITHHELD"),
    ):
        newer = raw[:8] + b"\0\x0b" + raw[10:]
        newer = newer[:4] + crc32c(newer[8:]).to_bytes(4) + newer[8:]
        fs.open(DATA / name, create=True).pwritev([newer], 0)
        with pytest.raises(CorruptLogError, match=f"{name} has format 11: a newer RaftMQ"):
            load_run(fs, DATA, GROUP) if name == "RUN" else vote_withheld.load(fs, DATA, GROUP)


def test_a_power_cut_at_any_call_leaves_the_old_run_or_the_new(fs: MemoryFileSystem) -> None:
    """The run begins with no file at all and goes through five runs."""
    for number in range(1, 14):
        fs = MemoryFileSystem()
        fs.mkdir(DATA)
        fs.cut_power_at(number)
        written: list[Run | None] = [None]
        trying: Run | None = None
        try:
            file = RunFile(fs, DATA, group_id=GROUP)
            assert file.previous is None
            for started_ms in range(5):
                trying = RUN._replace(started_ms=started_ms)
                file.write(trying)
                written.append(trying)
        except PowerCut:
            pass
        fs.crash(number)
        assert load_run(fs, DATA, GROUP) in (written[-1], trying)
        again = RunFile(fs, DATA, group_id=GROUP)
        assert again.previous in (written[-1], trying)
        again.write(RUN._replace(state=RunState.STOPPED))
        again.close()
        fs.crash(0)
        assert stopped_in_order(load_run(fs, DATA, GROUP))
    assert not stopped_in_order(None)
    assert not stopped_in_order(RUN)


def test_disk_errors_are_said(fs: MemoryFileSystem) -> None:
    file = RunFile(fs, DATA, group_id=GROUP)
    fs.fail_call(fs.calls + 1)
    with pytest.raises(StorageError, match=r"writing /data/RUN failed: Input/output error"):
        file.write(RUN)
    fs.space_left = 0
    with pytest.raises(DiskFullError, match="VOTE_WITHHELD failed: no space left"):
        vote_withheld.withhold(fs, DATA, VoteWithheld("why", 1, 1), GROUP)
    fs.space_left = 1 << 20
    vote_withheld.withhold(fs, DATA, VoteWithheld("why", 1, 1), GROUP)
    fs.fail_call(fs.calls + 1)
    with pytest.raises(StorageError, match="removing /data/VOTE_WITHHELD failed"):
        vote_withheld.release(fs, DATA)


def test_a_vote_withheld_twice_is_withheld_up_to_the_larger(fs: MemoryFileSystem) -> None:
    assert vote_withheld.load(fs, DATA, GROUP) is None
    vote_withheld.withhold(fs, DATA, VoteWithheld("first", 10, 4, 100), GROUP)
    both = vote_withheld.withhold(fs, DATA, VoteWithheld("second", 30, 3, 200), GROUP)
    assert both == VoteWithheld("first\nsecond", 10, 4, 100)
    assert vote_withheld.withhold(fs, DATA, VoteWithheld("second", 11, 4, 300), GROUP)[1:] == (11, 4, 100)
    fs.crash(0)
    assert vote_withheld.load(fs, DATA, GROUP) == VoteWithheld("first\nsecond", 11, 4, 100)
    vote_withheld.release(fs, DATA)
    vote_withheld.release(fs, DATA)
    fs.crash(0)
    assert vote_withheld.load(fs, DATA, GROUP) is None
