"""Commands on a stopped node's directory take the node's folder of a local cluster as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.storage.files import layout
from raftmq.commands.shared_options import NodeDirectory


@pytest.mark.parametrize(
    ("holds_identity", "asked", "taken"),
    [
        ("n1/data", "n1", "n1/data"),
        ("n1/data", "n1/data", "n1/data"),
        ("n1", "n1", "n1"),
        ("", "n1", "n1"),
    ],
)
def test_the_folder_that_holds_the_data_directory_will_do(
    tmp_path: Path, holds_identity: str, asked: str, taken: str
) -> None:
    if holds_identity:
        (tmp_path / holds_identity).mkdir(parents=True)
        (tmp_path / holds_identity / layout.IDENTITY).touch()
    assert NodeDirectory().convert(str(tmp_path / asked), None, None) == tmp_path / taken
