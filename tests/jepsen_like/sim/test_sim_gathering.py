"""A topic leaves the second group in the simulator, while a client sends there and its leader is killed."""

from __future__ import annotations

from jepsen_like.sim.groups.placed_clients import QUEUES, TOPIC
from jepsen_like.sim.options import GATHERS_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld

SCRIPT = "nodes 3 second=1 groups=1 gathers=1\nlead 1\ngather\n"


def test_half_of_the_seeds_with_nodes_of_a_second_group_have_a_topic_leave_it() -> None:
    drawn = [draw(seed) for seed in range(GATHERS_FROM, GATHERS_FROM + 200)]
    assert not any(options.gathers for options in drawn if not options.second)
    shares = [options.gathers for options in drawn if options.second]
    assert 0.25 < sum(shares) / len(shares) < 0.75
    assert not any(draw(seed).gathers for seed in range(GATHERS_FROM - 200, GATHERS_FROM))


def test_a_topic_is_read_out_and_comes_back_under_sends() -> None:
    stage = ScriptedWorld(SCRIPT)
    assert stage.run().violations == ()
    assert stage.second is not None
    gathering = stage.second.gathering
    assert gathering is not None
    assert gathering.sender.acked
    assert gathering.sender.refused > 0
    assert all(node.state.topics[TOPIC].write_queues == QUEUES for node in stage.second.states.running())
