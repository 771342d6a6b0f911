"""The file of a registry process, and the password that all of them derive."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from cluster.config.source import ConfigError
from cluster.registry.__main__ import main
from cluster.registry.registry_file import load, password_of, read_secret
from tests.support.rows import each_row

GOOD = """
id = 2
cluster_id = "00000000-0000-0000-0000-000000000007"
secret_file = "SECRET"
data_dir = "/var/registry"
port = 9866
peer_port = 9867
processes = ["10.0.0.1:9868", "10.0.0.2:9869", "[fe80::1]:9868"]
bind = "10.0.0.2"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "registry.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file_and_the_child_listens_at_its_own_port(tmp_path: Path) -> None:
    file = load(written(tmp_path, GOOD))
    assert (file.secret_file, file.data_dir) == (str(tmp_path / "SECRET"), "/var/registry")
    settings = file.settings((b"k" * 32, b"old" * 12))
    assert settings.bind == "10.0.0.2:9869"
    assert settings.addresses == {1: "10.0.0.1:9868", 2: "10.0.0.2:9869", 3: "[fe80::1]:9868"}
    assert (settings.node, settings.cluster) == (2, uuid.UUID(int=7).bytes)
    assert settings.password == password_of(b"k" * 32, uuid.UUID(int=7))


def test_each_cluster_and_each_secret_has_a_password_that_shows_neither() -> None:
    found = {password_of(key, uuid.UUID(int=n)) for key in (b"a" * 32, b"b" * 32) for n in (1, 2)}
    assert len(found) == 4
    assert not any(b"a".hex() * 8 in each for each in found)


@each_row(
    ("before", "after", "told"),
    [
        ("id = 2", "id = 4", "id is 4, and processes has 3 addresses"),
        ("id = 2", "id = 0", "`int` >= 1"),
        ("id = 2", "", "missing required field `id`"),
        ("id = 2", "id = 2\nports = 1", "unknown field `ports`"),
        ("10.0.0.1:9868", "10.0.0.1", '"10.0.0.1" is not host:port'),
        ("00000000-0000", "no uuid", "Invalid UUID"),
        ("9866", "70000", "`int` <= 65535"),
        ("id = 2", "id = ", "Invalid value"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, before: str, after: str, told: str) -> None:
    path = written(tmp_path, GOOD.replace(before, after, 1))
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(path) in raised.value.what
    assert told in raised.value.why
    assert main(["--config", str(path)]) == 2


def test_without_a_secret_nothing_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be read as the secret"):
        read_secret(tmp_path / "SECRET")
    assert main(["--config", str(written(tmp_path, GOOD))]) == 2
    assert "copy the file from a node" in capsys.readouterr().err
    assert main(["--config", str(tmp_path / "gone.toml")]) == 2
    assert "No such file" in capsys.readouterr().err
