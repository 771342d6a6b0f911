"""Two ways to name the place of a backup, a plain path and file://: the same checks stand before both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from cluster.backup.create import create
from cluster.backup.remote import create_remote
from raftmq_wire.errors import LocalError
from tests.support.rows import each_row

PLACES = [
    f"{node}{folder}" for node in ("own", "other", "elsewhere", "link") for folder in ("", "/data", "/log/x", "/state")
] + ["n2", "n2/backups", "n2/data/log", "free/../other/log"]
"""Places below the folder of a test; `own` is the node's own data directory, `link` leads to `other`."""


def as_path(place: Path) -> str:
    return str(place)


def as_url(place: Path) -> str:
    return f"file://{place}"


def escaped(place: Path) -> str:
    return f"FILE://{quote(str(place)).replace('n', '%6E').replace('o', '%6f')}"


def tree(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def folders(stopped: Any, tmp_path: Path) -> Path:
    for name in ("other", "elsewhere/log", "n2/data", "free"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("other", "elsewhere", "n2/data"):
        (tmp_path / name / "IDENTITY").touch()
    (tmp_path / "n2/raftmq.toml").touch()
    (tmp_path / "own").symlink_to(stopped.data)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    return tmp_path


@each_row("written", [as_path, as_url, escaped])
@each_row("place", PLACES)
def test_no_backup_goes_into_the_directory_of_a_node(
    stopped: Any, folders: Path, place: str, written: Callable[[Path], str]
) -> None:
    before, own = tree(folders), tree(stopped.data)
    to = written(folders / place)
    with pytest.raises(LocalError, match=r"(?s)cannot be a backup target.*directory"):
        (create if written is as_path else create_remote)(replace(stopped.request(Path("/")), to=to))
    assert tree(folders) == before
    assert tree(stopped.data) == own


@pytest.mark.parametrize("written", [as_path, as_url])
def test_a_backup_goes_beside_them(stopped: Any, folders: Path, written: Callable[[Path], str]) -> None:
    request = replace(stopped.request(Path("/")), to=written(folders / "free"))
    assert (create if written is as_path else create_remote)(request).manifest.segments
