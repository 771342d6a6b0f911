"""A cluster of four groups comes back from its tier and from backups in a folder, one of two groups from those in S3;
before that its groups are compared, and its directories checked. Real processes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeName, name_of
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
KEYS = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key", "AWS_REGION": "us-east-1"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command with --json; its exit code and object."""

    def ran(*words: str) -> tuple[int, Any]:
        code = cli.run([*words, "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out.strip() else told.err

    return ran


def queues_of(groups: list[int]) -> list[int]:
    """Returns the only queue of T in each group."""
    return [number_of(group, 0) for group in groups]


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


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> list[int]:
    """The groups of the cluster."""
    return [1, 2, 3, 4] if request.node.callspec.params["store"] == "file" else [1, 2]


def named(groups: list[int]) -> list[NodeName]:
    """Returns the names of the groups' nodes."""
    return [name_of(group, 1) for group in groups]


def check_restored(folder: Path, kept: list[int]) -> None:
    """Starts a restored cluster: it has so many messages of T in each group, and its groups know each other."""
    groups = [*range(1, 1 + len(kept))]
    cluster = LocalCluster(folder)
    cluster.up(timeout_s=at_most(60))
    try:
        wait(lambda: all(view.ready for view in cluster.views()), cluster.views)
        with connect(cluster.servers) as mq:
            wait(lambda: mq.admin.broker_groups() == groups, mq.admin.broker_groups)
            assert [mq.admin.max_offset("T", queue) for queue in queues_of(groups)] == kept
            first = [mq.pull("T", queue, 0).messages[0].body for queue in queues_of(groups)]
            assert first == [b"%d" % group for group in groups]
            mq.admin.create_topic("U", queues=1)
            wait(lambda: len(mq.admin.describe_topic("U").queues) == len(groups), "the groups do not know each other")
    finally:
        cluster.down()


def test_all_groups_come_back_from_the_tier_and_from_backups_in_a_store(
    store: str, groups: list[int], run: Run, tmp_path: Path
) -> None:
    cluster, backups, ports = LocalCluster(tmp_path / "data"), f"{store}/backups", 4 * len(groups)
    restore, here, others = ("restore", "--nodes", "1"), ("--data", str(cluster.data)), groups[1:]
    with small_segments():
        cluster.up(1, free_base_port(ports), groups=len(groups), tier=store, timeout_s=at_most(60))
        try:
            with connect(cluster.servers) as mq:
                mq.admin.create_topic("T", queues=1)
                wait(lambda: len(mq.admin.describe_topic("T").queues) == len(groups), "some group has no T")
                for group, queue in zip(groups, queues_of(groups), strict=True):
                    for _ in range(group):
                        mq.send("T", b"%d" % group, queue_id=queue)
                code, made = run("backup", "create", "--to", backups, *here)
                assert (code, [group["group"] for group in made.get("groups", ())]) == (0, others), made
                mq.send("T", b"later", queue_id=queues_of(groups)[-1])
            code, compared = run("inspect-consistency", *here)
            assert (code, [each["group"] for each in compared["groups"]]) == (ExitCode.UNKNOWN, others), "one node each"
        finally:
            assert run("down", *here, "--grace", "60")[0] == 0  # all of the log is in the tier
        code, checked = run("fsck", str(cluster.data))
        assert (code, [each.get("node", 1) for each in checked["directories"]]) == (0, named(groups))
        listed = run("backup", "list", backups)[1]["backups"]
        assert [each["node"] for each in listed] == named(groups)
        name = listed[0]["name"]

        base = free_base_port(ports)
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
        assert (code, [group["group"] for group in told["groups"]]) == (0, others), told
        check_restored(tmp_path / "b", groups)

        base = free_base_port(ports)
        code, told = run(*restore, "--from-tier", store, "--into", str(tmp_path / "t"), "--base-port", str(base))
        assert (code, [group["group"] for group in told["groups"]]) == (0, others), told
        check_restored(tmp_path / "t", [*groups[:-1], groups[-1] + 1])
