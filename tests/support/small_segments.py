"""Nodes whose logs have small segments. A node fills the first two with zeroes: 128 MiB of the disk at the usual size,
most of what a fresh cluster costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SEGMENT_BYTES = 6 << 20
"""No limit has to be lowered for it: the largest message and the largest batch fit."""
LOG = f"[log]\nsegment_size_bytes = {SEGMENT_BYTES}\n"
"""The lines for a node's file."""
ENVIRONMENT = {"RAFTMQ_LOG__SEGMENT_SIZE_BYTES": str(SEGMENT_BYTES)}


@contextmanager
def small_segments() -> Iterator[None]:
    """Gives small segments to the directories that `raftmq up` makes meanwhile; they keep the size."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield
