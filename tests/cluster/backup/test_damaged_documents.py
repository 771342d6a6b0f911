"""Documents that a person hands over, of which one bit is wrong: told in three lines, not as a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.backup import manifest, metadata
from raftmq_wire.errors import LocalError

NO_TEXT = b'{"schema": 10, "kind": "\xff"}'
DEEP = b'{"schema": 10, "kind": "raftmq metadata", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("data", [NO_TEXT, DEEP, b"", b"\xff"])
def test_a_document_that_is_no_text(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no metadata export"):
        metadata.read(data, "export.json")
    (tmp_path / manifest.MANIFEST).write_bytes(data)
    with pytest.raises(LocalError, match="is damaged"):
        manifest.load(tmp_path)
