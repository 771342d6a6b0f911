"""The plan of an upgrade: what it refuses, and which node is next."""

from __future__ import annotations

import pytest

from raftmq.local.upgrade_plan import NodePlan, UpgradePlan, require_all
from raftmq_wire.errors import ExitCode, LocalError


def plan(known: int, *nodes: NodePlan) -> UpgradePlan:
    return UpgradePlan("2.0.0", known, 12, list(nodes), finalizes=False, reasons=[])


def node(number: int, step: str) -> NodePlan:
    return NodePlan(number, "voter", number == 1, "1.0.0" if step != "down" else "", 12, step, "")


def test_an_upgrade_across_one_level_begins() -> None:
    require_all(plan(12, node(1, "later"), node(2, "next")))
    require_all(plan(13, node(1, "later"), node(2, "next")))


def test_two_levels_apart_are_refused_and_the_version_between_is_named() -> None:
    with pytest.raises(LocalError) as caught:
        require_all(plan(14, node(1, "later"), node(2, "next")))
    error = caught.value
    assert error.what == "this version knows level 14, and the cluster has level 12: they are two levels apart"
    assert error.fix == "install the version of level 13, then: raftmq upgrade run; raftmq upgrade finalize"
    assert error.exit_code is ExitCode.REFUSED


def test_an_upgrade_does_not_begin_while_a_member_is_down() -> None:
    with pytest.raises(LocalError, match=r"the upgrade does not begin: node 2 \(voter\) does not answer"):
        require_all(plan(13, node(1, "next"), node(2, "down")))
