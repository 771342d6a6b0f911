"""Clusters of several groups of brokers, instead of the one of one group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.compat.conftest import all_servers
from tests.compat.many_groups import QUEUES

SIZES = {"2x1": (2, 1), "2x3": (2, 3), "4x1": (4, 1)}
"""Groups, and nodes in each."""


def make_cluster(factory: pytest.TempPathFactory, groups: int, nodes: int) -> LocalCluster:
    made = LocalCluster(factory.mktemp("groups") / "data")
    made.up(nodes, free_base_port(4 * groups * nodes), groups=groups)
    return made


@pytest.fixture(scope="module", params=SIZES)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = make_cluster(tmp_path_factory, *SIZES[request.param])
    yield made
    made.down()


@pytest.fixture(scope="module")
def mq(live: LocalCluster) -> Iterator[raftmq.Client]:
    with raftmq.connect(all_servers(live)) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: raftmq.Client) -> str:
    """A topic with QUEUES queues in each group."""
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name.removeprefix("test_"))
    mq.admin.create_topic(name, QUEUES)
    return name
