"""deploy/grafana/raftmq.json, and the questions of docs/metrics.md: each names metrics that exist, and a real
Prometheus has data for all of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from raftmq.client import connect
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.prometheus import answer, prometheus
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "deploy/grafana/raftmq.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
PAGE = (ROOT / "docs/metrics.md").read_text()
ANSWERS = re.findall(r"^\| [^|]+\? \| `([^|]+)` \|", PAGE, re.MULTILINE)
"""The expressions that answer the questions in docs/metrics.md."""
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + ANSWERS
OF_PROMETHEUS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
PATIENCE_S = at_most(90)


def test_every_metric_of_a_panel_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    named = {
        word.removesuffix("_bucket").removesuffix("_count")
        for expression in EXPRESSIONS
        for word in re.findall(r"\b(?:raftmq_|rocketmq_|ha_|process_|up\b)\w*", expression)
    }
    assert len(ANSWERS) > 20
    assert len(named) > 25
    assert named - documented == OF_PROMETHEUS


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert all(panel["description"] and panel["targets"] for panel in PANELS)
    taken = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert {x for x, _ in taken} == set(range(24))


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(400)
@needs("prometheus")
def test_a_real_prometheus_has_data_for_every_panel(live_cluster: LiveCluster, tmp_path: Path) -> None:
    nodes = [f"127.0.0.1:{node.admin_port}" for node in live_cluster.nodes]
    with prometheus(tmp_path, nodes) as url, connect(live_cluster.servers) as mq:
        mq.send("panels", b"first")
        with mq.consumer("readers", "panels", max_wait_s=20, follow=False) as consumer:
            assert next(iter(consumer)).body == b"first"
        deadline = time.monotonic() + PATIENCE_S
        empty = EXPRESSIONS
        while empty and time.monotonic() < deadline:
            mq.send("panels", b"load")
            empty = [expression for expression in empty if not answer(url, expression)]
    assert empty == []
