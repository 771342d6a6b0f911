"""The command line's tools judge all groups of a local cluster: two groups of one node each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raftmq import cli
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import ExitCode
from statemachine.levels import LEVEL
from tests.support.small_segments import small_segments

pytestmark = pytest.mark.live

Run = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(8), groups=2)
        yield made
        if (made.data / "cluster.json").exists():
            made.down()


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster, with --json; its exit code and object, or what it printed without --json."""

    def ran(*words: str, as_json: bool = True, here: bool = True) -> tuple[int, Any]:
        where = ["--data", str(cluster.data)] if here else []
        code = cli.run([*words, *where, *(["--json"] if as_json else [])])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if as_json and told.out.strip() else (code, told.out + told.err)

    return ran


def test_finalize_looks_at_all_groups(run: Run) -> None:
    code, told = run("upgrade", "finalize", "--yes")
    assert (code, told["level"], told["index"]) == (0, LEVEL, None)
    assert [(group["group"], group["level"]) for group in told["groups"]] == [(2, LEVEL)]
    text = run("upgrade", "finalize", as_json=False)[1]
    assert text == f"all 2 groups have level {LEVEL} already: nothing was written\n"


def test_links_and_reload_ask_the_nodes_of_all_groups(run: Run) -> None:
    assert [view["node"] for view in run("links")[1]["nodes"]] == [1, "2/1"]
    assert [view["node"] for view in run("reload")[1]["nodes"]] == [1, "2/1"]
    assert run("reload", as_json=False)[1] == "node 1: nothing has changed\nnode 2/1: nothing has changed\n"
    assert run("reload", "--node", "2/1", as_json=False)[1] == "node 2/1: nothing has changed\n"
    code, refused = run("reload", "--node", "3/1")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "there is no group 3")
    assert run("reload", "--node", "2/9")[1]["error"]["what"] == "there is no node 2/9"


def test_consistency_is_inspected_in_each_group(run: Run) -> None:
    code, told = run("inspect-consistency")
    assert (code, told["nodes"], told["marker"] >= 0) == (ExitCode.UNKNOWN, [1], True)
    ((group, nodes, marker),) = [(each["group"], each["nodes"], each["marker"]) for each in told["groups"]]
    assert (group, nodes, marker >= 0) == (2, [1], True)
    heads = [line.partition(":")[0] for line in run("inspect-consistency", as_json=False)[1].splitlines()]
    assert heads == ["node 1", "unknown", "node 2/1", "unknown"]


def test_fsck_of_a_cluster_reads_the_directories_of_all_groups(cluster: LocalCluster, run: Run) -> None:
    code, refused = run("fsck", str(cluster.data), here=False)
    assert (code, refused["error"]["type"]) == (ExitCode.REFUSED, "raftmq down, then repeat the command")
    cluster.down()
    try:
        code, told = run("fsck", str(cluster.data), here=False)
        homes = [str(cluster.data / home / "data") for home in ("n1", "g02/n1")]
        assert (code, [each["directory"] for each in told["directories"]]) == (0, homes)
        assert [each.get("node") for each in told["directories"]] == [None, "2/1"]
        text = run("fsck", str(cluster.data / "g02" / "n1"), as_json=False, here=False)[1]
        assert text.startswith(f"node 2/1, {homes[1]}: sound")
    finally:
        cluster.up()
