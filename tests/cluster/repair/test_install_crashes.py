"""The taker loses power, is killed, or has a call fail, at every step of an install: the next starts finish it, and
until it is decided the node is what it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import PowerCut
from raftlog.errors import StorageError
from raftlog.storage.files.fs import FileSystem, write_file
from tests.support.install_kit import Giver, Peers, Taker
from tests.support.node_kit import START_MS

PIECE_BYTES = 1500
LIFE_CALLS = 400
"""More file system calls than an install makes."""


@pytest.fixture(scope="module")
def giver() -> Giver:
    giver = Giver(60)
    giver.checkpoint()
    giver.trim(giver.log.position_of(50))
    return giver


def attempt(taker: Taker, giver: Giver) -> bool:
    """One life: opens, takes what is missing, opens again. True if the snapshot is in use then."""
    opened = taker.open()
    if opened.log.tail.index >= 60:
        opened.close(clean=True)
        return True
    taken, take = taker.take(Peers({2: giver}, PIECE_BYTES))
    opened.lock.close()
    if taken is None:
        raise StorageError("; ".join(take.failures.values()))
    opened = taker.install(taken)
    taker.check(opened, giver)
    opened.close(clean=True)
    return True


def lives(giver: Giver, kind: str, number: int) -> Iterator[str]:
    """An install that is disturbed at its call `number`, and the lives after it."""
    taker = Taker()
    first = taker.fs.calls
    if kind == "cut":
        taker.fs.cut_power_at(first + number)
    else:
        taker.fs.fail_call(first + number, errno.EIO)
    for life in range(4):
        try:
            attempt(taker, giver)
            yield "done"
            if taker.fs.calls < first + number:
                yield "over"
            return
        except (PowerCut, StorageError, OSError) as error:
            yield type(error).__name__
        taker.fs.crash(number * 7 + life) if kind != "kill" else taker.fs.restart()
        opened = taker.open()
        if opened.installed is None or not opened.installed.done:
            assert opened.log.tail.index in (20, 60)
        opened.close(clean=False)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("kind", ["cut", "EIO", "kill"])
def test_whatever_happens_to_the_taker_the_install_is_finished_later(giver: Giver, kind: str, every: int) -> None:
    disturbed = 0
    for number in range(1, LIFE_CALLS, every):
        heard = list(lives(giver, kind, number))
        assert "done" in heard, (number, heard)
        if heard[-1] == "over":
            break
        disturbed += heard[0] != "done"
    else:
        pytest.fail(f"an install makes more than {LIFE_CALLS} calls")
    assert disturbed * every > 60


def test_power_goes_in_every_life_in_turn(giver: Giver) -> None:
    """Several restarts in one install: each goes on where the one before ended, and at last it is done."""
    taker, lost = Taker(), 0
    for life in range(200):
        taker.fs.cut_power_at(taker.fs.calls + 16 + 4 * life)
        try:
            attempt(taker, giver)
            break
        except (PowerCut, StorageError):
            lost += 1
            taker.fs.crash(life)
    else:
        pytest.fail("it never ends")
    taker.fs.cut_power_at(-1)
    assert lost > 5
    opened = taker.open()
    assert opened.log.tail.index == 60


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_a_failed_call_kept_from_the_disk_is_written_by_the_next_attempt(giver: Giver, every: int) -> None:
    """One life: a call fails, the node goes on and tries again, installs, and then loses power. What could be read
    after a failed sync was in memory alone."""
    failed = 0
    for number in range(1, LIFE_CALLS, every):
        taker = Taker()
        taker.open().lock.close()
        disturbed = taker.fs.calls + number
        taker.fs.fail_call(disturbed, errno.EIO)
        try:
            taken, _ = taker.take(Peers({2: giver}))
            if taken is not None:
                taken.commit(taker.where, START_MS)
        except (StorageError, OSError):
            failed += 1
            taken, take = taker.take(Peers({2: giver}))
            assert taken is not None, (number, take.failures)
            taken.commit(taker.where, START_MS)
        if taker.fs.calls < disturbed:
            break
        taker.fs.crash(number)
        opened = taker.open()
        taker.check(opened, giver)
        opened.close(clean=True)
    else:
        pytest.fail(f"an install makes more than {LIFE_CALLS} calls")
    assert failed * every > 30


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_decision_that_failed_does_not_count_for_the_next_build(every: int) -> None:
    """INSTALL has its name, and the sync of that failed. The node goes on and fetches a newer snapshot, whose log
    begins elsewhere, and loses power meanwhile: what is there of it must not take the place of the log."""
    cut = 0
    for number in range(1, LIFE_CALLS, every):
        giver = Giver(60)
        giver.checkpoint()
        giver.trim(giver.log.position_of(50))
        taker = Taker()
        taker.open().lock.close()
        taken, _ = taker.take(Peers({2: giver}))
        assert taken is not None

        def fails(fs: FileSystem, path: Path, data: bytes) -> None:
            write_file(fs, path, data)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path.parent))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("raftlog.storage.log_build.write_file", fails)
            with pytest.raises(StorageError, match="deciding to install"):
                taken.commit(taker.where, START_MS)
        giver.grow(60)
        giver.checkpoint()
        giver.trim(giver.log.position_of(115))
        taker.fs.cut_power_at(taker.fs.calls + number)
        try:
            taken, _ = taker.take(Peers({2: giver}), at_least=lambda: 100)
            assert taken is not None
            taken.commit(taker.where, START_MS)
            taker.fs.cut_power_at(-1)
        except PowerCut:
            cut += 1
            taker.fs.crash(number)
        opened = taker.open()
        assert opened.log.tail.index in (20, 60, 120), number
        assert opened.log.read_entries(opened.log.first_index, opened.log.tail.index + 1, 1 << 30)
        opened.close(clean=True)
        if taken is not None and taken.manifest.mark.index == 120:
            break
    else:
        pytest.fail(f"an install makes more than {LIFE_CALLS} calls")
    assert cut * every > 30
