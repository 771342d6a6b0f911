"""The judge of the message index: what it reports, and what is not its business."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.sim.index_check import not_found
from tests.support.sim_cluster import SimCluster, send_frame


@pytest.fixture
def stored() -> Any:
    """A leader that has one message, with the key k."""
    with SimCluster(1) as sim:
        sim.create_topic("T")
        path = sim.leader().connect()
        path.ask(send_frame(1, "T", b"body", key="k"))
        sim.loop.run_until(lambda: path.replies, 10, "an answer")
        yield sim.leader()


def test_a_message_is_looked_for_by_each_of_its_keys(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(not_found(stored.state, stored.log.read_at)) == []
    monkeypatch.setattr(type(stored.state.message_index), "candidates", lambda *_: [])
    (line,) = not_found(stored.state, stored.log.read_at)
    assert "is not found by its key k" in line


def test_a_message_that_has_rotted_on_the_disk_says_nothing_of_the_index(stored: Any) -> None:
    def rotten(position: int, size: int) -> bytes:
        data = stored.log.read_at(position, size)
        return data.replace(b"body", b"bodz")

    assert list(not_found(stored.state, rotten)) == []
