"""Who must not lead for its maintenance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.node.cluster_config import ClusterConfig
from statemachine.settings import Maintenance


@pytest.mark.parametrize(
    ("maintained", "voters", "held"),
    [((), (1, 2, 3), False), ((2,), (1, 2, 3), False), ((1,), (1, 2, 3), True), ((1,), (1,), False)],
    ids=["nobody", "another", "this-one", "the-only-voter"],
)
def test_the_only_voter_leads_whatever_is_said_of_it(
    maintained: tuple[int, ...], voters: tuple[int, ...], held: bool
) -> None:
    rows = {node: Maintenance(0, "ops", "") for node in maintained}
    node: Any = SimpleNamespace(
        node_id=1,
        state=SimpleNamespace(settings=SimpleNamespace(version=1, maintenance=rows)),
        environment=SimpleNamespace(gives_config=False),
        membership=SimpleNamespace(in_force=SimpleNamespace(voter_ids=voters)),
        changes=Mock(),
    )
    follower = ClusterConfig(node)
    node.changes.maintain.assert_called_with(held)
    node.membership.in_force.voter_ids = (1,)
    follower.tick(0)
    node.changes.maintain.assert_called_with(False)
