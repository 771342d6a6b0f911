"""Incoming work is done in the next turn of the loop: ticks are for time-outs, nothing waits for one."""

from __future__ import annotations

from tests.support.sim_cluster import SimCluster, codes, send_frame

TICK_MS = 400


def test_a_send_takes_no_tick() -> None:
    """Its entry goes out, is acknowledged and committed by what messages and disks say alone."""
    with SimCluster(3, **{"raft.tick_ms": TICK_MS}) as sim:
        sim.create_topic("T")
        path = sim.leader().connect()
        for at in range(8):
            began = sim.loop.time()
            path.ask(send_frame(at, "T", b"%d" % at))
            sim.loop.run_until(lambda at=at: len(path.replies) > at, 10)  # type: ignore[misc]
            assert codes(path, at) == [0]
            assert sim.loop.time() - began < TICK_MS / 1000 / 4


def test_log_time_follows_the_clock_of_the_leader() -> None:
    """The core has no clock: each turn brings it one."""
    with SimCluster(3) as sim:
        sim.create_topic("T")
        raw, began_s = sim.leader().raw, sim.loop.time()
        before = raw.log_time_ms()
        sim.loop.run_for(5)
        assert sim.leader().raw is raw
        assert abs(raw.log_time_ms() - before - 1000 * (sim.loop.time() - began_s)) < 1000
