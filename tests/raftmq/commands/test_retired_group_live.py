"""The tools of an operator beside a group of brokers that has retired: first its nodes still run, because nobody but
the HTTP API was asked; then a start sets them aside; then a backup brings the group back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftmq import cli
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.timeout(400)]

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command with --json; its exit code and object, or what it printed without --json."""

    def ran(*words: str) -> tuple[int, Any]:
        code = cli.run([*words, "--json"])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if told.out.strip() else (code, told.err)

    return ran


def retire_over_http(cluster: LocalCluster, group: int) -> None:
    """Retires an empty group, and leaves its nodes alone."""
    api = AdminApi(addresses_of(cluster.nodes))

    def has_retired() -> bool:
        try:
            told = api.post(f"/v1/broker-groups/{group}/retire?broker_group={group}", {"force": True})
        except LocalError:  # it has not heard of the drain yet
            return False
        return bool(told["state"] == "retired")

    api.post(f"/v1/broker-groups/{group}/drain?broker_group={group}", {})
    wait(has_retired, f"group {group} does not retire")


def newest(folder: Path) -> Path:
    """Returns the newest backup of the first group."""
    return max(path for path in folder.iterdir() if path.name != "g02")


def test_the_tools_do_without_a_group_that_has_retired(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, backups = LocalCluster(tmp_path / "data"), tmp_path / "backups"
    monkeypatch.setenv("RAFTMQ_DATA", str(cluster.data))

    def check_tools() -> None:
        code, told = run("rolling-restart")
        assert code == 0, told
        restarted = [str(each["node"]) for each in told["restarted"]]
        assert sorted(name for name in restarted if not name.startswith("registry/")) == ["1", "2", "3"]
        code, told = run("node", "can-stop", "1")
        assert (code, told["allowed"]) == (0, True)
        assert "groups" not in run("upgrade", "plan")[1]
        assert run("doctor")[1]["findings"] == []
        for words in (("status",), ("inspect-consistency",), ("upgrade", "finalize", "--yes"), ("topic", "list")):
            code, told = run(*words)
            assert code == 0, (words, told)

    with small_segments():
        cluster.up(3, free_base_port(24), groups=2, timeout_s=at_most(60))
        try:
            assert [each["group"] for each in run("backup", "create", "--to", str(backups))[1]["groups"]] == [2]
            both = run("node", "can-stop", "2", "2/2")
            assert (both[0], [each["name"] for each in both[1]["nodes"]]) == (0, [2, "2/2"])
            assert run("node", "can-stop", "2/1", "2/2")[0] == ExitCode.USAGE
            retire_over_http(cluster, 2)
            check_tools()
            code, refused = run("restart", "2/1")
            assert (code, refused["error"]["why"].partition(" that, ")[0]) == (
                ExitCode.REFUSED,
                "the cluster has decided",
            )
            cluster.down()
            assert run("fsck", str(cluster.data))[0] == 0
            code, told = run("up", "--detach")
            assert code == 0, told
            assert [node.name for node in cluster.nodes] == [1, 2, 3], "its nodes are set aside"
            check_tools()
            code, refused = run("node", "can-stop", "2/1")
            assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no group 2")
            before = newest(backups)
            assert "groups" not in run("backup", "create", "--to", str(backups))[1]
        finally:
            cluster.down()
        homes = [cluster.data / home for home in ("n1", "n2", "n3")]
        code, told = run("fsck", str(cluster.data))
        assert (code, [each["directory"] for each in told["directories"]]) == (0, [f"{home}/data" for home in homes])
        assert run("fsck", str(cluster.data / "g02" / "removed" / "n1"))[0] == 0
        for backup, groups in ((before, [1, 2]), (newest(backups), [1])):
            check_restored(run, backup, tmp_path / f"from-{len(groups)}", groups)


def check_restored(run: Run, backup: Path, into: Path, groups: list[int]) -> None:
    """Restores a backup, and starts these groups."""
    words = ("--nodes", "1", "--base-port", str(free_base_port(8)))
    code, told = run("restore", "--from", str(backup), "--into", str(into), *words)
    assert code == 0, told
    restored = LocalCluster(into)
    restored.up(timeout_s=at_most(60))
    try:
        listed = run("broker-group", "list", "--data", str(into))[1]["groups"]
        states = {row["group"]: row["state"] for row in listed if row["state"] != "retired"}
        assert states == dict.fromkeys(groups, "active")
    finally:
        restored.down()
