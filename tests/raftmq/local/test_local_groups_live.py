"""Two groups of real processes in one data directory, as an operator starts, kills, restarts and purges them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.loading import load
from cluster.truth.write_decisions import abort_command
from raftmq import cli
from raftmq.client import connect
from raftmq.client.producing.staged_writes_client import StagedWrites
from raftmq.local.cluster import LocalCluster
from raftmq.local.init import check_data_dirs
from raftmq.local.membership import LocalMembers
from raftmq.local.process import free_base_port, is_running
from raftmq.local.registry_processes import PORTS, addresses_of, servers_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import group_of, number_of
from tests.support.small_segments import small_segments
from tests.support.topic_rows import rows_of
from tests.support.wait_until import wait

pytestmark = pytest.mark.live

Run = Callable[..., tuple[int, Any]]
ALL = [1, "2/1", "registry/1", "registry/2", "registry/3"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        yield made
    if (made.data / "cluster.json").exists():
        made.down()


@pytest.fixture
def run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a command for this cluster, with --json; its exit code and objects, or what it printed without --json."""

    def ran(*words: str, as_json: bool = True) -> tuple[int, Any]:
        code = cli.run([*words, "--data", str(cluster.data), *(["--json"] if as_json else [])])
        told = capsys.readouterr()
        return (code, json.loads(told.out)) if as_json and told.out.strip() else (code, told.out + told.err)

    return ran


def all_ready(cluster: LocalCluster) -> None:
    """Waits for it: on a busy machine a group that was ready may have lost its leader since."""
    wait(lambda: [view.ready for view in cluster.views()] == [True, True], cluster.views)


def running(cluster: LocalCluster) -> list[int | str]:
    return [node.name for node in cluster.nodes if is_running(node)]


def test_two_groups_start_stop_and_start_again_together(cluster: LocalCluster, run: Run) -> None:
    base = free_base_port(8 + PORTS)
    code, told = run("up", "--nodes", "1", "--groups", "2", "--base-port", str(base), "--detach")
    assert code == 0, told
    assert [(node["id"], node.get("group"), node["admin_port"]) for node in told["nodes"]] == [
        (1, None, base + 3),
        (1, 2, base + 7),
    ]
    assert [(group["group"], group["leader"], group["writes_open"]) for group in told["groups"]] == [
        (1, 1, True),
        (2, 1, True),
    ]
    assert told["servers"] == servers_of(cluster.registry)
    assert running(cluster) == [1, "2/1"]
    assert run("up", "--groups", "2")[1]["error"]["what"].endswith("is already running")
    for name in ("2/9", "9/1", "9"):
        code, refused = run("kill", name)
        assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, f"there is no node {name}")
        assert refused["error"]["why"] == "the members are 1, 2/1, registry/1, registry/2, registry/3"
    code, refused = run("kill", "2/x")
    assert (code, refused["error"]["what"]) == (ExitCode.USAGE, "'2/x' is no name of a node")
    assert running(cluster) == [1, "2/1"]

    code, killed = run("kill", "2/1", as_json=False)
    assert code == 0
    assert f"is gone; type: raftmq restart 2/1 --data {cluster.data}" in killed
    assert running(cluster) == [1], "node 1 has the same id"
    status = run("status")[1]
    assert (status["writes_open"], [group["leader"] for group in status["groups"]]) == (True, [1, None])
    assert [node["running"] for node in status["nodes"]] == [True, False]
    table = run("status", as_json=False)[1]
    assert "no node of group 2 answers" in table
    assert "node 1 leads" in table
    pid = cluster.nodes[0].pid
    assert run("restart", "2/1")[1]["node"] == "2/1"
    assert (running(cluster), cluster.nodes[0].pid) == ([1, "2/1"], pid)
    assert "node 2/1 leads" in run("status", as_json=False)[1]
    assert "node 2/1 cluster." in run("logs", "2/1", "-n", "1", as_json=False)[1]
    lines = run("logs", "-n", "1", as_json=False)[1].splitlines()
    assert [line.partition(" | ")[0] for line in lines] == ["n1", "n2/1", "registry/1", "registry/2", "registry/3"]
    code, answer = run("node", "can-stop", "2/1", as_json=False)
    assert code == ExitCode.REFUSED
    assert "do not stop node 2/1 now" in answer
    assert run("node", "list", "--in-group", "3")[1]["error"]["what"] == "there is no group 3"
    secrets = run("secret", "status")[1]
    assert [(node["node"], node["state"]) for node in secrets["nodes"]] == [(1, "required"), ("2/1", "required")]
    assert len({node["key"] for node in secrets["nodes"]}) == 1
    bundle = cluster.data.parent / "bundle.tar.gz"
    files = run("support", "bundle", "--to", str(bundle))[1]["files"]
    assert {"node-1/log.txt", "g02-node-1/log.txt", "g02-node-1/raftmq.toml"} <= set(files)
    assert sum(name.endswith("/status.json") for name in files) == 2

    assert run("down")[1]["stopped"] == ALL
    assert running(cluster) == []
    code, told = run("up", "--detach", as_json=False)
    assert code == 0, told
    assert "2 nodes, node 1 leads (term" in told
    assert "node 2/1 leads (term" in told
    assert run("down", "--purge", "--yes")[1]["stopped"] == ALL
    assert not cluster.data.exists()


def test_a_running_cluster_gets_a_second_group_and_stays_what_it_is(cluster: LocalCluster, run: Run) -> None:
    base = free_base_port(8 + PORTS)
    cluster.up(1, base)
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", queues=1)
        for number in range(20):
            mq.send("T", b"%d" % number)
    (first,) = cluster.nodes
    kept = {path: path.read_bytes() for path in (first.home / "data" / "IDENTITY",)}
    settings = load(first.config_path)
    uuid = check_data_dirs([first])
    assert json.loads((cluster.data / "cluster.json").read_text())["schema"] == 10
    with connect(cluster.servers) as early:
        assert early.admin.topics() == ["T"]
        code, told = run("up", "--groups", "2", "--detach")
        assert code == 0, told
        all_ready(cluster)
        early.admin.create_topic("of-both", queues=1)
        assert [group_of(queue.queue_id) for queue in early.admin.describe_topic("of-both").queues] == [1, 2]
        assert [group_of(queue.queue_id) for queue in early.admin.describe_topic("T").queues] == [1]
    assert [node.name for node in cluster.nodes] == [1, "2/1"]
    assert cluster.nodes[0] == first, "neither its process nor its ports changed"
    assert {path: path.read_bytes() for path in kept} == kept
    with_registry = replace(settings.cluster, registry=addresses_of(cluster.registry))
    assert load(first.config_path) == replace(settings, cluster=with_registry), "it hears of the registry, no more"
    assert check_data_dirs(cluster.nodes) == uuid
    with connect(cluster.servers) as mq, mq.consumer("readers", "T", follow=False) as consumer:
        assert [message.body for message in consumer] == [b"%d" % number for number in range(20)]
    all_ready(cluster)
    assert str(uuid) == load(cluster.nodes[1].config_path).cluster.id
    with pytest.raises(LocalError, match="has 2 groups, not 1"):
        cluster.up(groups=1)
    cluster.down()
    moved = free_base_port(8)
    assert cluster.up(base_port=moved).ready
    members = [LocalMembers(cluster, group=group).members()["members"] for group in (1, 2)]
    assert [[member["port"] for member in each] for each in members] == [[moved + 2], [moved + 6]]


@pytest.mark.ci
def test_a_strike_hits_the_node_of_its_group(cluster: LocalCluster) -> None:
    cluster.up(1, free_base_port(8), groups=2)
    strike = cluster.aim("2/1")
    strike()
    wait(lambda: running(cluster) == [1], lambda: f"they run: {running(cluster)}")


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_groups_of_three_are_restarted_one_node_at_a_time_and_one_lost_disk_is_replaced(
    cluster: LocalCluster, run: Run
) -> None:
    base = free_base_port(32)
    cluster.up(3, base, groups=2)
    pids = [node.pid for node in cluster.nodes]
    code, told = run("rolling-restart")
    assert code == 0, told
    names = [each["node"] for each in told["restarted"]]
    assert sorted(names[:3]) == [1, 2, 3]
    assert sorted(map(str, names[3:])) == ["2/1", "2/2", "2/3"]
    assert not {*pids} & {node.pid for node in cluster.nodes}
    assert [each["node"] for each in run("rolling-restart", "--node", "2/2")[1]["restarted"]] == ["2/2"]
    assert run("rolling-restart", "--node", "2/4")[1]["error"]["why"] == "the members are 2/1, 2/2, 2/3"
    assert run("rolling-restart", "--node", "3/1")[1]["error"]["what"] == "there is no group 3"
    assert "every node runs" in run("upgrade", "run", as_json=False)[1]
    assert [group["group"] for group in run("upgrade", "plan")[1]["groups"]] == [2]

    cluster.down()
    shutil.rmtree(cluster.nodes[4].home / "data")
    code, told = run("up", "--detach")
    assert code == 0, told
    assert told["lost"] == ["2/2"]
    assert running(cluster) == [1, 2, 3, "2/1", "2/3"]
    code, refused = run("restart", "2/2")
    assert (code, refused["error"]["type"].partition(" --data")[0]) == (ExitCode.REFUSED, "raftmq node replace 2/2")
    code, told = run("node", "replace", "2/2")
    assert code == 0, told
    assert (told["node"], told["replaced"], told["voters"]) == ("2/4", "2/2", [1, 3, 4])
    assert str(cluster.data / "g02" / "removed" / "n2") == told["folder"]
    assert [node.name for node in cluster.nodes] == [1, 2, 3, "2/1", "2/3", "2/4"]
    all_ready(cluster)


@pytest.mark.ci
def test_a_group_that_lost_all_disks_stops_no_other(cluster: LocalCluster, run: Run) -> None:
    cluster.up(1, free_base_port(8), groups=2)
    cluster.down()
    shutil.rmtree(cluster.nodes[1].home / "data")
    code, told = run("up", "--detach")
    assert code == 0, told
    assert (told["writes_open"], told["lost_groups"]) == (True, [2])
    assert running(cluster) == [1]
    code, refused = run("up")
    assert (code, refused["error"]["what"]) == (ExitCode.REFUSED, "group 2 is lost and is not started")


@pytest.mark.ci
def test_groups_with_tls_and_users(cluster: LocalCluster, run: Run) -> None:
    cluster.up(1, free_base_port(8), groups=2, tls=True, auth=True)
    all_ready(cluster)
    assert (cluster.data / "tls" / "node-2-1.crt").exists()
    status = run("status")[1]
    assert [group["writes_open"] for group in status["groups"]] == [True, True]
    cluster.down()
    assert cluster.up().ready


@pytest.mark.ci
def test_a_changed_secret_reaches_all_groups(cluster: LocalCluster, run: Run) -> None:
    cluster.up(1, free_base_port(8), groups=2)
    before = (cluster.data / "SECRET").read_bytes()
    code, told = run("secret", "rotate")
    assert code == 0, told
    assert [(node["node"], node["state"]) for node in told["nodes"]] == [(1, "required"), ("2/1", "required")]
    assert len({node["key"] for node in told["nodes"]}) == 1
    assert (cluster.data / "SECRET").read_bytes() != before
    cluster.down()
    assert cluster.up().ready


def test_survivors_of_all_groups_go_on_as_one_new_cluster(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def recover(home: Path, *words: str) -> tuple[int, Any]:
        code = cli.run(["unsafe-recover", str(home), *words])
        told = capsys.readouterr()
        return code, json.loads(told.out) if "--json" in words else told.out + told.err

    cluster.up(1, free_base_port(16), groups=2)
    cluster.down()
    first, second = (node.home for node in cluster.nodes)
    code, plan = recover(second, "--plan", "--json")
    assert (code, plan["node"], plan["other_groups"]) == (0, "2/1", [1])
    assert "this is group 1; in a new cluster it is cut off from group 2, unless" in recover(first, "--plan")[1]
    accepted = ("--accept-data-loss", "--cluster-id", plan["cluster_uuid"])
    code, done = recover(first, *accepted, "--json")
    assert (code, "other_groups" in done) == (0, False)
    new = done["cluster_uuid"]
    code, text = recover(second, *accepted, "--into-cluster", plan["cluster_uuid"])
    assert (code, "is the cluster that" in text) == (ExitCode.USAGE, True)
    code, text = recover(second, *accepted, "--into-cluster", new)
    assert (code, f"node 2/1 is the only voter of group 2 in the new cluster {new}" in text) == (0, True), text
    assert "raftmq node add --in-group 2, twice" in text
    assert f"set cluster.id to {new}" in text
    config = second / "raftmq.toml"
    config.write_text(config.read_text().replace(plan["cluster_uuid"], new))
    cluster.up()
    all_ready(cluster)
    with connect(cluster.servers) as mq:  # it has queues in both groups only if the second copies the first one's truth
        assert mq.admin.broker_groups() == [1, 2], "`up` waits until the groups know each other"
        mq.admin.create_topic("T", queues=1)
        wait(lambda: len(mq.admin.describe_topic("T").queues) == 2, "the second group has no copy of the topic")


@pytest.mark.ci
def test_a_write_that_is_not_decided_is_shown_and_settled_by_the_command_of_its_finding(
    cluster: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.up(1, free_base_port(8), groups=2)
    all_ready(cluster)
    name = "query of a test"
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", 1)
        writes = mq.staged_writes()

        def staged(write: int) -> dict[int, list[tuple[int, int]]]:
            attempts = {}
            for group in (1, 2):
                attempt = writes.open(name, write, group=group)
                assert attempt is not None
                writes.stage(attempt, 1, "T", number_of(group, 0), [(b"row", b"")], 0, group=group)
                attempts[group] = [(attempt, 1)]
            return attempts

        class DriverDiedError(Exception):
            pass

        def dies_before_the_commit(self: StagedWrites, code: RequestCode, *rest: Any) -> Any:
            if code == RequestCode.COMMIT_GROUPS:
                raise DriverDiedError
            return ask(self, code, *rest)

        ask = StagedWrites._ask
        with monkeypatch.context() as patch:
            patch.setattr(StagedWrites, "_ask", dies_before_the_commit)
            with pytest.raises(DriverDiedError):
                writes.commit_in_groups(name, 7, staged(7))
        [second] = run("writes", "list")[1]["groups"]
        [prepared] = second["prepared"]
        assert (second["group"], prepared["name"], prepared["write"]) == (2, name, 7)
        assert (prepared["state"], prepared["deciding_group"], prepared["messages"]) == ("undecided", 1, 1)
        lines = run("writes", "list", as_json=False)[1].splitlines()
        assert [line.split() for line in lines if line.startswith("group ")] == [["group", "1"], ["group", "2"]]
        [line] = [line for line in lines if "undecided" in line]
        assert f"group 1, attempt {prepared['decider']}" in line

        program, *words = shlex.split(abort_command(name, 7))
        assert program == "raftmq"
        assert run(*words, "--dry-run", as_json=False) == (
            0, "nothing was changed; 3 attempts with 2 messages would be discarded\n",
        )  # fmt: skip
        assert run(*words)[0] == 0
        wait(lambda: not run("writes", "list")[1]["groups"][0]["prepared"], "it stays prepared")
        code, again = run(*words)
        assert (code, again["error"]["what"]) == (ExitCode.REFUSED, f"nothing is staged for write 7 of {name!r}")
        assert not writes.commit_in_groups(name, 7, staged(7)).earlier
        wait(lambda: not run("writes", "list")[1]["decisions"], "the second group does not follow")
        wait(lambda: len(rows_of(mq, "T")) == 2, lambda: rows_of(mq, "T"))

        assert run("writes", "forget", name, as_json=False)[0] == 0
        told = run("writes", "list")[1]
        assert [each["committed"] for each in (told, *told["groups"])] == [[], []], "both groups have forgotten it"
        assert not writes.commit_in_groups(name, 0, staged(0)).earlier
        cluster.kill("2/1")
        told = run("writes", "list", as_json=False)[1]
        assert "not in this: group 2" in told
        assert run("writes", "forget", name)[1]["error"]["what"].startswith("group 2: ")
        assert run("writes", "list")[1]["committed"], "the first group still knows it"
