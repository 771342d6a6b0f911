"""One drain of the apply lane is bounded: what has gathered is cut, in its order, and reported piece by piece."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from cluster.replication.apply_lane import COMMAND_WEIGHT, ENTRIES_MAX, ApplyLane, is_small, pieces, size_of
from cluster.runtime.lanes import ThreadLaneRunner
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType
from statemachine import commands
from statemachine.broker_state import BrokerState
from statemachine.topics.topics import CreateTopic
from tests.support.wait_until import until


def entries(*sizes: int, kind: int = EntryType.NOOP) -> list[Entry]:
    """Entries with payloads of these sizes."""
    made: list[Entry] = []
    tail = EMPTY_TAIL
    for size in sizes:
        entry = make_entry(
            tail, term=1, entry_type=kind, payload=bytes(size), timestamp_ms=1, group_id=1, segment_size=1 << 30
        )
        tail = tail_after(tail, entry)
        made.append(entry)
    return made


def test_a_long_run_is_cut_into_pieces_and_nothing_is_lost() -> None:
    run = entries(*[1000] * 50, 9000, *[1000] * 5, 9000, 9000)
    cut = list(pieces(run, 5000))
    assert [entry for piece in cut for entry in piece] == run
    assert max([sum([len(entry.payload) for entry in piece]) for piece in cut if len(piece) > 1]) <= 5000
    assert [len(piece) for piece in cut if len(piece[0].payload) > 5000] == [1, 1, 1], "an entry is never cut"
    assert len(cut) < 25


def test_entries_of_few_bytes_weigh_too() -> None:
    run = entries(*[10] * 1000)
    cut = list(pieces(run, 1 << 20))
    assert [entry for piece in cut for entry in piece] == run
    assert [len(piece) for piece in cut] == [ENTRIES_MAX] * 15 + [1000 - 15 * ENTRIES_MAX]
    assert ApplyLane(BrokerState(MemoryKV())).weigh(cut[0]) == 1 << 20, "a drain has room for no other one"
    assert not is_small(cut[0])


def test_a_short_run_is_one_piece() -> None:
    run = entries(10, 10)
    assert list(pieces(run, 5000)) == [run]


def test_commands_weigh_more_than_messages() -> None:
    (command,), (message,) = entries(1000, kind=EntryType.COMMAND), entries(1000)
    assert size_of([command]) - size_of([message]) == 1000 * (COMMAND_WEIGHT - 1)


class Watched(ApplyLane):
    """Notes what each drain is given; the first one waits."""

    def __init__(self, state: BrokerState, drain_bytes: int) -> None:
        super().__init__(state, drain_bytes)
        self.gate = threading.Event()
        self.drains: list[list[int]] = []

    def drain(self, batch: Sequence[list[Entry]]):  # type: ignore[no-untyped-def]  # the same as of the class
        self.gate.wait()
        self.drains.append([entry.index for run in batch for entry in run])
        return super().drain(batch)


async def test_a_drain_takes_no_more_than_its_share_of_what_has_gathered() -> None:
    lane = Watched(BrokerState(MemoryKV()), 5000)
    reported: list[int] = []
    runner = ThreadLaneRunner(
        "apply", lane, asyncio.get_running_loop(), lambda done: reported.append(len(done.entries)), lambda error: None
    )
    run = entries(*[1000] * 40)
    for entry in run:
        runner.submit([entry])
    lane.gate.set()
    await until(lambda: sum(reported) == len(run))
    runner.close()
    assert [index for drain in lane.drains for index in drain] == list(range(40))
    assert max([len(drain) for drain in lane.drains]) == 5
    assert reported == [len(drain) for drain in lane.drains], "reads come between two reports"


def test_an_entry_of_many_commands_goes_to_the_lane() -> None:
    run = [CreateTopic({"name": f"topic-{number}"}, True) for number in range(2000)]
    tail = EMPTY_TAIL
    entry = make_entry(
        tail,
        term=1,
        entry_type=EntryType.COMMAND,
        payload=commands.pack(run),
        timestamp_ms=1,
        group_id=1,
        segment_size=1 << 30,
    )
    assert size_of([entry]) > 128 * 1024 > len(entry.payload)
