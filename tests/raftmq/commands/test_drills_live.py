"""What a person would not notice otherwise: a topic made by a typing error; a node killed beside another command."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from cluster.config.local_layout import locked
from raftmq.cli import cli, run
from raftmq.client import connect
from tests.support.live_nodes import LiveCluster

pytestmark = pytest.mark.live


def produce(cluster: LiveCluster, topic: str, *words: str) -> Result:
    done = CliRunner().invoke(cli, ["produce", topic, "--servers", cluster.servers, *words], input="tea\nmilk\n")
    assert done.exit_code == 0, done.output
    return done


def test_produce_says_that_it_created_the_topic_and_how_to_forbid_it(live_cluster: LiveCluster) -> None:
    name = f"orders{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(name, queues=1)
    assert "created" not in produce(live_cluster, name).stderr
    told = produce(live_cluster, f"{name}s").stderr
    assert f"the topic {name}s did not exist: its first message created it. Did you mean {name}?" in told
    assert "raftmq config set topics.auto_create false" in told
    assert "created" not in produce(live_cluster, f"{name}s").stderr, "now it exists"
    assert json.loads(produce(live_cluster, f"x{name}", "--json").stdout)["created"] is True
    assert json.loads(produce(live_cluster, f"x{name}", "--json").stdout)["created"] is False


def test_a_node_is_killed_beside_another_command_only_with_force(
    live_cluster: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = next(node for node in (1, 2, 3) if node != live_cluster.leader())
    words = ["kill", str(victim), "--data", str(live_cluster.data)]
    with locked(live_cluster.data):  # as an upgrade has it from beginning to end
        assert run(words) == 5
        assert f"type:    raftmq kill {victim} --force" in capsys.readouterr().err
        assert run([*words, "--force"]) == 0
    assert run(words) == 5, "it is gone"
    assert "is not running" in capsys.readouterr().err
    assert run(["restart", str(victim), "--data", str(live_cluster.data)]) == 0
