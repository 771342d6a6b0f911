"""A cluster of two groups comes back from its tier, in a folder and in S3, and from backups in S3. Real processes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq import cli
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from raftmq_wire.queue_numbers import number_of
from tests.support import s3_server
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.timeout(400)]

Run = Callable[..., tuple[int, Any]]
QUEUES = (0, number_of(2, 0))
KEYS = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key", "AWS_REGION": "us-east-1"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command with --json; its exit code and object."""

    def ran(*words: str) -> tuple[int, Any]:
        code = cli.run([*words, "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out.strip() else told.err

    return ran


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty store."""
    if request.param == "file":
        yield (tmp_path / "store").as_uri()
        return
    with s3_server.moto() as endpoint:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{s3_server.BUCKET}/shop"


def check_restored(folder: Path, kept: list[int]) -> None:
    """Starts a restored cluster: it has so many messages of T in each group, and its groups know each other."""
    cluster = LocalCluster(folder)
    cluster.up(timeout_s=at_most(60))
    try:
        wait(lambda: [view.ready for view in cluster.views()] == [True, True], cluster.views)
        with connect(cluster.servers) as mq:
            wait(lambda: mq.admin.broker_groups() == [1, 2], mq.admin.broker_groups)
            assert [mq.admin.max_offset("T", queue) for queue in QUEUES] == kept
            assert [mq.pull("T", queue, 0).messages[0].body for queue in QUEUES] == [b"0", b"1"]
            mq.admin.create_topic("U", queues=1)
            wait(lambda: len(mq.admin.describe_topic("U").queues) == 2, "the groups do not know each other")
    finally:
        cluster.down()


def test_all_groups_come_back_from_the_tier_and_from_backups_in_a_store(store: str, run: Run, tmp_path: Path) -> None:
    cluster, backups = LocalCluster(tmp_path / "data"), f"{store}/backups"
    restore = ("restore", "--nodes", "1")
    with small_segments():
        cluster.up(1, free_base_port(8), groups=2, tier=store, timeout_s=at_most(60))
        try:
            with connect(cluster.servers) as mq:
                mq.admin.create_topic("T", queues=1)
                wait(lambda: len(mq.admin.describe_topic("T").queues) == 2, "the second group has no T")
                for number in (0, 1, 1):
                    mq.send("T", b"%d" % number, queue_id=QUEUES[number])
                code, made = run("backup", "create", "--to", backups, "--data", str(cluster.data))
                assert (code, [group["group"] for group in made.get("groups", ())]) == (0, [2]), made
                mq.send("T", b"later", queue_id=QUEUES[1])
        finally:
            assert run("down", "--data", str(cluster.data), "--grace", "60")[0] == 0  # all of the log is in the tier
        listed = run("backup", "list", backups)[1]["backups"]
        assert [each["node"] for each in listed] == [1, "2/1"]
        name = listed[0]["name"]

        base = free_base_port(8)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", base + 6))
            taken.listen(1)
            words = (*restore, "--from", f"{backups}/{name}", "--into", str(tmp_path / "b"), "--base-port", str(base))
            code, refused = run(*words)
            assert (code, refused["error"]["what"]) == (
                ExitCode.REFUSED,
                f"port {base + 6} (peer of node 2/1) is in use",
            )
            assert not list(tmp_path.glob("b*"))
        code, told = run(*words)
        assert (code, [group["group"] for group in told["groups"]]) == (0, [2]), told
        check_restored(tmp_path / "b", [1, 2])

        base = free_base_port(8)
        code, told = run(*restore, "--from-tier", store, "--into", str(tmp_path / "t"), "--base-port", str(base))
        assert (code, [group["group"] for group in told["groups"]]) == (0, [2]), told
        check_restored(tmp_path / "t", [1, 3])
