"""Real nodes whose log is kept for a few seconds only, under load: one was away for longer than that and comes back by
snapshot, another with an empty disk takes the place of a dead one; meanwhile one more is killed (-9).

Every acknowledgement is written down when it arrives. At the end each node holds what lies above the beginning of its
queues, where it was acknowledged, and all nodes hold the same.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.config.local_layout import ClusterFile, NodeRecord, write_cluster
from cluster.config.node_files import plan_nodes, write_configs
from raftmq.client import Client, RaftMQError, SendResult, connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.cluster_files import prepare_data_dir
from raftmq.local.init import create_data_dirs
from raftmq.local.membership import LocalMembers
from raftmq.local.process import free_base_port, log_tail
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "load"
QUEUES = 4
PATIENCE_S = at_most(90)
COST_ROUNDS = 3
BULK_ROUNDS = 16
SETTINGS = """
[log]
segment_size_bytes = 524288

[limits]
message_bytes_max = 131072
batch_bytes_max = 131072

[retention]
ms = 4000
every_ms = 300
delete_when = ""
delete_gap_ms = 0
"""


class Load:
    """A producer that never stops, and what it was told. Bodies are 1 KiB and tell their number."""

    def __init__(self, servers: str) -> None:
        self.acked: dict[int, SendResult] = {}
        self.failures: list[RaftMQError] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._mq = connect(servers)
        self._mq.admin.create_topic(TOPIC, queues=QUEUES)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._mq.producer(timeout_s=PATIENCE_S, max_messages=64) as producer:
            while not self._stopping.is_set():
                number = self.sent
                future = producer.send_soon(TOPIC, b"%d;" % number + bytes(1000), queue_id=number % QUEUES)
                future.add_done_callback(partial(self._on_done, number))
                self.sent += 1
                time.sleep(0.001)

    def _on_done(self, number: int, future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self.acked[number] = future.result()
        else:
            self.failures.append(error)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()
        self._mq.close()


class Reader:
    """Reads every queue as it grows, and remembers what stood where, and what was trimmed before it came by."""

    def __init__(self, servers: str) -> None:
        self.found: dict[tuple[int, int], bytes] = {}
        self.skipped: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        self._at = dict.fromkeys(range(QUEUES), 0)
        self._stopping = threading.Event()
        self._mq = connect(servers)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for queue in range(QUEUES):
                with contextlib.suppress(RaftMQError):  # nobody leads; it asks again
                    self._read(queue)
            time.sleep(0.02)

    def _read(self, queue: int) -> None:
        pulled = self._mq.pull(TOPIC, queue, self._at[queue])
        for message in pulled.messages:
            place = (queue, message.queue_offset)
            known = self.found.setdefault(place, message.body)
            if known != message.body:
                self.wrong.append(f"{place} held {known[:12]!r}, now {message.body[:12]!r}")
        begin = pulled.messages[0].queue_offset if pulled.messages else pulled.next_offset
        self.skipped |= {(queue, offset) for offset in range(self._at[queue], begin)}
        self._at[queue] = max(self._at[queue], pulled.next_offset)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._mq.close()

    def check(self, load: Load) -> None:
        """Whatever was acknowledged stood where it was acknowledged, for as long as it was not trimmed."""
        assert not self.wrong
        places = {(result.queue_id, result.queue_offset): number for number, result in load.acked.items()}
        assert len(places) == len(load.acked), "two acknowledged messages at one place"
        lost = places.keys() - self.found.keys() - self.skipped
        assert not lost, sorted(lost)[:10]
        for place in places.keys() & self.found.keys():
            assert self.found[place].startswith(b"%d;" % places[place]), place
        assert len(places.keys() & self.found.keys()) > len(places) // 2, len(self.skipped)


BY_SIZE = """
[log]
segment_size_bytes = 16777216

[retention]
hours = 0
bytes_max = 201326592
every_ms = 300
delete_when = ""
delete_gap_ms = 0
"""


def _told(node: NodeRecord, path: str) -> Any:
    """A node's own answer, None if it does not give one (it may be about to restart in its process)."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}{path}", timeout=at_most(10)) as reply:
            return json.load(reply)
    except OSError:
        return None


class Nodes:
    """A local cluster with these settings."""

    def __init__(self, data: Path, settings: str = SETTINGS) -> None:
        self.local = LocalCluster(data)
        prepare_data_dir(data)
        nodes = plan_nodes(data, 3, free_base_port(12))
        write_configs(nodes)
        for node in nodes:
            with node.config_path.open("a", encoding="utf-8") as file:
                file.write(settings)
        create_data_dirs([node.config_path for node in nodes])
        write_cluster(data, ClusterFile(nodes))
        self.local.up()

    def ask(self, node_id: int, path: str) -> Any:
        """A running node's own answer, None if it does not give one."""
        view = next(node for node in self.local.view().nodes if node.record.id == node_id)
        return None if view.status is None else _told(view.record, path)

    def followers(self) -> list[int]:
        leader = self.local.wait_leader()
        return [node.id for node in self.local.nodes if node.id != leader]

    def start_all(self) -> None:
        for view in self.local.view().nodes:
            if not view.running:
                self.local.restart(view.record.id)
        self.local.wait_ready(PATIENCE_S)

    def until(self, reached: Callable[[], object], what: str) -> None:
        wait(reached, what, patience_s=PATIENCE_S, every_s=0.1)

    def end(self, load: Load, reader: Reader) -> None:
        """The load ends, everybody catches up, and everything is compared."""
        load.stop()
        self.settle()
        self.check(load)
        reader.check(load)

    def settle(self) -> None:
        """Waits until all nodes have applied the same, and have the log back that others have."""

        def same() -> bool:
            views = [self.ask(node.id, "/v1/retention") for node in self.local.nodes]
            ends = {(view["end_position"], view["trim_position"]) for view in views if view}
            applied = {view["applied_index"] for view in views if view}
            begin = all(view and view["first_position"] <= view["trim_position"] for view in views)
            return begin and len(ends) == len(applied) == 1

        self.until(same, "all nodes hold the same")

    def check(self, load: Load) -> None:
        """Nothing that was acknowledged is lost on any node, and nodes differ in nothing."""
        wanted = {(result.queue_id, result.queue_offset): number for number, result in load.acked.items()}
        assert len(wanted) == len(load.acked), "two acknowledged messages at one place"
        with connect(self.local.servers) as mq:
            for node in self.local.nodes:
                for queue in range(QUEUES):
                    found, last = self._read(mq, node, queue)
                    first = self._queue(node.id, queue)["min_offset"]  # it moves on meanwhile
                    assert found.keys() >= set(range(first, last)), f"node {node.id}, queue {queue}"
                    acked = {offset: told for (number, offset), told in wanted.items() if number == queue}
                    assert max(acked) < last, f"node {node.id} lost the end of queue {queue}"
                    wrong = [at for at in found if at in acked and not found[at].startswith(b"%d;" % acked[at])]
                    assert not wrong, f"node {node.id}, queue {queue}: {wrong}"

    def _queue(self, node_id: int, queue: int) -> Any:
        return self.ask(node_id, f"/v1/topics/{TOPIC}")["queues"][queue]

    def _read(self, mq: Client, node: NodeRecord, queue: int) -> tuple[dict[int, bytes], int]:
        """Offset -> body of what the node itself hands out, and where its queue ends."""
        found: dict[int, bytes] = {}
        view = self._queue(node.id, queue)
        at, last = view["min_offset"], view["max_offset"]
        while at < last:
            pulled = mq.pull(TOPIC, queue, at, node=f"127.0.0.1:{node.broker_port}")
            found |= {message.queue_offset: message.body for message in pulled.messages}
            at = pulled.next_offset
        return found, last


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "cluster")
    try:
        yield made
    except BaseException:
        print(*(line for node in made.local.nodes for line in log_tail(node, 8)), sep="\n")  # noqa: T201
        raise
    finally:
        made.local.down()


@pytest.fixture
def load(nodes: Nodes) -> Iterator[Load]:
    made = Load(nodes.local.servers)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def reader(nodes: Nodes, load: Load) -> Iterator[Reader]:
    made = Reader(nodes.local.servers)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("killed", ["leader", "follower"])
def test_a_node_that_was_away_for_longer_than_retention_comes_back(
    nodes: Nodes, load: Load, reader: Reader, killed: str
) -> None:
    leader = nodes.local.wait_leader()
    away, other = nodes.followers()
    nodes.local.kill(away)
    last = nodes.ask(leader, "/v1/status")["last_index"]
    nodes.until(
        lambda: (nodes.ask(leader, "/v1/retention") or {"first_index": 0})["first_index"] > last + 1,
        "the leader's files begin above what the node holds",
    )
    nodes.local.restart(away)
    victim = leader if killed == "leader" else other
    nodes.local.kill(victim)
    nodes.until(lambda: nodes.local.view().writes_open, "two of three take writes again")
    told = len(load.acked)
    nodes.until(lambda: len(load.acked) > told + 100, "and acknowledge them")
    nodes.start_all()
    nodes.end(load, reader)
    assert any("snapshot" in line for line in log_tail(nodes.local.nodes[away - 1], 2000)), "it came by snapshot"


def test_what_a_snapshot_costs_the_others(tmp_path: Path) -> None:
    """Prints the p99 of the sends before and while a node comes back by snapshot, to a log of 192 MiB, over several
    times (docs/performance.md). Sender and nodes are processes of their own, and nobody else asks them for much."""
    nodes = Nodes(tmp_path / "cluster", BY_SIZE)
    try:
        with connect(nodes.local.servers) as mq:
            mq.admin.create_topic(TOPIC, queues=QUEUES)
        target = tmp_path / "took.json"
        script = Path(__file__).with_name("steady_load.py")
        command = [sys.executable, str(script), nodes.local.servers, TOPIC, str(target)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as sender:
            time.sleep(3)
            returns = [_return_by_snapshot(nodes) for _ in range(COST_ROUNDS)]
        assert sender.returncode == 0
        _print_costs(returns, json.loads(target.read_text()))
        nodes.settle()
    finally:
        nodes.local.down()


class Return(NamedTuple):
    """Moments of a node's return, `time.monotonic`."""

    healthy: float
    """Four seconds before it was killed."""
    away: float
    """The moment from which the cluster was at rest without it."""
    started: float
    """Its process was."""
    answers: float
    caught_up: float
    """It has applied what was there when it started."""
    whole: float
    """Its log reaches as far back as the others'."""


def _return_by_snapshot(nodes: Nodes) -> Return:
    """Brings a follower back after more was written than is kept."""
    leader = nodes.local.wait_leader()
    node = nodes.local.nodes[nodes.followers()[0] - 1]
    healthy = time.monotonic()
    time.sleep(4)
    nodes.local.kill(node.id)
    last = nodes.ask(leader, "/v1/status")["last_index"]
    with connect(nodes.local.servers) as mq, mq.producer(timeout_s=PATIENCE_S) as producer:
        for _ in range(BULK_ROUNDS):
            futures = [producer.send_soon(TOPIC, bytes(4096), queue_id=i % QUEUES) for i in range(4096)]
            for future in futures:
                future.result()
    nodes.until(lambda: nodes.ask(leader, "/v1/retention")["first_index"] > last + 1, "it was away for long enough")
    end = nodes.ask(leader, "/v1/status")["last_index"]
    log = Path(node.log)
    known = log.stat().st_size
    time.sleep(2)
    away = time.monotonic()
    time.sleep(4)
    started = time.monotonic()
    nodes.local.start(node.id)
    nodes.until(lambda: _told(node, "/v1/status"), "its process has started")
    answers = time.monotonic()
    nodes.until(lambda: (_told(node, "/v1/status") or {"applied_index": 0})["applied_index"] > end, "it has caught up")
    caught_up = time.monotonic()
    nodes.until(lambda: _has_its_log(_told(node, "/v1/retention")), "it has its log back")
    whole = time.monotonic()
    assert b"snapshot" in log.read_bytes()[known:], "it came by snapshot"
    time.sleep(5)
    return Return(healthy, away, started, answers, caught_up, whole)


def _has_its_log(told: Any) -> bool:
    return bool(told) and told["first_position"] <= told["trim_position"]


def _print_costs(returns: list[Return], took: list[tuple[float, float]]) -> None:
    spans = {
        "three nodes, before": [(one.healthy, one.healthy + 4) for one in returns],
        "two nodes": [(one.away, one.started) for one in returns],
        "the third's process starts": [(one.started, one.answers) for one in returns],
        "it takes the snapshot and catches up": [(one.answers, one.caught_up) for one in returns],
        "it fetches its older log": [(one.caught_up, one.whole) for one in returns],
        "all of its return": [(one.started, one.whole) for one in returns],
        "three nodes, after": [(one.whole + 0.5, one.whole + 4.5) for one in returns],
    }
    print()  # noqa: T201
    for name, those in spans.items():
        found = sorted(seconds for begun, seconds in took if any(since <= begun < until for since, until in those))
        mean_s = sum(until - since for since, until in those) / len(those)
        print(  # noqa: T201
            f"{name:38} {mean_s:4.1f} s each, {len(found):6} sends: p50 {1000 * found[len(found) // 2]:5.1f} ms, "
            f"p99 {1000 * found[int(0.99 * len(found))]:5.1f} ms"
        )


def test_an_empty_disk_takes_the_place_of_a_dead_node(nodes: Nodes, load: Load, reader: Reader) -> None:
    leader = nodes.local.wait_leader()
    dead, other = nodes.followers()
    nodes.until(
        lambda: nodes.ask(leader, "/v1/retention")["first_index"] > 1, "the log is trimmed: nobody has all of it"
    )
    nodes.local.kill(dead)
    failed: list[BaseException] = []

    def replace() -> None:
        try:
            LocalMembers(nodes.local).replace(dead)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failed.append(error)

    replacing = threading.Thread(target=replace)
    replacing.start()
    nodes.until(lambda: len(nodes.local.nodes) == 4 or failed, "the new node is made")
    time.sleep(0.5)
    nodes.local.aim(other)()
    nodes.until(lambda: not next(v for v in nodes.local.view().nodes if v.record.id == other).running, "it is dead")
    nodes.local.restart(other)
    replacing.join(PATIENCE_S)
    assert not failed, failed
    assert sorted(node.id for node in nodes.local.nodes) == sorted({1, 2, 3, 4} - {dead})
    nodes.start_all()
    nodes.end(load, reader)
