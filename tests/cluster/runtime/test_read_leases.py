"""Leases: the lowest counts, each ends by itself."""

from __future__ import annotations

from cluster.runtime.read_leases import Lease, Leases


def test_the_lowest_position_counts_until_its_lease_is_over() -> None:
    now = [0]
    leases = Leases(lambda: now[0])
    assert leases.lowest() is None
    leases.touch("node 3", 500, 60)
    leases.touch("backup", 200, 30)
    assert leases.lowest() == 200
    now[0] = 29
    assert leases.all() == [Lease("backup", 200, 30), Lease("node 3", 500, 60)]
    now[0] = 30
    assert leases.lowest() == 500
    now[0] = 60
    assert leases.lowest() is None


def test_a_holder_has_one_lease_which_moves_with_it() -> None:
    leases = Leases(lambda: 0)
    leases.touch("node 3", 500, 60)
    leases.touch("node 3", 900, 60)
    assert leases.lowest() == 900
    leases.touch("node 3", 100, 60)
    assert leases.lowest() == 100
    leases.release("node 3")
    leases.release("node 3")
    assert leases.lowest() is None
