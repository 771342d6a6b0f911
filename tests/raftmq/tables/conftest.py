"""A cluster of one node, topics, and a REST catalog, for tests of tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq.tables.iceberg_place import IcebergPlace
from raftmq.tables.store_folder import StoreFolder
from tests.support import s3_server
from tests.support.followed_topics import send
from tests.support.iceberg_rest import RestCatalogServer
from tests.support.iceberg_rows import FILE
from tests.support.s3_server import BUCKET
from tests.support.store_proxy import StoreProxy, store_proxy


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


@pytest.fixture(scope="module")
def proxied() -> Iterator[StoreProxy]:
    with s3_server.moto() as endpoint, store_proxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(proxied: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """The store, as the environment names it."""
    for name, value in proxied.environment.items():
        monkeypatch.setenv(name, value)
    yield proxied
    proxied.order("pass")


@pytest.fixture
def where(proxy: StoreProxy) -> StoreFolder:
    return StoreFolder(f"s3://{BUCKET}/{uuid4().hex}/table")


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path / "rest").running() as server:
        yield server


@pytest.fixture(params=["file", "rest"])
def place(request: pytest.FixtureRequest) -> IcebergPlace:
    return FILE if request.param == "file" else request.getfixturevalue("rest").place
