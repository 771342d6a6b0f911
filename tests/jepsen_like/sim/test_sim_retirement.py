"""The second group retires in the simulator, while a client sends there and its leader is killed."""

from __future__ import annotations

from jepsen_like.sim.options import RETIRES_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld

SCRIPT = "nodes 3 seed=2 second=1 groups=1 retires=1\nlead 1\nretire\n"


def test_half_of_the_seeds_with_nodes_of_a_second_group_have_it_retire() -> None:
    drawn = [draw(seed) for seed in range(RETIRES_FROM, RETIRES_FROM + 200)]
    assert not any(options.retires for options in drawn if not options.second)
    shares = [options.retires for options in drawn if options.second]
    assert 0.25 < sum(shares) / len(shares) < 0.75
    assert not any(draw(seed).retires for seed in range(RETIRES_FROM - 200, RETIRES_FROM))


def test_the_second_group_retires_under_sends() -> None:
    stage = ScriptedWorld(SCRIPT)
    assert stage.run().violations == ()
    assert stage.second is not None
    retirement = stage.second.retirement
    assert retirement is not None
    assert retirement.closes > 0, "some looks were too old"
    assert retirement.sender.acked
    assert retirement.sender.refused > 0
    assert all(node.state.closed_log.is_closed for node in stage.second.states.running())
