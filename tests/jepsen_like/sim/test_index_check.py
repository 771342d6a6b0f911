"""The judge of the message index: what it reports, and what is not its business."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.sim.checks.index_check import not_found
from statemachine.broker_state import BrokerState
from statemachine.rows import keys
from statemachine.rows.kv import INDEX, Batch
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


def not_at_all(_position: int, _size: int) -> bool:
    return False


def test_a_message_is_looked_for_by_each_of_its_keys(stored: Any) -> None:
    assert list(not_found(stored.state, stored.log.read_at, not_at_all)) == []
    lost, kv = Batch(), stored.kv
    for key, _ in kv.scan(INDEX, keys.FIRST, keys.LAST):
        lost.delete(INDEX, key)
    kv.write(lost)
    (line,) = not_found(BrokerState(kv), stored.log.read_at, not_at_all)
    assert "is not found by its key b'k'" in line


@pytest.mark.parametrize(
    ("sound", "rotten", "said"),
    [
        pytest.param(b"body", b"bodz", "cannot be read: the body of the message at 0 fails its CRC", id="body"),
        pytest.param(b"UNIQ_KEY\x01k", b"UNIQ_KEY\x01j", "is not found by its key b'j'", id="properties"),
    ],
)
def test_a_message_that_has_rotted_on_the_disk_says_nothing_of_the_index(
    stored: Any, sound: bytes, rotten: bytes, said: str
) -> None:
    def read(position: int, size: int) -> bytes:
        data: bytes = stored.log.read_at(position, size)
        assert sound in data
        return data.replace(sound, rotten)

    assert list(not_found(stored.state, read, lambda _position, _size: True)) == []
    (line,) = not_found(stored.state, read, not_at_all)
    assert said in line
