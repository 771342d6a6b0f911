"""Reads on one thread while another applies: what was announced can be read, always."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statemachine.broker_state import BrokerState
from statemachine.rocks import RocksKV

ENTRIES = 1500


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads take turns every 10 microseconds, so that they meet within a run, not only between runs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_everything_below_the_end_can_be_fetched_at_any_moment(new_log: Callable[[], Any], tmp_path: Path) -> None:
    log = new_log()
    kv = RocksKV(str(tmp_path / "db"))
    state = BrokerState(kv)
    state.apply([log.command(["create_topic", {"name": "a"}, True])])
    entries = [
        log.messages(
            log.run(1, 0, 1 + n % 7),
            sessions=(log.session(1, max(0, n - 5), [n]),),
            effects=(["commit_offsets", [["g", 1, n % 50, n]]],),
        )
        for n in range(ENTRIES)
    ]
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for at in range(0, ENTRIES, 3):
                state.apply(entries[at : at + 3])
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    last_end = last_index = 0
    while True:
        running = writer.is_alive()
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
        if not running:
            break
    writer.join()
    kv.close()
    assert failures == []
    assert state.applied.index == ENTRIES
