"""Places of messages in the Raft log are looked up beside the event loop, and only so many requests wait."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Sequence

import pytest

from cluster.broker.reads.entry_reads import WAITING_MAX, EntryReads
from cluster.broker.refusal import Refused
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from raftlog.errors import OutOfRangeError, RaftLogError
from raftlog.storage.log.log_reader import EntrySpan
from tests.support.contexts import context_of
from tests.support.pace import at_most


class Log:
    """Entries of 10 bytes; the lookup of position 500 hangs until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.threads: set[int] = set()

    def entry_at(self, position: int) -> EntrySpan:
        self.threads.add(threading.get_ident())
        if position == 500:
            self.go_on.wait(at_most(30))
        if position < 100:
            raise OutOfRangeError(f"position {position} was trimmed")
        return EntrySpan(position // 10, 3, position // 10 * 10, position // 10 * 10 + 10)


def reads_of(log: Log) -> EntryReads:
    loop = asyncio.get_running_loop()
    return EntryReads(context_of(None, Alarms(lambda: 0), environment=Environment(), loop=loop), log.entry_at)


async def ask(reads: EntryReads, positions: Sequence[int]) -> bytes | RaftLogError:
    found: asyncio.Future[bytes | RaftLogError] = asyncio.get_running_loop().create_future()
    reads.ask(positions, found.set_result)
    return await found


async def test_they_are_looked_up_on_a_thread_of_their_own() -> None:
    log = Log()
    reads = reads_of(log)
    found = await ask(reads, [100, 109, 110, 305])
    assert found == struct.pack(">QQIQQIQQI", 10, 3, 2, 11, 3, 1, 30, 3, 1)
    assert isinstance(await ask(reads, [99, 100]), OutOfRangeError)
    assert log.threads
    assert threading.get_ident() not in log.threads
    reads.close()


async def test_so_many_wait_and_no_more() -> None:
    log = Log()
    reads = reads_of(log)
    answers: list[bytes | RaftLogError] = []
    for _ in range(WAITING_MAX):
        reads.ask([500], answers.append)
    with pytest.raises(Refused, match="wait already"):
        reads.ask([100], answers.append)
    assert not answers
    log.go_on.set()
    while len(answers) < WAITING_MAX:
        await asyncio.sleep(0.01)
    assert await ask(reads, [100]) == struct.pack(">QQI", 10, 3, 1), "there is room again"
    reads.close()


async def test_one_that_cannot_be_told_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    reads = reads_of(log)
    answers: list[bytes | RaftLogError] = []

    def broken(_: object) -> None:
        raise ValueError("as the test wants")

    reads.ask([500], broken)
    reads.ask([100], broken)
    reads.ask([100], answers.append)
    log.go_on.set()
    while not answers:
        await asyncio.sleep(0.01)
    assert "telling the places of messages" in caplog.text
    reads.close()


async def test_who_was_never_asked_has_nothing_to_end() -> None:
    reads_of(Log()).close()
