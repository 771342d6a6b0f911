"""Each key of the configuration in words."""

from __future__ import annotations

import pytest

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.explain import Explained, explain, keys
from cluster.config.reload import RELOADABLE
from cluster.config.source import ConfigError
from tests.support.rows import each_row


@each_row("key", keys())
def test_every_key_is_explained(key: str) -> None:
    one = explain(key)
    ports = {"peers.port", "listeners.port", "listeners.bind", "peer.bind", "admin.bind", "admin.port", "peer.port"}
    assert one.meaning or key in ports
    assert "](" not in one.meaning
    assert one.range
    assert one.reload == (key in CLUSTER_KEYS or key in RELOADABLE)


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


@each_row(
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
