"""A disk that is full, and one that fills up, on three nodes with small file systems of their own: named by all within
15 s with nothing but consequences, in /metrics and by the rules; cleared after the repair."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.agreement import check_cleared, check_named, rules_of
from tests.support.faulty_cluster import calm, findings
from tests.support.planted_faults import Planted
from tests.support.small_disk_nodes import SmallDiskCluster, filling_disk, full_disk, small_disk_cluster
from tests.support.tools import lack, needs

pytestmark = [pytest.mark.live, pytest.mark.slow, needs("mount")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDiskCluster]:
    """One for both faults."""
    with small_disk_cluster(tmp_path_factory.mktemp("disks")) as made:
        yield made


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", [filling_disk, full_disk])
def test_a_disk_is_named_by_all_and_clears(
    cluster: SmallDiskCluster, plant: Callable[[SmallDiskCluster], AbstractContextManager[Planted]], tmp_path: Path
) -> None:
    calm(cluster)
    with rules_of(cluster, tmp_path / "prometheus") as rules:
        with plant(cluster) as planted:
            check_named(cluster, planted, rules)
            (key,) = planted.causes
            if plant is filling_disk:
                for node in cluster.nodes:
                    assert re.match(r"full in \d+ (h|min) at this rate: ", findings(cluster, node.id)[key]["says"])
        check_cleared(cluster, rules)
        if not rules.is_here:
            lack("prometheus", why="all but the rules agrees")
