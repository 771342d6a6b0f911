"""deploy/alerts.yml: each rule names metrics that exist and a runbook that exists; promtool's own tests where it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.codes import CODES
from tests.support.pace import at_most
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "deploy/alerts.yml").read_text()
TESTS = (ROOT / "deploy/alerts_test.yml").read_text()
NAMES = re.findall(r"- alert: (\w+)", RULES)
EXPRESSIONS = re.findall(r"expr: (>-\n(?: {10}.*\n)+|.*)", RULES)


def test_every_metric_of_a_rule_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)) | {"up"}
    named = {
        word for expression in EXPRESSIONS for word in re.findall(r"\b(?:raftmq_|rocketmq_|ha_|up\b)\w*", expression)
    }
    assert len(named) >= 8
    assert named - documented == set()


def test_every_rule_leads_to_a_runbook_and_has_a_test() -> None:
    assert len(re.findall(r"^ +runbook: ", RULES, re.MULTILINE)) == len(NAMES) > 8
    assert set(re.findall(r"raftmq runbook (\w+)", RULES)) <= set(CODES)
    assert set(re.findall(r"alertname: (\w+)", TESTS)) == set(NAMES)


def test_no_rule_counts_the_nodes_of_two_clusters_or_groups_together() -> None:
    assert len(EXPRESSIONS) == len(NAMES)
    sums = [each for expression in EXPRESSIONS for each in re.findall(r"\b(?:sum|max|min|count)\b *(.*)", expression)]
    assert len(sums) >= 8
    for each in sums:
        assert re.match(r"by \(cluster, broker_group\b", each), each


def test_the_rule_of_rocketmqs_operators() -> None:
    rule = RULES.split("- alert: RocketMQ_HASyncDelay")[1].split("- alert")[0]
    assert "1048576" in rule
    assert "for: 5m" in rule
    assert "severity: critical" in rule


@needs("promtool")
def test_promtool_agrees() -> None:
    ended = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"],
        cwd=ROOT / "deploy",
        capture_output=True,
        text=True,
        timeout=at_most(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
