"""The cluster's keys: which they are, how values become theirs, and what cannot be."""

from __future__ import annotations

import re
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from cluster.config.cluster_keys import CLUSTER_KEYS, USUAL, changed, cluster_values, in_force
from cluster.config.config import Config, ConfigError
from cluster.config.loading import load, written_keys
from cluster.config.ranges import dangers
from tests.support.rows import each_row


@pytest.fixture
def own() -> Config:
    return load(None, {}, {"node.id": 1, "node.data_dir": "/data", "retention.hours": 5})


def test_values_lie_over_the_nodes_own_and_leave_the_hosts_keys_alone(own: Config) -> None:
    config = in_force(own, {"retention.hours": 48, "topics.auto_create": False})
    assert (config.retention.hours, config.topics.auto_create) == (48, False)
    assert config.node is own.node
    assert in_force(own, {}) == own
    assert in_force(own, cluster_values(own)) == own


def test_what_a_newer_release_wrote_is_left_out_and_told(own: Config, caplog: pytest.LogCaptureFixture) -> None:
    config = in_force(own, {"retention.hours": "a while", "retention.moons": 2, "send.deadline_ms": 4000})
    assert (config.retention.hours, config.send.deadline_ms) == (5, 4000)
    assert "cannot use the cluster's retention.hours" in caplog.text


def test_texts_of_a_command_become_values(own: Config) -> None:
    given = {"retention.hours": "48", "topics.auto_create": "false", "timer.delay_levels": "1s 2s"}
    config, values = changed(own, given)
    assert values == {"retention.hours": 48, "topics.auto_create": False, "timer.delay_levels": "1s 2s"}
    assert config.topics.auto_create is False


@each_row(
    ("values", "said"),
    [
        ({"retention.hous": 1}, "raftmq config show retention.hours"),
        ({"raft.tick_ms": 20}, "raft.tick_ms belongs to one host"),
        ({"limits.profile": "report-003"}, "limits.profile belongs to one host"),
        ({"node": 1}, "node is not a key of the cluster"),
        ({"retention.hours": "soon"}, "a whole number from 0 to 876000"),
        ({"retention.hours": 1.5}, "retention.hours cannot be 1.5"),
        ({"retention.hours": True}, "retention.hours cannot be true"),
        ({"retention.hours": None}, "retention.hours cannot be"),
        ({"limits.connections_max": 0}, "a whole number from 16 to 1000000"),
        ({"limits.frame_bytes_max": 1 << 20}, "frame_bytes_max 1048576 is too small for limits.message_bytes_max"),
        ({"limits.message_bytes_max": 30 << 20}, "too small for limits.message_bytes_max"),
        ({"limits.batch_bytes_max": 64 << 20}, "with 1024 to 25165824"),
        ({"send.deadline_ms": 100}, "too small for send.leader_wait_ms"),
        ({"timer.delay_levels": "1x"}, "are not delays"),
        ({"retention.delete_when": "25"}, "delete_when"),
        ({"retention.disk_force_clean_percent": 5}, "is below"),
        ({"modes.flush_disk_type": "MAYBE"}, "one of"),
        ({"modes.transient_store_pool_enable": True}, "needs ASYNC_FLUSH"),
    ],
)
def test_what_cannot_be_is_said_without_the_place_in_a_file(own: Config, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        changed(own, values)
    assert not str(error.value).startswith("the change")


def asks(before: Config, after: Config) -> bool:
    """As `raftmq config set` does, which the tests of the HTTP API check."""
    return bool(dangers(after).keys() - dangers(before).keys()) or after.retention.hours < before.retention.hours


@each_row(
    "values",
    [
        {"send.deadline_ms": 5},
        {"limits.connections_max": 1},
        {"limits.connections_max": 1 << 40},
        {"transaction.timeout_ms": 1},
        {"tier.bytes_per_second": 1},
        {"limits.frame_bytes_max": 1 << 20},
        {"limits.message_bytes_max": 30 << 20},
        {"retention.disk_force_clean_percent": 5},
        {"retention.disk_max_used_percent": 97},
        {"send.deadline_ms": 100},
    ],
)
def test_the_advised_command_works_as_it_is_typed_and_asks_nothing(own: Config, values: dict[str, int]) -> None:
    """`send.deadline_ms` may be 100, but not beside the usual `send.leader_wait_ms`."""
    with pytest.raises(ConfigError) as error:
        changed(own, values, asks)
    words = shlex.split(error.value.fix)
    assert words[:3] == ["raftmq", "config", "set"]
    fresh, converted = changed(own, dict(zip(words[3::2], words[4::2], strict=True)))
    assert set(values) <= set(converted)
    assert not asks(own, fresh)


def test_what_would_ask_is_only_shown(own: Config) -> None:
    with pytest.raises(ConfigError) as error:
        changed(own, {"retention.disk_force_clean_percent": 5}, lambda before, after: True)
    assert error.value.fix.startswith("raftmq config set retention.disk_force_clean_percent 75 --dry-run    (")


@pytest.mark.parametrize(
    "values", [{"retention.hours": "soon"}, {"timer.delay_levels": 7.5}, {"retention.delete_when": "25"}]
)
def test_what_a_key_takes_is_explained(own: Config, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        changed(own, values)
    assert error.value.fix.partition("    ")[0] == f"raftmq config explain {next(iter(values))}"


def test_keys_that_restrict_each_other_change_together(own: Config) -> None:
    config, _ = changed(own, {"send.deadline_ms": 500, "send.leader_wait_ms": 400})
    assert config.send.deadline_ms == 500


def test_every_key_has_a_default_of_its_type(own: Config) -> None:
    assert set(USUAL) == set(CLUSTER_KEYS)
    assert {key: attrgetter(key)(own) for key in CLUSTER_KEYS if key != "retention.hours"} == {
        key: value for key, value in USUAL.items() if key != "retention.hours"
    }


def test_keys_of_a_file_and_of_variables_are_known(tmp_path: Path) -> None:
    path = tmp_path / "raftmq.toml"
    path.write_text("[node]\nid = 1\n[retention]\nhours = 72\n[[peers]]\nid = 1\nport = 5\n")
    found = written_keys(path, {"RAFTMQ_SEND__DEADLINE_MS": "5", "RAFTMQ_DATA": "x", "RAFTMQ_PEERS__0__PORT": "6"})
    assert found == {"node.id", "retention.hours", "send.deadline_ms"}
