"""Reading the configuration again: what changes, what waits for a restart, and that a bad file changes nothing."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config import reload as module
from cluster.config.config import Config, ConfigError
from cluster.config.loading import load
from cluster.config.reload import RELOADABLE, differences, merged
from cluster.node.reloading import reload

BASE = '[node]\nid = 1\ndata_dir = "data"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "raftmq.toml"
    written.write_text(BASE)
    return written


class Service:
    """Has a part of the configuration, and is given another one."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def reload(self, part: Any) -> None:
        self.part = part


def node_of(path: Path) -> Any:
    config = load(path)
    node = SimpleNamespace(
        node_id=1,
        config=config,
        environment=SimpleNamespace(read_config=lambda: load(path)),
        links=Service(config.ha),
        retention=Service(config.retention),
        disk=Service(config.retention),
        repairs=SimpleNamespace(server=Service(config.repair.bytes_per_second)),
        secret=SimpleNamespace(state="none", reload=lambda: False),
    )
    node.reconfigure = partial(setattr, node, "config")
    return node


@pytest.fixture(autouse=True)
def keep_level() -> Any:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_what_may_change_changes_at_once_and_the_rest_waits(path: Path) -> None:
    node = node_of(path)
    path.write_text(
        BASE + "[ha]\nsend_heartbeat_interval_ms = 250\ncatch_up_bytes_per_second = 0\n"
        "[retention]\nhours = 5\n[repair]\nbytes_per_second = 2097152\n"
        '[log_output]\nlevel = "warning"\nformat = "json"\n[send]\ndeadline_ms = 9000\n'
        '[[listeners]]\nname = "broker"\nport = 1234\n'
    )
    view = reload(node)
    assert {(change.key, change.before, change.after) for change in view.applied} == {
        ("ha.send_heartbeat_interval_ms", "1000", "250"),
        ("ha.catch_up_bytes_per_second", "33554432", "0"),
        ("retention.hours", "72", "5"),
        ("repair.bytes_per_second", "33554432", "2097152"),
        ("log_output.level", '"info"', '"warning"'),
    }
    assert {change.key for change in view.needs_restart} == {
        "log_output.format",
        "send.deadline_ms",
        "listeners",
        "peers",
    }
    assert node.links.part.send_heartbeat_interval_ms == 250
    assert node.links.part.catch_up_bytes_per_second == 0
    assert node.retention.part.hours == node.disk.part.hours == 5
    assert node.repairs.server.part == 2 << 20
    assert logging.getLogger().level == logging.WARNING
    assert node.config.send.deadline_ms == 3000
    assert not node.config.listeners
    assert not reload(node).applied, "it is in force"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[ha]\nsend_heartbeat_interval = 250\n", "did you mean send_heartbeat_interval_ms"),
        ("[ha]\nsend_heartbeat_interval_ms = 15000\n", "ha.housekeeping_interval_ms 20000 is too small for twice"),
        ("[ha]\nsend_heartbeat_interval_ms = 9000\nclient_heartbeat_timeout_ms = 17999\n", "17999 is too small"),
        ("[ha\n", "not valid TOML"),
    ],
    ids=["unknown-key", "housekeeping", "timeout", "no-toml"],
)
def test_a_file_that_cannot_be_used_changes_nothing_and_says_why(
    path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_of(path)
    before = node.config
    path.write_text(BASE + text)
    with pytest.raises(ConfigError, match=said):
        reload(node)
    assert node.config is before
    assert node.links.part is before.ha
    assert "stays as it was" in caplog.text


def test_a_node_without_a_file_says_so(path: Path) -> None:
    node = node_of(path)
    node.environment.read_config = None
    with pytest.raises(ConfigError, match="no configuration to read again"):
        reload(node)


def test_every_reloadable_key_exists_and_is_documented(path: Path) -> None:
    config: Config = load(path)
    page = (Path(module.__file__).parents[2] / "docs" / "configuration.md").read_text()
    listed = page.split("## Changing it while a node runs")[1].split("\n## ")[0]
    for key in RELOADABLE:
        section, name = key.split(".")
        assert hasattr(getattr(config, section), name)
        assert f"`{key}`" in listed or f"`[{section}]`: every key" in listed
    assert merged(config, config) == config
    assert not differences(config, config)
