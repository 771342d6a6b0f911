"""The tier's store against an S3 server that is neither Amazon's nor Python: versitygw, which checks signatures and
conditions by itself. The suite is the one that every store passes (tests/cluster/tier/store)."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cluster.config.storage_sections import TierSection
from cluster.tier.store.errors import Denied, NotFound
from cluster.tier.store.object_store import ObjectStore, probe
from cluster.tier.store.store_by_url import open_store
from raftmq.cli import run
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.process import free_base_port
from tests.cluster.tier.store import test_cloud_store, test_object_stores
from tests.compat.conftest import INSTALLED
from tests.support.pace import at_most
from tests.support.s3_server import BUCKET, options
from tests.support.tools import lack

pytestmark = pytest.mark.compat
SERVER = INSTALLED / "go" / "versitygw"
RACERS, INCREMENTS = 8, 50
PATIENCE_S = at_most(60)
SUITE: dict[str, Callable[[ObjectStore], Awaitable[None]]] = {
    name: check
    for name, check in vars(test_object_stores).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["store"]
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server with an empty bucket."""
    if not SERVER.exists():
        lack("go", why="make test-compat builds versitygw with it")
    folder = tmp_path_factory.mktemp("s3")
    (folder / BUCKET).mkdir()
    port = free_base_port(1)
    keys = {"ROOT_ACCESS_KEY": "access-key", "ROOT_SECRET_KEY": "secret-key"}
    command = [str(SERVER), "--port", f"127.0.0.1:{port}", "posix", str(folder)]
    log = (folder.parent / "versitygw.log").open("wb")
    server = subprocess.Popen(command, env={**os.environ, **keys}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not listen"
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(at_most(30))
        log.close()


@pytest.fixture
def store(endpoint: str, tmp_path: Path) -> ObjectStore:
    return open_store(f"s3://{BUCKET}/{uuid4().hex}", options(endpoint, tmp_path))


def test_the_suite_is_not_empty() -> None:
    assert len(SUITE) >= 12


@pytest.mark.parametrize("name", sorted(SUITE))
async def test_the_suite_of_every_store(store: ObjectStore, name: str) -> None:
    await SUITE[name](store)


async def test_keys_that_are_wrong_are_denied(endpoint: str, tmp_path: Path) -> None:
    given = options(endpoint, tmp_path)
    for right, fix in (("secret-key", "secret key"), ("access-key", "AWS_ACCESS_KEY_ID")):
        path = tmp_path / "wrong"
        path.write_text((tmp_path / "credentials").read_text().replace(right, "another"))
        wrong = TierSection(endpoint=endpoint, region=given.region, credentials_file=str(path))
        with pytest.raises(Denied, match=fix):
            await probe(open_store(f"s3://{BUCKET}/p", wrong), "c1", "00ff")


async def test_an_absent_bucket_is_named(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="bucket"):
        await probe(open_store("s3://nowhere/p", options(endpoint, tmp_path)), "c1", "00ff")


def test_processes_that_race_lose_no_increment(endpoint: str, tmp_path: Path) -> None:
    url, given = f"s3://{BUCKET}/{uuid4().hex}", options(endpoint, tmp_path)
    asyncio.run(open_store(url, given).create("counter", b"0"))
    arguments = [url, given.endpoint, given.credentials_file, str(INCREMENTS)]
    racing = [subprocess.Popen([sys.executable, "-c", test_cloud_store.RACER, *arguments]) for _ in range(RACERS)]
    assert [racer.wait(at_most(200)) for racer in racing] == [0] * RACERS
    stored = asyncio.run(open_store(url, given).get("counter", 100))
    assert stored.data == str(RACERS * INCREMENTS).encode()


def test_a_node_uploads_and_verifies(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, region and endpoint come from the environment of the node."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "access-key"),
        ("AWS_SECRET_ACCESS_KEY", "secret-key"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        monkeypatch.setenv(name, value)
    cluster = LocalCluster(tmp_path / "data")
    try:
        cluster.up(1, free_base_port(4), tier=f"s3://{BUCKET}/{uuid4().hex}")
        with connect(cluster.servers) as mq:
            mq.send("orders", b"1")
        api = AdminApi(admin_addresses(None, str(tmp_path / "data")))
        sealed = api.post("/v1/tier/seal", {})["position"]
        deadline = time.monotonic() + PATIENCE_S
        while (view := api.local("/v1/tier"))["verified_to"] < sealed:
            assert time.monotonic() < deadline, view
            time.sleep(0.1)
        assert run(["tier", "verify", "--data", str(tmp_path / "data")]) == 0
    finally:
        cluster.down()
