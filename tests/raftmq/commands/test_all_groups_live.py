"""The command line's tools judge all groups of a local cluster: two groups of one node each."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.hostile.request_fields import send_fields
from jepsen_like.hostile.wire import HOST, frames_of, request
from raftmq import cli
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.codec import ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.errors import ExitCode
from statemachine.levels import LEVEL
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

Run = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(8), groups=2, tier=str(made.data.parent / "store"))
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
    assert text == f"every group has level {LEVEL} already: nothing was written\n"


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


def make_topic(cluster: LocalCluster, name: str, groups: list[int]) -> None:
    """Makes a topic in these groups, and waits until the second one knows it."""
    first, second = (AdminApi(addresses_of(cluster.of_group(group))) for group in (1, 2))
    first.post("/v1/topics", {"name": name, "queues": 1, "groups": groups})
    wait(lambda: name in [topic["name"] for topic in second.local("/v1/topics")["topics"]], f"{name} is not there")


def test_a_topic_spreads_only_when_it_is_told_to(run: Run) -> None:
    def groups(name: str) -> list[int]:
        found: list[int] = run("topic", "describe", name)[1]["topic"]["groups"]
        return found

    assert run("topic", "create", "everywhere", "--queues", "3")[0] == 0
    assert run("topic", "create", "at-home", "--queues", "3", "--dedup", "strict", "--in-group", "1")[0] == 0
    assert (groups("everywhere"), groups("at-home")) == ([1, 2], [1])
    code, refused = run("topic", "create", "nowhere", "--in-group", "7")
    assert (code, "there is no group 7" in str(refused)) == (ExitCode.USAGE, True)
    assert run("topic", "alter", "at-home", "--queues", "4")[0] == 0
    assert groups("at-home") == [1]
    code, told = run("topic", "spread", "at-home", "--yes")
    assert (code, told["topic"]["groups"], told["topic"]["attributes"]) == (0, [1, 2], {"dedup": "strict"})
    code, again = run("topic", "spread", "at-home", "--in-group", "2", "--yes")
    assert (code, again["topic"]["groups"], again["topic"]["write_queues"]) == (0, [1, 2], 4)
    assert run("topic", "spread", "no-such", "--yes")[0] == ExitCode.REFUSED


def test_a_request_that_would_move_keys_says_so(cluster: LocalCluster) -> None:
    api = AdminApi(addresses_of(cluster.of_group(1)))
    body = {"name": "stays", "queues": 2}
    api.post("/v1/topics", body | {"groups": [1]})
    with pytest.raises(ApiRefusal, match="keys would move"):
        api.post("/v1/topics", body | {"groups": [2], "if_exists": "update"})
    assert api.post("/v1/topics", body | {"groups": [2], "if_exists": "keep"})["topic"]["groups"] == [1]
    told = api.post("/v1/topics", {"name": "stays", "groups": [2], "if_exists": "update", "move_keys": True})
    assert (told["topic"]["groups"], told["topic"]["write_queues"]) == ([1, 2], 2)


def ask(node: NodeRecord, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
    """Asks a node's port for clients. Returns the fields of the answer, whose code must be 0."""
    with socket.create_connection((HOST, node.broker_port), timeout=at_most(10)) as connection:
        connection.sendall(request(code, fields, body, opaque=1)[1])
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            for header, _ in frames_of(buffer):
                assert header.code == 0, header.remark
                return ext_of(header)
    raise ConnectionError("closed without an answer")


def stored(cluster: LocalCluster) -> list[int]:
    """The number of messages of T in each group."""
    fields = {"topic": "T", "queueId": "0"}
    return [int(ask(node, RequestCode.GET_MAX_OFFSET, fields)["offset"]) for node in cluster.nodes]


def test_a_backup_has_all_groups_and_a_restore_brings_all_back(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    make_topic(cluster, "T", [1, 2])
    for node in cluster.nodes:
        for _ in range(node.group):
            ask(node, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"hello")
    assert stored(cluster) == [1, 2]
    to = cluster.data.parent / "backups"
    code, told = run("backup", "create", "--to", str(to))
    assert code == 0, told
    ((group, node, path),) = [(each["group"], each["node"], Path(each["path"])) for each in told["groups"]]
    assert (told["node"], group, node, path.parent) == (1, 2, "2/1", to / "g02")
    first = Path(told["path"])
    listed = run("backup", "list", str(to), here=False)[1]["backups"]
    assert [(each["name"], each["node"]) for each in listed] == [(first.name, 1), (f"g02/{path.name}", "2/1")]
    code, verified = run("backup", "verify", str(to), here=False)
    assert (code, [each["name"] for each in verified["backups"]]) == (0, [first.name, f"g02/{path.name}"])
    code, one = run("backup", "create", "--to", str(to), "--node", "2/1", "--keep", "1")
    assert (code, one["groups"][0]["removed"], first.exists()) == (0, [path.name], True)
    later = Path(one["groups"][0]["path"])

    restore = ("restore", "--from", str(first), "--nodes", "1", "--base-port", str(free_base_port(8)))
    code, refused = run(*restore, "--into", str(tmp_path / "none"), here=False)
    assert (code, refused["error"]["what"].partition(" that")[0]) == (
        ExitCode.REFUSED,
        "group 2: there is no backup of group 2",
    ), "the one that is left was begun later"
    assert not (tmp_path / "none").exists()
    code, refused = run("restore", "--from", str(later), "--into", str(tmp_path / "none"), here=False)
    assert (code, refused["error"]["what"]) == (ExitCode.USAGE, f"{later.name} is a backup of group 2 alone")
    shutil.rmtree(later)  # a backup of the same second and entry has its name
    code, told = run("backup", "create", "--to", str(to))
    assert code == 0, told
    first = Path(told["path"])
    code, told = run(*restore[:2], str(first), *restore[3:], "--into", str(tmp_path / "new"), here=False)
    assert code == 0, told
    assert (told["nodes"], [group["group"] for group in told["groups"]]) == (2, [2])
    again = LocalCluster(tmp_path / "new")
    with small_segments():
        again.up()
    try:
        assert [node.name for node in again.nodes] == [1, "2/1"]
        wait(lambda: [view.ready for view in again.views()] == [True, True], again.views)
        assert stored(again) == [1, 2]
        make_topic(again, "U", [2])  # the groups know each other, and the second copies what is made now
    finally:
        again.down()


def test_what_nodes_say_of_themselves_is_asked_of_all_groups(run: Run) -> None:
    both = [1, "2/1"]
    for command in (["scrub"], ["repair"], ["recovery"], ["tier", "status"], ["config", "diff"]):
        code, told = run(*command)
        assert (code, [view["node"] for view in told["nodes"]]) == (0, both), command
    for command in (["scrub", "--status"], ["repair"], ["recovery"]):
        assert [view["node"] for view in run(*command, "--node", "2/1")[1]["nodes"]] == ["2/1"], command
    assert {event["node"] for event in run("events")[1]["events"]} == {*both}
    assert "  node 2/1  " in run("events", as_json=False)[1]
    assert run("alarm", "list")[1]["silent"] == []


def test_top_shows_all_groups(run: Run) -> None:
    code, told = run("top", "--count", "1")
    assert (code, [node["id"] for node in told["nodes"]]) == (0, [1, 1])
    assert [(group["group"], group["leader"]) for group in told["groups"]] == [(1, 1), (2, 1)]
    text = run("top", "--count", "1", as_json=False)[1]
    assert "node 1 leads" in text
    assert "node 2/1 leads" in text


def test_the_tier_of_each_group_is_closed_listed_and_verified(cluster: LocalCluster, run: Run) -> None:
    code, told = run("tier", "seal")
    assert (code, [group["group"] for group in told["groups"]]) == (0, [2])

    def listed() -> list[int]:
        answer = run("tier", "ls")[1]
        return [len(each["segments"]) for each in (answer, *answer["groups"])]

    wait(lambda: min(listed()) > 0, listed)

    def verified() -> int:
        code, told = run("tier", "verify")
        assert code == 0, told
        return min(told["segments"], told["groups"][0]["segments"])

    wait(lambda: verified() > 0, verified)  # a node lists a segment a moment before the store's manifest has it
    text = run("tier", "status", as_json=False)[1]
    assert f"tier       {(cluster.data.parent / 'store' / 'g02').as_uri()}" in text
    assert [line.split() for line in text.splitlines() if line.startswith("group ")] == [["group", "1"], ["group", "2"]]
