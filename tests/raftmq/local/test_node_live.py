"""`raftmq node` against real processes, as an operator types it; a replacement under load while another node dies."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections import Counter

import pytest

from cluster.config.source import ConfigError
from raftmq.client import Client, connect
from raftmq.client.errors import RaftMQError
from raftmq.local import membership
from raftmq.local.cluster import LocalCluster
from raftmq.local.membership import LocalMembers
from raftmq.local.process import free_base_port, is_running
from raftmq.local.waiting import until
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.node_commands import node_command
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = pytest.mark.live


def hint(cluster: LocalCluster, *arguments: str) -> str:
    """Returns the advice of a refused command."""
    error = node_command(cluster, *arguments, code=ExitCode.REFUSED)["error"]
    assert isinstance(error, dict)
    return str(error["type"])


def bodies_in(mq: Client, topic: str) -> list[bytes]:
    with mq.consumer("readers", topic, follow=False) as consumer:
        return [message.body for message in consumer]


def advice(cluster: LocalCluster, code: str, about: str) -> str:
    """Returns the command of a finding that stands alone; "" if there is none, or another one explains it."""
    found = {(each["code"], each["object"]): each for each in cluster.view().findings() or []}
    each = found.get((code, about))
    return str(each["do_now"]) if each and not each["because_of"] else ""


@pytest.mark.ci
def test_the_leader_is_replaced_by_a_node_with_an_empty_disk(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", queues=1)
        sent = [b"%d" % number for number in range(50)]
        for body in sent:
            mq.send("T", body)
        leader = cluster.wait_leader()
        told = node_command(cluster, "replace", str(leader))
        assert (told["node"], told["role"], told["replaced"]) == (4, "voter", leader)
        assert str(told["folder"]).endswith(f"removed/n{leader}")
        assert told["voters"] == sorted({1, 2, 3, 4} - {leader})
        assert hint(cluster, "add", "--id", str(leader)).startswith("raftmq node add --id 5 ")
        mq.send("T", b"more")
        assert bodies_in(mq, "T") == [*sent, b"more"]


@pytest.mark.ci
def test_a_node_one_whose_folder_is_gone_is_replaced_and_a_half_made_successor_is_mended(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = own_cluster
    cluster.kill(1)
    shutil.rmtree(cluster.nodes[0].home / "data")
    with monkeypatch.context() as older:  # the successor starts without the secret, as one of an older release did
        older.setattr(membership, "copy_from_any", lambda *arguments: None)
        with pytest.raises(LocalError, match="the leader has heard nothing of it for 3 s"):
            LocalMembers(cluster, unheard_s=3.0).replace(1)
    assert until(lambda: advice(cluster, "link_suspect", "link 2-4") == "raftmq secret status", 30, 0.2)
    assert advice(cluster, "node_down", "node 4") == "", "it runs"
    told = node_command(cluster, "replace", "1")
    assert (told["node"], told["role"], told["voters"]) == (4, "voter", [2, 3, 4])


@pytest.mark.slow
def test_nodes_come_and_go_as_the_operator_types(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    one, two, three = 1, 2, 3
    node_command(cluster, "transfer", str(one))
    assert "use one of 1, 2, 3" in hint(cluster, "remove", "9")
    assert hint(cluster, "promote", str(two)) == "raftmq node list"
    drained = node_command(cluster, "drain", str(one))
    assert drained["leader"] in (two, three)
    assert str(({two, three} - {drained["leader"]}).pop()) in hint(cluster, "transfer", str(one))
    node_command(cluster, "drain", str(one), "--undo")
    node_command(cluster, "transfer", str(two))
    cluster.kill(three)
    wait(lambda: "raftmq restart 3" in hint(cluster, "remove", str(one)), lambda: hint(cluster, "remove", str(one)))
    cluster.restart(three)
    joined = node_command(cluster, "add", "--learner")
    assert (joined["node"], joined["role"]) == (4, "learner")
    assert node_command(cluster, "promote", "4")["voters"] == [1, 2, 3, 4]
    assert node_command(cluster, "remove", str(one))["role"] == "removed"
    assert [node.id for node in cluster.nodes] == [2, 3, 4]
    assert node_command(cluster, "add")["node"] == 5
    cluster.down()
    assert cluster.up(base_port=free_base_port(16)).ready
    place = {member["id"]: member["port"] for member in LocalMembers(cluster).members()["members"]}
    assert place == {node.id: node.peer_port for node in cluster.nodes}


class Load:
    """Sends from two threads until it is told to stop; what was acknowledged, and how long each took."""

    def __init__(self, servers: str) -> None:
        self.acked: list[bytes] = []
        self.unknown = 0
        self.took_ms: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(servers, n)) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def _run(self, servers: str, name: int) -> None:
        with connect(servers, timeout_s=at_most(30)) as mq:
            number = 0
            while not self._stop.is_set():
                body, begun = b"%d-%d" % (name, number), time.monotonic()
                try:
                    mq.send("T", body)
                    self.acked.append(body)
                    self.took_ms.append((begun, 1000 * (time.monotonic() - begun)))
                except RaftMQError:
                    self.unknown += 1
                number += 1
                self._stop.wait(0.005)

    def p99(self, since: float, until: float) -> float:
        """Returns the 99th percentile of the sends that began and were acknowledged between the two moments, ms."""
        took = sorted(ms for begun, ms in self.took_ms if since <= begun and begun + ms / 1000 < until)
        return took[int(0.99 * len(took))] if took else float("nan")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_with_an_empty_disk_replaces_a_dead_one_under_load_while_another_is_killed(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    with connect(cluster.servers) as mq:
        mq.admin.create_topic("T", queues=4)
    load = Load(cluster.servers)
    try:
        begun = time.monotonic()
        time.sleep(5)
        dead = rng.choice([node.id for node in cluster.nodes if node.id != cluster.wait_leader()])
        cluster.kill(dead)
        shutil.rmtree(next(node.home for node in cluster.nodes if node.id == dead))  # the disk is lost, and all on it
        replacing = time.monotonic()
        failed: list[LocalError] = []

        def replace() -> None:
            try:
                LocalMembers(cluster).replace(dead)
            except LocalError as error:
                failed.append(error)

        work = threading.Thread(target=replace)
        work.start()
        time.sleep(3)
        victim = rng.choice([node.id for node in cluster.nodes if node.id not in (dead, 4)])
        with contextlib.suppress(LocalError):
            while True:  # the other command may hold the lock for a moment
                try:
                    cluster.kill(victim)
                    break
                except LocalError as error:
                    if "another raftmq command" not in error.what:
                        raise
        struck = time.monotonic()
        time.sleep(2)
        cluster.restart(victim)
        work.join()
        done = time.monotonic()
        time.sleep(3)
    finally:
        load.stop()
    told = (
        f"seed {seed}: node {dead} replaced in {done - replacing:.1f} s although node {victim} was killed; "
        f"{len(load.acked)} acknowledged, {load.unknown} not; p99 before {load.p99(begun, replacing):.1f} ms, while "
        f"the new node caught up {load.p99(replacing, struck):.1f} ms, after the kill {load.p99(struck, done):.1f} ms, "
        f"then {load.p99(done, time.monotonic()):.1f} ms"
    )
    print(told)  # noqa: T201 - the figures
    assert failed == []
    assert sorted(node.id for node in cluster.nodes) == sorted({1, 2, 3, 4} - {dead})
    assert len(load.acked) > 500
    with connect(cluster.servers) as mq:
        found = Counter(bodies_in(mq, "T"))
    missing = [body for body in load.acked if not found[body]]
    assert missing == [], f"{len(missing)} acknowledged messages are gone"
    assert [body for body in load.acked if found[body] > 1] == []


def test_a_wrong_file_does_not_end_a_node_that_runs(own_cluster: LocalCluster) -> None:
    node = own_cluster.nodes[0]
    whole = node.config_path.read_text()
    node.config_path.write_text(whole.replace("data_dir", "data_dri", 1))
    with pytest.raises(ConfigError, match="data_dri"):
        own_cluster.restart(node.id)
    assert is_running(own_cluster.nodes[0]), "it goes on with what it has"
    assert own_cluster.nodes[0].pid == node.pid
    node.config_path.write_text(whole)
    assert own_cluster.restart(node.id) != node.pid
