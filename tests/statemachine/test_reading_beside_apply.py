"""Reads on one thread while another applies: what was announced can be read, always."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.types import Entry
from statemachine.broker_state import BrokerState
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.message_index import RECORD, RECORDS_MAX, key_hash
from statemachine.rows.keys import U64_MAX
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.topics.topics import CreateTopic

ENTRIES = 1500


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads take turns every 10 microseconds, so that they meet within a run, not only between runs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def applying(state: BrokerState, entries: list[Entry]) -> Iterator[None]:
    """Applies entries on another thread; yields as long as that goes on, and once more when it is over."""
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for at in range(0, ENTRIES, 3):
                state.apply(entries[at : at + 3])
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    running = True
    while running:
        running = writer.is_alive()
        yield
    writer.join()
    assert failures == []


def test_everything_below_the_end_can_be_fetched_at_any_moment(new_log: Callable[[], Any], tmp_path: Path) -> None:
    log = new_log()
    kv = RocksKV(str(tmp_path / "db"))
    state = BrokerState(kv)
    state.apply([log.command(CreateTopic({"name": "a"}, True))])
    entries = [
        log.messages(
            log.run(1, 0, 1 + n % 7),
            sessions=(log.session(1, max(0, n - 5), [n]),),
            effects=(CommitOffsets([("g", 1, n % 50, n)]),),
        )
        for n in range(ENTRIES)
    ]
    last_end = last_index = 0
    for _ in applying(state, entries):
        index = state.applied.index
        end = state.max_offset(1, 0)
        assert (index, end) >= (last_index, last_end)
        start = max(0, end - 300)
        assert [item.queue_offset for item in state.fetch(1, 0, start, end - start)] == list(range(start, end))
        session = state.session(b"\1" * 16)
        if index > 0:
            assert session is not None
            assert session.max_sequence >= index - 1
            assert all(session.find(s) or session.forgotten(s) for s in range(session.max_sequence + 1))
            assert len(state.offsets_of_group("g")) >= min(index, 50)
        last_end, last_index = end, index
    kv.close()
    assert state.applied.index == ENTRIES


def test_every_key_that_was_applied_is_found_at_any_moment(new_log: Callable[..., Any], tmp_path: Path) -> None:
    """Entries, merges and ends of segments, while another thread looks for a key that every entry has."""
    others = RECORD.pack(key_hash(1, b"other"), 0) * (RECORDS_MAX // 20)  # so that there are merges
    log = new_log(segment_size=600_000)
    kv = RocksKV(str(tmp_path / "db"))
    state = BrokerState(kv)
    state.apply([log.command(CreateTopic({"name": "a"}, True))])
    entries = []
    for n in range(ENTRIES):
        position = log.tail.end_position
        names = [b"all", *(b"k%d-%d" % (n, i) for i in range(n % 5))]
        records = b"".join(RECORD.pack(key_hash(1, name), position + 104) for name in names) + others
        entries.append(log.messages(log.run(1, 0, 1), keys=records))
    places = [entry.position + 104 for entry in entries]
    for _ in applying(state, entries):
        applied = state.applied.index  # the topic's entry is 0
        found: list[int] = []
        below = U64_MAX
        while len(found) < 100 and (bucket := state.message_index.bucket_below(below)) is not None:
            for batch in state.message_index.candidates(bucket, 1, b"all"):
                found += reversed(batch)
            below = bucket.base
        assert found == sorted(set(found), reverse=True), "each once, newest first"
        missing = [place for place in places[max(0, applied - 100) : applied] if place not in set(found)]
        assert not [place for place in missing if found and place > found[-1]]
        assert not found or found[0] >= places[max(0, applied - 1)]
    kv.close()
    assert len({entry.flags for entry in entries}) == 2, "segments ended"
