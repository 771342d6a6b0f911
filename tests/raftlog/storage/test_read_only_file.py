"""A file in a volume that this process may only read: the secret of a node in a container."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from raftlog.storage.files.fs import OsFileSystem, read_file


def test_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "peers").write_bytes(b"secret")
    really = os.open

    def read_only(path: Any, flags: int, *mode: Any) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really(path, flags, *mode)

    monkeypatch.setattr(os, "open", read_only)
    assert read_file(OsFileSystem(), tmp_path / "peers") == b"secret"
    with pytest.raises(OSError, match="Read-only"):
        OsFileSystem().open(tmp_path / "new", create=True)
