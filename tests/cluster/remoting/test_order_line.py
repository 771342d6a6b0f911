"""The requests of a connection that may still go to a leader, and a run in which an older commit came after newer
ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.remoting.connection.reply_path import OrderLine
from cluster.remoting.forward.forwarder import Forwarder
from jepsen_like.sim.world import run_seed
from raftmq_wire.codes import RequestCode

COMMIT, QUERY = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET


def handed_on(*numbers: int) -> OrderLine:
    line = OrderLine()
    for number in numbers:
        line.join(number)
        line.sent(number, COMMIT)
    return line


def test_what_a_leader_gives_back_goes_again_until_a_later_one_was_handed_on() -> None:
    line = handed_on(4, 7)
    assert line.overtaken(4, COMMIT)
    assert not line.overtaken(7, COMMIT)
    assert not line.overtaken(4, QUERY)


def test_what_this_node_carries_out_itself_overtakes_what_a_former_leader_still_has() -> None:
    line = handed_on(4, 7)
    line.served(QUERY)
    assert not line.overtaken(7, COMMIT)
    line.served(COMMIT)
    assert line.overtaken(7, COMMIT)
    line.join(8)
    assert not line.overtaken(8, COMMIT), "it came after"


def test_what_was_held_until_this_node_led_overtakes_too() -> None:
    """A commit that a former leader has, and a later one that nobody has when this node becomes the leader."""
    line, done = handed_on(4), list[object]()
    line.join(7)
    frame = SimpleNamespace(header=SimpleNamespace(code=COMMIT))
    held: Any = SimpleNamespace(
        is_orphan=False, line=line, one_try=True, spent=False, tries=0, frame=frame, is_with=lambda leader: False
    )
    forwarder: Any = SimpleNamespace(_leader=lambda: 1, _leads=lambda: True, _drop=line.leave, _local=done.append)
    Forwarder._pass_on(forwarder, 7, held)
    assert done == [frame]
    assert line.overtaken(4, COMMIT)


@pytest.mark.slow
def test_seed_1400103() -> None:
    """A follower becomes the leader while commits of a connection are stuck at the former one, out of its reach."""
    assert run_seed(1400103).violations == ()
