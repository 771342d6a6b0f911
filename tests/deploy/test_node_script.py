"""deploy/kubernetes/node.sh with real nodes, each in a network namespace of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_network import tell
from tests.support.tools import needs


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(600)
@needs("ip")
def test_the_life_of_three_pods(tmp_path: Path) -> None:
    tell("tests.deploy.node_script_story", tmp_path)
