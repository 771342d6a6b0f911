"""A directory whose saved term leaves none to elect in is refused in words."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection
from cluster.state.node_storage import NodeStorage
from raftlog.core.message_plausibility import TERM_MAX
from raftlog.errors import StorageError
from raftlog.types import NOBODY, HardState


def test_a_term_above_which_there_is_none_refuses_the_start() -> None:
    saved = HardState(TERM_MAX + 1, NOBODY, 0)
    directory = SimpleNamespace(
        log=SimpleNamespace(genesis=None), hard_state_store=SimpleNamespace(load=lambda: saved), path=Path("/data")
    )
    storage: Any = SimpleNamespace(directory=directory)
    with pytest.raises(StorageError, match="unsafe-recover /data --plan") as refused:
        NodeStorage.raw_node(storage, Config(node=NodeSection(id=1, data_dir="/data")), random.Random(1))
    assert len(str(refused.value).split("\n")) == 3
