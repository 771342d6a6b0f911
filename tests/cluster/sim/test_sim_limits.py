"""Topic and message limits at their edges, by profile: what fits is stored and read back, one byte more is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.config.config import Config, dump
from cluster.config.loading import load
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster, codes, send_frame

PROFILES = {"rocketmq": (127, 4 << 20), "report-003": (256, 65_535)}
"""Profile -> longest topic name, largest body."""


def config_of(**limits: object) -> Config:
    keys = {f"limits.{name}": value for name, value in limits.items()}
    return load(None, None, {"node.id": 1, "node.data_dir": "unused", **keys})


@pytest.mark.parametrize("profile", PROFILES)
def test_c5_limits_at_their_edges(profile: str) -> None:
    topic_max, body_max = PROFILES[profile]
    with SimCluster(5, segment_size=16 << 20, **{"limits.profile": profile}) as sim:
        path = sim.leader().connect()
        cases = [
            ("t" * topic_max, b"x", 0),
            ("t" * (topic_max + 1), b"x", 29),
            ("T", bytes(body_max), 0),
            ("T", bytes(body_max + 1), 13),
        ]
        for opaque, (topic, body, code) in enumerate(cases, 1):
            path.ask(send_frame(opaque, topic, body))
            sim.loop.run_until(partial(path.replies.__contains__, opaque), 20)
            assert codes(path, opaque) == [code], path.replies
        sim.settle()
        for node in sim.running:
            assert node.bodies("t" * topic_max) == [b"x"]
            assert node.bodies("T") == [bytes(body_max)]
            assert set(node.state.topics) == {"t" * topic_max, "T"}


def test_a_key_goes_before_its_profile() -> None:
    limits = config_of(profile="report-003", message_bytes_max=1000).limits
    assert (limits.topic_length_max, limits.message_bytes_max) == (256, 1000)
    assert config_of(profile="report-003", topic_length_max=127).limits.message_bytes_max == 65_535
    assert config_of().limits == config_of(profile="rocketmq").limits


def test_a_profile_survives_being_written_and_read(tmp_path: Path) -> None:
    config = config_of(profile="report-003")
    (tmp_path / "raftmq.toml").write_text(dump(config))
    assert load(tmp_path / "raftmq.toml") == config


def test_c5_names_that_no_leader_may_allow_make_no_topic() -> None:
    """The state machine's own limit, the same on every node whatever its configuration."""
    with SimCluster(6, **cast(Any, {"limits.profile": "report-003"})) as sim:
        results = sim.propose(sim.leader(), CreateTopic({"name": "t" * 257}, True))
        sim.loop.run_until(lambda: results, 10)
        assert (results[0].results[0].ok, results[0].results[0].code) == (False, "invalid")
