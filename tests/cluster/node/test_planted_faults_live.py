"""Faults made for real on three nodes: each is named within 15 s by every node that answers, nothing else is but its
consequences, the metrics and the rules of deploy/alerts.yml agree, and it clears after the repair.

Thresholds that are lowered for it: `LOWERED` of tests/support/faulty_cluster.py. Disks that fill up need file systems
of their own: test_planted_disks_live.py. What the dashboard shows: tests/browser/test_planted_faults.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agreement import check_cleared, check_named, rules_of
from tests.support.faulty_cluster import FaultyCluster, calm, faulty_cluster
from tests.support.planted_faults import FAULTS
from tests.support.tools import lack, needs

pytestmark = [pytest.mark.live, pytest.mark.slow]
CHOSEN = [pytest.param(name, marks=needs("gcc") if name == "clock" else ()) for name in FAULTS]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    """One for all faults."""
    with faulty_cluster(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_is_named_by_all_and_clears(cluster: FaultyCluster, name: str, tmp_path: Path) -> None:
    calm(cluster)
    with rules_of(cluster, tmp_path / "prometheus") as rules:
        with FAULTS[name](cluster) as planted:
            check_named(cluster, planted, rules)
        check_cleared(cluster, rules)
        if not rules.is_here:
            lack("prometheus", why="all but the rules agrees")
