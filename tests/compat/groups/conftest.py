"""Clusters of several groups of brokers, instead of the one of one group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.conftest import all_servers
from tests.compat.many_groups import QUEUES, SIZES, make_cluster


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
