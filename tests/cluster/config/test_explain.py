"""Each key of the configuration in words."""

from __future__ import annotations

import pytest

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.config import Config
from cluster.config.explain import Explained, explain, keys
from cluster.config.ranges import ranges_of
from cluster.config.reload import RELOADABLE
from cluster.config.source import ConfigError

NO_UNIT = {
    "node.id": "a number that names a node",
    "peer.port": "a port",
    "peer.heartbeat_port": "a port",
    "admin.port": "a port",
    "limits.topic_length_max": "bytes of a name",
    "transaction.check_max": "a count, as all below",
    "limits.batches_inflight_max": "",
    "limits.long_polls_max": "",
    "limits.connection_long_polls_max": "",
    "limits.connections_max": "",
    "limits.topics_max": "",
    "limits.queues_max": "",
    "limits.groups_max": "",
    "topics.default_queues": "",
    "backup.keep": "",
    "retention.delete_batch_files": "",
    "log_output.files": "",
    "health.crash_loop_starts": "",
}


@pytest.mark.parametrize("key", keys())
def test_every_key_is_explained(key: str) -> None:
    one = explain(key)
    ports = {"peers.port", "listeners.port", "listeners.bind", "peer.bind", "admin.bind", "admin.port", "peer.port"}
    assert one.meaning or key in ports
    assert "](" not in one.meaning
    assert one.range
    assert one.reload == (key in CLUSTER_KEYS or key in RELOADABLE)


def test_every_number_has_a_unit_or_is_a_count() -> None:
    without = {key for key in ranges_of(Config) if not explain(key).unit}
    assert without == set(NO_UNIT)


def test_a_key_of_the_cluster_whose_values_may_be_dangerous() -> None:
    assert explain("offsets.flush_ms") == Explained(
        key="offsets.flush_ms",
        meaning="A oneway offset commit is in the log at most this long after it arrived",
        unit="milliseconds",
        default="100",
        range="a whole number from 1 to 10000",
        usual="1 to 1000",
        effect="a change of the leader forgets what consumers committed",
        change="raftmq config set offsets.flush_ms VALUE: on every node at once, without a restart",
        reload=True,
    )


def test_keys_of_a_file() -> None:
    assert explain("raft.tick_ms").change == "in the raftmq.toml of each node, then: restart the node"
    assert explain("log_output.level").change == "in the raftmq.toml of each node, then: raftmq reload (no restart)"
    assert explain("peers.port").default == "required"
    assert explain("tls.mode").range == 'one of "disabled", "permissive", "enforcing"'


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("raft.tick_mss", "raftmq config explain raft.tick_ms"),
        ("rft.tick_ms", "raftmq config explain raft.tick_ms"),
        ("tick_ms", "raftmq config explain raft.tick_ms"),
        ("raft", "raftmq config explain raft.tick_ms"),
        ("qqqq", "raftmq config explain"),
        ("", "raftmq config explain"),
    ],
)
def test_a_key_that_does_not_exist(key: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(key)
    assert caught.value.fix == fix
