"""Building a log beside the log: what is taken, what is refused, what a stop, a full disk or rot leaves of it."""

from __future__ import annotations

from random import Random

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import FrameError, OutOfSpaceError
from raftlog.storage.log_build import LogBuild
from tests.support.damaged_disk import row
from tests.support.install_node import BEGIN, CHECKPOINT, DATA, GROUP, LAST, Frames, Giver, Node
from tests.support.rows import each_row


def test_whoever_gives_other_bytes_is_found_out_and_left(node: Node, frames: Frames) -> None:
    giver = node.giver
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    start = giver.bases[BEGIN]
    with pytest.raises(FrameError, match="of position"):
        build.append_raw(giver.raw(giver.bases[BEGIN + 1], giver.bases[BEGIN + 1] + 3000))
    assert build.next_position == start
    build.append_raw(giver.raw(start, start + 2000))
    assert build.next_position == start + 2000
    at = build.tail.end_position
    for bad in (b"\0" * 900, giver.raw(at + 700, at + 3000), b"RMQ1" * 300):
        with pytest.raises(FrameError):
            build.append_raw(bad)
        assert build.next_position == build.tail.end_position == at
    (other,) = frames(build.tail._replace(header_crc=7), [900], term=2)
    with pytest.raises(FrameError, match="does not follow"):
        build.append_raw(other.header + other.payload)
    node.check_new(node.install())


def test_a_build_that_does_not_begin_a_file_is_refused(node: Node) -> None:
    giver = node.giver
    second = next(entry for entry in giver.entries if entry.position > giver.bases[BEGIN])
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.tail(giver.entries[: second.index]))
    with pytest.raises(FrameError, match="does not begin a segment file"):
        build.append_raw(giver.raw(second.position, second.end_position))


@pytest.mark.parametrize(("index", "crc"), [(LAST - 1, None), (LAST + 1, None), (LAST, 7)])
def test_a_build_that_ends_elsewhere_than_its_checkpoint_is_not_decided(
    node: Node, index: int, crc: int | None
) -> None:
    build = node.build()
    with pytest.raises(FrameError, match=f"the checkpoint was made at entry {index}"):
        build.commit(CHECKPOINT, index, crc or node.giver.entries[index].header_crc)
    assert node.open().installed is None


@row("install/ without INSTALL")
def test_what_was_built_is_built_upon_and_counts_for_nothing_before(node: Node) -> None:
    giver, start = node.giver, node.giver.bases[BEGIN]
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(start))
    node.fs.restart()  # type: ignore[union-attr]
    found = LogBuild.resume(node.fs, DATA, GROUP)
    assert found is not None
    assert (found.next_position, found.tail) == (start, build.previous)
    found.append_raw(giver.raw(start, start + 6000))
    durable = found.tail
    for seed in range(5):
        node.fs.crash(seed)  # type: ignore[union-attr]
        opened = node.open()
        assert opened.installed is None
        node.check_old(opened)
        opened.close(clean=False)
        again = LogBuild.resume(node.fs, DATA, GROUP)
        assert again is not None
        assert again.tail == durable
        again.close()
    node.check_new(node.install())


@pytest.mark.parametrize("what", ["FIRST", "GENESIS", "segment", "no FIRST", "first segment", "header"])
def test_a_build_that_rotted_is_begun_again(node: Node, what: str) -> None:
    fs, log = node.fs, DATA / "install" / "log"
    assert isinstance(fs, MemoryFileSystem)
    build = node.build()
    build.close()
    segments = [log / name for name in fs.listdir(log) if name.endswith(".seg")]
    if what == "FIRST":
        fs.damage(log / "FIRST", 20, b"\xee")
    elif what == "no FIRST":
        fs.unlink(log / "FIRST")
    elif what == "GENESIS":
        fs.damage(DATA / "install" / "GENESIS", 70, b"\xee")
    elif what == "segment":
        fs.unlink(segments[1])
    elif what == "first segment":
        fs.unlink(segments[0])
    else:
        fs.damage(segments[-1], 4096 + 3, b"\xee")
        fs.unlink(log / "CLEAN")
    assert LogBuild.resume(fs, DATA, GROUP) is None
    node.check_new(node.install())


def test_a_full_disk_lets_the_build_go_on_later(node: Node) -> None:
    fs, giver = node.fs, node.giver
    assert isinstance(fs, MemoryFileSystem)
    build = LogBuild.begin(fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    build.append_raw(giver.raw(build.next_position, build.next_position + 3000))
    fs.space_left = 0
    at = build.tail.end_position
    with pytest.raises(OutOfSpaceError):
        build.append_raw(giver.raw(build.next_position, build.next_position + 9000))
    assert build.next_position == build.tail.end_position >= at
    fs.space_left = 1 << 40
    end = giver.entries[LAST].end_position
    build.append_raw(giver.raw(build.next_position, end))
    node.commit(build)
    node.check_new(node.open())


@pytest.mark.parametrize("lost", [False, True])
def test_GENESIS_comes_from_its_copy_or_the_log(node: Node, lost: bool) -> None:
    node.fs.unlink(DATA / "GENESIS")
    if lost:
        node.fs.unlink(DATA / "log" / f"{0:020d}.seg")
        with pytest.raises(FrameError, match="GENESIS is missing"):
            node.build()
    else:
        node.check_new(node.install())


def test_discarding(node: Node) -> None:
    node.build().discard()
    assert not node.fs.exists(DATA / "install")
    assert LogBuild.resume(node.fs, DATA, GROUP) is None


@each_row("seed", range(30))
def test_raw_frames_are_taken_whole_and_in_order_or_not_at_all(giver: Giver, seed: int) -> None:
    """Pieces of any size, flipped, doubled, left out, from elsewhere: what counts in the end is the peers' log."""
    rng = Random(seed)
    node = Node(giver, MemoryFileSystem())
    node.create()
    build = LogBuild.begin(node.fs, DATA, GROUP, giver.previous(giver.bases[BEGIN]))
    end = giver.entries[LAST].end_position
    refused = 0
    while build.next_position < end:
        at = build.next_position
        data = giver.raw(at, min(end, at + rng.choice((1, 63, 64, 65, 700, 3000, 9000))))
        match rng.randrange(8):
            case 0:
                flip = rng.randrange(len(data))
                data = data[:flip] + bytes([data[flip] ^ 1 << rng.randrange(8)]) + data[flip + 1 :]
            case 1:
                data = giver.raw(start := rng.randrange(end), start + 500)
            case 2:
                data = rng.randbytes(rng.randrange(300))
            case 3:
                data += data
        try:
            build.append_raw(data[: end - at])
        except FrameError:
            refused += 1
            assert build.next_position == build.tail.end_position
        if rng.randrange(6) == 0:
            node.fs.restart()  # type: ignore[union-attr]
            found = LogBuild.resume(node.fs, DATA, GROUP)
            assert found is not None
            assert found.tail == build.tail
            build = found
    node.commit(build)
    node.check_new(node.open())
    assert refused
