"""A cluster of one node, topics, and a REST catalog, for tests of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.tables.iceberg_place import IcebergPlace
from tests.support.followed_topics import send
from tests.support.iceberg_rest import RestCatalogServer
from tests.support.iceberg_rows import FILE


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raftmq.Client]:
    live = LocalCluster(tmp_path_factory.mktemp("tables") / "data")
    live.up(1, free_base_port(4))
    with raftmq.connect(live.servers) as client:
        yield client
    live.down()


@pytest.fixture
def topic(mq: raftmq.Client, request: pytest.FixtureRequest) -> str:
    """Two queues with 40 and 25 messages."""
    name = re.sub(r"\W", "_", request.node.name.removeprefix("test_"))[:100]
    mq.admin.create_topic(name, 2)
    send(mq, name, 40, 25)
    return name


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path / "rest").running() as server:
        yield server


@pytest.fixture(params=["file", "rest"])
def place(request: pytest.FixtureRequest) -> IcebergPlace:
    return FILE if request.param == "file" else request.getfixturevalue("rest").place
