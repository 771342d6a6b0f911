"""Three machines with namespaces of their own, by docs/machines.md alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_network import tell
from tests.support.tools import needs


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
@needs("ip")
def test_a_cluster_on_three_machines(tmp_path: Path) -> None:
    tell("tests.deploy.three_machines_story", tmp_path)
