"""Unpacks archives that the tests' own tree made."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(archive: Path, folder: Path) -> None:
    """Unpacks a tar file. Python 3.12 asks for a filter, which 3.11 has from 3.11.4 on."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, filter="data")
        else:
            opened.extractall(folder)
