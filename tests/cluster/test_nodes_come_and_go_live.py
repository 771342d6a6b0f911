"""Real nodes whose log is kept for a few seconds only, under load: one was away for longer than that and comes back by
snapshot, another with an empty disk takes the place of a dead one; meanwhile one more is killed (-9).

Every acknowledgement is written down when it arrives. At the end each node holds what lies above the beginning of its
queues, where it was acknowledged, and all nodes hold the same.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.client import Client, RaftMQError, SendResult, connect
from cluster.local import LocalCluster, prepare_data_dir
from cluster.local_config import plan_nodes, write_configs
from cluster.local_init import create_data_dirs
from cluster.local_layout import ClusterFile, NodeRecord, write_cluster
from cluster.local_members import LocalMembers
from cluster.local_process import free_base_port, log_tail

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "load"
QUEUES = 4
PATIENCE_S = 90.0
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
        self.took: list[tuple[float, float]] = []
        """(when it was sent, how long its answer took) of each acknowledged message, seconds."""
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
                number, begun = self.sent, time.monotonic()
                future = producer.send_soon(TOPIC, b"%d;" % number + bytes(1000), queue_id=number % QUEUES)
                future.add_done_callback(partial(self._on_done, number, begun))
                self.sent += 1
                time.sleep(0.001)

    def _on_done(self, number: int, begun: float, future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self.acked[number] = future.result()
            self.took.append((begun, time.monotonic() - begun))
        else:
            self.failures.append(error)  # type: ignore[arg-type]

    def p99_ms(self, since: float, until: float) -> float:
        """Of what was sent between the two moments."""
        took = sorted(took for begun, took in list(self.took) if since <= begun < until)
        return 1000 * took[int(0.99 * len(took))] if took else float("nan")

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


class Nodes:
    """A local cluster with these settings."""

    def __init__(self, data: Path) -> None:
        self.local = LocalCluster(data)
        prepare_data_dir(data)
        nodes = plan_nodes(data, 3, free_base_port(12))
        write_configs(nodes)
        for node in nodes:
            with node.config_path.open("a", encoding="utf-8") as file:
                file.write(SETTINGS)
        create_data_dirs([node.config_path for node in nodes])
        write_cluster(data, ClusterFile(nodes))
        self.local.up()

    def ask(self, node_id: int, path: str) -> Any:
        """A node's own answer, None if it does not give one (it may be about to restart in its process)."""
        view = next(node for node in self.local.view().nodes if node.record.id == node_id)
        if view.status is None:
            return None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{view.record.admin_port}{path}", timeout=10) as reply:
                return json.load(reply)
        except OSError:
            return None

    def followers(self) -> list[int]:
        leader = self.local.wait_leader()
        return [node.id for node in self.local.nodes if node.id != leader]

    def start_all(self) -> None:
        for view in self.local.view().nodes:
            if not view.running:
                self.local.restart(view.record.id)
        self.local.wait_ready(PATIENCE_S)

    def until(self, reached: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
            time.sleep(0.1)

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


def test_what_a_snapshot_costs_the_others(nodes: Nodes, load: Load) -> None:
    """Prints the p99 of the sends before and while a node comes back by snapshot (docs/performance.md)."""
    leader = nodes.local.wait_leader()
    away = nodes.followers()[0]
    nodes.local.kill(away)
    last = nodes.ask(leader, "/v1/status")["last_index"]
    begun = time.monotonic()
    nodes.until(lambda: nodes.ask(leader, "/v1/retention")["first_index"] > last + 1, "it was away for long enough")
    back = time.monotonic()
    nodes.local.restart(away)
    nodes.until(lambda: nodes.ask(away, "/v1/status"), "its process has started")
    up = time.monotonic()
    end = nodes.ask(leader, "/v1/status")["last_index"]
    nodes.until(
        lambda: (nodes.ask(away, "/v1/status") or {"applied_index": 0})["applied_index"] > end, "it has caught up"
    )
    done = time.monotonic()
    time.sleep(3)
    print(  # noqa: T201
        f"p99 of sends: two nodes {load.p99_ms(begun, back):.1f} ms, while the third's process starts "
        f"{load.p99_ms(back, up):.1f} ms ({up - back:.1f} s), while it catches up {load.p99_ms(up, done):.1f} ms "
        f"({done - up:.1f} s), three nodes {load.p99_ms(done, time.monotonic()):.1f} ms"
    )
    load.stop()
    nodes.settle()
    nodes.check(load)
    assert any("snapshot" in line for line in log_tail(nodes.local.nodes[away - 1], 2000)), "it came by snapshot"


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
