"""Reading the configuration again: what changes, what waits for a restart, and that a bad file changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.config import Config, ConfigError
from cluster.config.loading import load, written_keys
from cluster.config.reload import RELOADABLE, KeyChange, differences, merged
from cluster.members.config_activation import LayeredConfig, Reloading
from cluster.runtime.environment import Environment
from statemachine.cluster_wide.settings import Setting

BASE = '[node]\nid = 1\ndata_dir = "data"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "raftmq.toml"
    written.write_text(BASE)
    return written


class Node:
    """A node's configuration, and what its parts were given last."""

    def __init__(self, path: Path, **cluster: Any) -> None:
        config = load(path)
        environment = Environment(read_config=lambda: load(path), written_keys=lambda: written_keys(path, {}))
        rows = {key.replace("__", "."): Setting(value, 1) for key, value in cluster.items()}
        settings: Any = SimpleNamespace(version=len(cluster), by_key=rows)
        layers = LayeredConfig(config, settings, environment)
        self.used: list[str] = []
        self.wrong = ""
        """The one of `secret` and `tls` whose files cannot be used."""
        secret: Any = SimpleNamespace(state="none", read=lambda: self._read("secret"), use=self._use)
        tls: Any = SimpleNamespace(view="none", read=lambda: self._read("tls"), use=self._use)
        self.reloading = Reloading(layers.in_force(), layers, environment, secret, tls)
        self.reloading.changed.add(self._change)
        self.given: Config | None = None

    def _read(self, what: str) -> str:
        if what == self.wrong:
            raise ConfigError(f"[{what}]: its files cannot be used", "as the test wants", "none")
        return what

    def _use(self, what: str) -> bool:
        self.used.append(what)
        return False

    def _change(self, config: Config) -> None:
        self.given = config

    @property
    def config(self) -> Config:
        return self.reloading.config


@pytest.fixture(autouse=True)
def keep_level() -> Any:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


CHANGED = (
    "[ha]\nsend_heartbeat_interval_ms = 250\ncatch_up_bytes_per_second = 0\n"
    "[retention]\nhours = 5\ndelete_gap_ms = 7\n[repair]\nbytes_per_second = 2097152\n"
    '[log_output]\nlevel = "warning"\nformat = "json"\n[raft]\ntick_ms = 20\n'
    '[[listeners]]\nname = "broker"\nport = 1234\n'
)
OF_THE_HOST = {
    ("ha.send_heartbeat_interval_ms", "1000", "250"),
    ("ha.catch_up_bytes_per_second", "33554432", "0"),
    ("retention.delete_gap_ms", "100", "7"),
    ("repair.bytes_per_second", "33554432", "2097152"),
    ("log_output.level", '"info"', '"warning"'),
}


def triples(changes: list[KeyChange]) -> set[tuple[str, str, str]]:
    return {(change.key, change.before, change.after) for change in changes}


def test_what_may_change_changes_at_once_and_the_rest_waits(path: Path) -> None:
    node = Node(path)
    path.write_text(BASE + CHANGED)
    view = node.reloading.reload()
    assert triples(view.applied) == OF_THE_HOST | {("retention.hours", "72", "5")}
    assert {change.key for change in view.needs_restart} == {"log_output.format", "raft.tick_ms", "listeners", "peers"}
    assert view.overruled == []
    assert node.given is node.config
    assert node.config.ha.send_heartbeat_interval_ms == 250
    assert node.config.ha.catch_up_bytes_per_second == 0
    assert node.config.retention.hours == 5
    assert node.config.repair.bytes_per_second == 2 << 20
    assert logging.getLogger().level == logging.WARNING
    assert node.config.raft.tick_ms == 50
    assert not node.config.listeners
    assert not node.reloading.reload().applied, "it is in force"


def test_what_the_cluster_has_a_value_for_is_not_taken_from_a_file(path: Path) -> None:
    node = Node(path, retention__hours=48, send__deadline_ms=4000)
    assert (node.config.retention.hours, node.config.send.deadline_ms) == (48, 4000)
    path.write_text(BASE + CHANGED)
    view = node.reloading.reload()
    assert triples(view.applied) == OF_THE_HOST
    assert triples(view.overruled) == {("retention.hours", "48", "5")}, "nobody wrote send.deadline_ms"
    assert node.config.retention.hours == 48
    assert node.config.send.deadline_ms == 4000


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
    node = Node(path)
    before = node.config
    path.write_text(BASE + text)
    with pytest.raises(ConfigError, match=said):
        node.reloading.reload()
    assert node.config is before
    assert node.given is None
    assert "stays as it was" in caplog.text


@pytest.mark.parametrize("wrong", ["secret", "tls"])
def test_a_secret_or_certificate_that_cannot_be_used_changes_nothing_else(
    path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(path)
    before, own = node.config, node.reloading.layers.own
    node.wrong = wrong
    path.write_text(BASE + CHANGED)
    with pytest.raises(ConfigError, match=f"{wrong}.*cannot be used"):
        node.reloading.reload()
    assert (node.config is before, node.reloading.layers.own is own, node.given, node.used) == (True, True, None, [])
    assert "stays as it was" in caplog.text
    node.wrong = ""
    assert triples(node.reloading.reload().applied) >= OF_THE_HOST
    assert node.used == ["secret", "tls"]


def test_a_configuration_that_a_part_refuses_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(path)
    before, own = node.config, node.reloading.layers.own

    def refuses(config: Config) -> None:
        raise ConfigError("[ha]: not now", "as the test wants", "none")

    node.reloading.changed.add(refuses)
    path.write_text(BASE + CHANGED)
    with pytest.raises(ConfigError, match="not now"):
        node.reloading.reload()
    assert (node.config is before, node.reloading.layers.own is own, node.used) == (True, True, [])
    assert node.reloading.layers.in_force() == before, "a later entry of the log does not bring it"
    assert "stays as it was" in caplog.text


def test_a_node_without_a_file_says_so(path: Path) -> None:
    config = load(path)
    settings: Any = SimpleNamespace(version=0, by_key={})
    nothing: Any = None
    reloading = Reloading(config, LayeredConfig(config, settings, Environment()), Environment(), nothing, nothing)
    with pytest.raises(ConfigError, match="no configuration to read again"):
        reloading.reload()


def test_every_reloadable_key_exists(path: Path) -> None:
    config: Config = load(path)
    for key in RELOADABLE:
        section, name = key.split(".")
        assert hasattr(getattr(config, section), name)
    assert merged(config, config) == config
    assert not differences(config, config)
