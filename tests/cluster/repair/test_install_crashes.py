"""The taker loses power, is killed, or has a call fail, at every step of an install: the next starts finish it, and
until it is decided the node is what it was."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from jepsen_like.fakes.memory_fs import PowerCut
from raftlog.errors import StorageError
from tests.support.install_kit import Giver, Peers, Taker

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
