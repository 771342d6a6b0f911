"""Every number of the configuration, at both ends of its range, on three real nodes: the cluster goes on serving, its
memory stays bounded, and one step beyond the range is refused. Prints a table."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import tomlkit

from cluster.config.cluster_keys import CLUSTER_KEYS, cluster_values
from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.ranges import Range, hold, ranges_of
from cluster.config.source import ConfigError
from raftmq.client import Client, connect
from raftmq.client.errors import RaftMQError
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import PATIENCE_S

pytestmark = [pytest.mark.live, pytest.mark.slow]

RANGES = ranges_of(Config)
HOSTS = [key for key in RANGES if key not in CLUSTER_KEYS]
NOT_WALKED = {
    "node.id": "the identity of a directory",
    "peer.port": "an address",
    "peer.heartbeat_port": "an address",
    "admin.port": "an address",
    "log.segment_size_bytes": "fixed when a directory is made; two segments are filled with zeroes",
    "raft.tick_ms": "an election takes a multiple of it: up to hours, by intention",
    "raft.heartbeat_ticks": "must stay below election_ticks",
    "raft.election_ticks": "the same",
}
"""Keys of a host, each with the reason why no cluster is started at the ends of its range."""
WHILE_S = 0.4
"""Seconds that each value is in force at least."""
GROWTH_MAX = 256 << 20
"""Bytes by which a node may have grown at any step."""


class Row(NamedTuple):
    """The outcome of one value."""

    key: str
    value: object
    outcome: str
    rss_mib: int


class Walk:
    """Three nodes, a client, and the table."""

    def __init__(self, cluster: LocalCluster, mq: Client) -> None:
        self.cluster, self.mq, self.rows = cluster, mq, list[Row]()
        self.rss_before = self.rss()
        self.defaults: Mapping[str, object] = cluster_values(load(cluster.nodes[0].config_path))

    def rss(self) -> int:
        """Returns the resident memory of the largest node, bytes."""
        pids = [node.pid for node in self.cluster.nodes if node.pid is not None]
        return max(psutil.Process(pid).memory_info().rss for pid in pids)

    def put(self, values: Mapping[str, object]) -> str:
        """Changes keys of the cluster; why that was refused, or ""."""
        body = json.dumps({"values": dict(values), "force": True, "author": "walk"}).encode()
        url = f"http://127.0.0.1:{self.cluster.nodes[0].admin_port}/v1/config"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=at_most(20)):
                    return ""
            except urllib.error.HTTPError as error:
                told = json.loads(error.read())["error"]
                if told["code"] in ("bad_field", "refused", "bad_command"):
                    return str(told["message"])
                assert time.monotonic() < deadline, told

    def serves(self, what: str) -> str:
        """Sends messages and reads them back for a while; how many. Fails if that is not possible."""
        began, served, last = time.monotonic(), 0, "nothing is read"
        while not served or time.monotonic() < began + WHILE_S:
            assert time.monotonic() < began + PATIENCE_S, f"with {what} nothing can be sent and read: {last}"
            try:
                sent = self.mq.send("T", what.encode())
                pulled = self.mq.pull("T", sent.queue_id, sent.queue_offset)
            except RaftMQError as error:
                last = str(error)
                continue
            served += bool(pulled.messages) and pulled.messages[0].body == what.encode()
        return f"{served} messages"

    def note(self, key: str, value: object, outcome: str) -> None:
        """One row; fails if a node has grown too much."""
        rss = self.rss()
        self.rows.append(Row(key, value, outcome, rss >> 20))
        assert rss < self.rss_before + GROWTH_MAX, (key, value, rss, self.rss_before)

    def show(self) -> None:
        """Prints the table."""
        for row in self.rows:
            print(f"{row.key:45} {row.value!s:>20} {row.rss_mib:5} MiB  {row.outcome}")  # noqa: T201


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    cluster = LocalCluster(tmp_path / "data")
    with small_segments():
        cluster.up(3, free_base_port(12))
    try:
        with connect(cluster.servers, timeout_s=at_most(20)) as mq:
            mq.admin.create_topic("T", queues=2)
            mq.send("T", b"first")
            made = Walk(cluster, mq)
            yield made
            made.show()
    finally:
        cluster.down()


def ends(known: Range) -> list[int]:
    return sorted({known.low, known.high})


def beyond(known: Range) -> list[int]:
    below = [] if known.zero and known.low == 1 else [known.low - 1]
    return [*below, known.high + 1]


SEGMENT_HALF = 2 << 20
"""A message and a batch must fit into one segment file."""
TOGETHER: list[dict[str, int]] = [
    *(
        {key: ends(RANGES[key])[end] for key in CLUSTER_KEYS if key in RANGES and key.startswith("limits.")}
        | ({"limits.message_bytes_max": SEGMENT_HALF, "limits.batch_bytes_max": SEGMENT_HALF} if end else {})
        for end in (0, -1)
    ),
    *(
        {f"send.{name}": ends(RANGES[f"send.{name}"])[end] for name in ("deadline_ms", "leader_wait_ms")}
        for end in (0, -1)
    ),
    {"retention.disk_max_used_percent": 1, "retention.disk_force_clean_percent": 1},
    {f"retention.disk_{name}_percent": 100 for name in ("max_used", "force_clean", "refuse_writes")},
]
"""Keys that limit each other: those that are refused alone are at the ends of their ranges here."""
STOPS = {
    ("retention.disk_refuse_writes_percent", 1),
    ("limits.batch_bytes_max", 24 << 20),
    ("limits.message_bytes_max", 31 << 20),
}
"""No other key makes these possible here: the disk is fuller than that, and the segments are small."""


def test_every_key_of_the_cluster_at_both_ends_of_its_range(walk: Walk) -> None:
    alone: set[tuple[str, object]] = set()
    for key in (key for key in RANGES if key in CLUSTER_KEYS):
        for value in beyond(RANGES[key]):
            assert walk.put({key: value}), f"{key} = {value} is taken, and beyond {RANGES[key]}"
            walk.note(key, value, "refused")
        for value in ends(RANGES[key]):
            why = walk.put({key: value})
            if why:
                alone.add((key, value))
            walk.note(key, value, f"refused alone: {why}" if why else walk.serves(f"{key} = {value}"))
            assert walk.put({key: walk.defaults[key]}) == ""
    for values in TOGETHER:
        assert walk.put(values) == ""
        walk.note(", ".join(values)[:45], "together", walk.serves("keys that limit each other"))
        assert walk.put({key: walk.defaults[key] for key in values}) == ""
    seen = {each for values in TOGETHER for each in values.items()}
    assert alone <= seen | STOPS, "each value was in force once"
    walk.serves("the defaults")


@pytest.mark.parametrize("end", [0, -1], ids=["lowest", "highest"])
def test_every_key_of_a_host_at_that_end_of_its_range(walk: Walk, end: int) -> None:
    """All at once, written to each node's file; the nodes are restarted one after the other."""
    assert set(NOT_WALKED) <= set(HOSTS)
    values = {key: ends(RANGES[key])[end] for key in HOSTS if key not in NOT_WALKED}
    for node in walk.cluster.nodes:
        node.config_path.write_text(with_keys(node.config_path.read_text(), values))
        walk.cluster.restart(node.id)
        walk.note(f"node {node.id}", "all of them", walk.serves(f"node {node.id} at the end of every range"))
    for key, value in values.items():
        walk.note(key, value, "with the others")
    for key in values:
        for wrong in beyond(RANGES[key]):
            path = walk.cluster.nodes[0].home / "beyond.toml"
            path.write_text(with_keys(walk.cluster.nodes[0].config_path.read_text(), {key: wrong}))
            assert counts_as(path, key) != wrong, f"{key} = {wrong} counts, and is beyond {RANGES[key]}"


def with_keys(text: str, values: Mapping[str, object]) -> str:
    """The file with these keys, in place of what it says of them."""
    document: Any = tomlkit.parse(text)
    for key, value in values.items():
        section, name = key.split(".")
        document.setdefault(section, tomlkit.table())[name] = value
    return tomlkit.dumps(document)


def counts_as(path: Path, key: str) -> int | None:
    """Returns the value that a node takes for the key if it starts with this file; None if it refuses the file."""
    try:
        return int(attrgetter(key)(hold(load(path))))
    except ConfigError:
        return None
