"""The arguments that the process around a node hands to it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from cluster.node import __main__ as process
from cluster.runtime import logs


def test_what_a_node_makes_is_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data directory, and what it starts: backups, a tier in a directory."""
    config = tmp_path / "raftmq.toml"
    config.write_text('[node]\nid = 1\ndata_dir = "data"\n[[listeners]]\nname = "broker"\nport = 10911\n')

    async def run(*_: Any) -> int:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").touch()
        helper = await asyncio.create_subprocess_exec("touch", str(tmp_path / "folder" / "helper's"))
        return await helper.wait()

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(logs, "setup", lambda *_, **__: None)
    before = os.umask(0o022)
    try:
        assert process.main(["--config", str(config)]) == 0
        assert os.umask(before) == 0o022
    finally:
        os.umask(before)
    made = [tmp_path / "folder", *sorted((tmp_path / "folder").iterdir())]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o600, 0o600]
