"""A node must not lead while it is in maintenance, unless it is the only voter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.node.cluster_config import ClusterConfig
from cluster.runtime.alarms import Alarms
from statemachine.cluster_wide.settings import Maintenance
from tests.support.contexts import context_of


@pytest.mark.parametrize(
    ("maintained", "voters", "held"),
    [((), (1, 2, 3), False), ((2,), (1, 2, 3), False), ((1,), (1, 2, 3), True), ((1,), (1,), False)],
    ids=["nobody", "another", "this-one", "the-only-voter"],
)
def test_the_only_voter_leads_whatever_is_said_of_it(
    maintained: tuple[int, ...], voters: tuple[int, ...], held: bool
) -> None:
    rows = {node: Maintenance(0, "ops", "") for node in maintained}
    environment: Any = SimpleNamespace(gives_config=False)
    context = context_of(None, Alarms(lambda: 0), environment=environment)
    state: Any = SimpleNamespace(settings=SimpleNamespace(version=1, maintenance=rows))
    membership: Any = SimpleNamespace(in_force=SimpleNamespace(voter_ids=voters))
    changes = Mock()
    follower = ClusterConfig(context, state, changes, membership, Mock(), Mock(), Mock())
    changes.maintain.assert_called_with(held)
    membership.in_force.voter_ids = (1,)
    follower.tick(0)
    changes.maintain.assert_called_with(False)
