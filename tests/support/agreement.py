"""/v1/health, /metrics and the rules of deploy/alerts.yml say the same of a cluster, or a test fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.faulty_cluster import CLEARED_S, counted, findings, health, roots, wait_for
from tests.support.live_nodes import LiveCluster
from tests.support.pace import at_most
from tests.support.planted_faults import NAMED_S, Planted
from tests.support.prometheus import RULES, Alert, alerts, prometheus, without_waits
from tests.support.tools import is_here

AGREE_S = at_most(30)
"""The rules look once a second at what was scraped once a second; a loaded machine takes longer."""
GENERIC = {"warning": "RaftMQFinding", "critical": "RaftMQCriticalFinding"}
"""Severity -> the rule that shows findings of that severity by code."""
REMEMBER = frozenset({"RaftMQElectionsTooOften", "RaftMQSendTimeouts"})
"""Rules about the last minutes: they hold on after the repair."""


class Rules:
    """deploy/alerts.yml without its waiting times, over what the nodes say from now on."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        """None: Prometheus is not installed."""

    @property
    def is_here(self) -> bool:
        return self._url is not None

    def holding(self) -> list[Alert]:
        """Returns the alerts that hold now."""
        assert self._url is not None
        deadline = time.monotonic() + AGREE_S
        while (held := alerts(self._url)) is None:
            assert time.monotonic() < deadline, "Prometheus does not answer"
            time.sleep(0.2)
        return held


@contextmanager
def rules_of(cluster: LiveCluster, folder: Path) -> Iterator[Rules]:
    """Watches the cluster while the block runs."""
    if not is_here("prometheus"):
        yield Rules(None)
        return
    nodes = [f"127.0.0.1:{node.admin_port}" for node in cluster.nodes]
    with prometheus(folder, nodes, without_waits(RULES.read_text())) as url:
        yield Rules(url)


def disagreement(held: Sequence[Alert], said: dict[tuple[str, str], str], named: frozenset[str]) -> str:
    """Returns the reason why rules and findings do not say the same, "" if they do. `said`: code, object -> severity of
    every finding; `named`: rules that have to hold besides those for findings."""
    shown = {(alert.name, alert.code) for alert in held}
    for (code, _), severity in said.items():
        if severity != "info" and (GENERIC[severity], code) not in shown:
            return f"no rule shows {code} ({severity})"
    codes = {code for code, _ in said}
    for alert in held:
        if (alert.code or alert.leads_to) not in codes:
            return f"{alert} holds, and no finding is called so"
    missing = named - {alert.name for alert in held}
    return f"{sorted(missing)} do not hold" if missing else ""


def check_named(cluster: LiveCluster, planted: Planted, rules: Rules) -> None:
    """Within NAMED_S every node that answers names what was planted and, besides its consequences, nothing else;
    the metrics and the rules say the same."""
    deadline = time.monotonic() + NAMED_S
    wanted, nodes = {*planted.causes, *planted.follows}, [n.id for n in cluster.nodes if n.id != planted.away]
    for node in nodes:
        wait_for(cluster, node, lambda said: wanted <= set(said), deadline)
    until = time.monotonic() + AGREE_S
    while why := _why_not(cluster, planted, rules, nodes):
        assert time.monotonic() < until, why
        time.sleep(0.5)


def _why_not(cluster: LiveCluster, planted: Planted, rules: Rules, nodes: list[int]) -> str:
    everything: dict[tuple[str, str], str] = {}
    for node in nodes:
        metrics, said = counted(cluster, node), findings(cluster, node)
        if roots(said) != set(planted.causes):
            return f"node {node}: not only the fault and its consequences: {list(said.values())}"
        if metrics != {(key[0], each["severity"]) for key, each in said.items()}:
            return f"node {node}: /metrics counts {metrics}, and found is {list(said.values())}"
        body = health(cluster, node)
        everything |= {(each["code"], each["object"]): each["severity"] for each in body["findings"]}
        if not body["healthy"] and not any(_explains(each, node) for each in body["findings"]):
            return f"node {node}: the dashboard shows {body['reasons']} besides the findings"
        if [each["node"] for each in body["nodes"] if not each["answers"]] != [planted.away] * bool(planted.away):
            return f"node {node}: the dashboard does not hear {body['nodes']}"
    return disagreement(rules.holding(), everything, planted.alerts) if rules.is_here else ""


def _explains(finding: dict[str, str], node: int) -> bool:
    """Returns True if the finding explains why the node is unhealthy, as cluster/admin/static/findings.js decides."""
    return finding["severity"] == "critical" or (finding["code"], finding["object"]) == ("no_leader", f"node {node}")


def check_cleared(cluster: LiveCluster, rules: Rules) -> None:
    """No node finds anything any more, and no rule holds but for those that look back."""
    deadline = time.monotonic() + CLEARED_S
    for node in cluster.nodes:
        wait_for(cluster, node.id, lambda said: not said, deadline)
    until = time.monotonic() + AGREE_S
    while rules.is_here and (held := [each for each in rules.holding() if each.name not in REMEMBER]):
        assert time.monotonic() < until, held
        time.sleep(0.5)
