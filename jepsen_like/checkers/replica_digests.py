"""The digest checker: two replicas that have applied the same entries have the same state, byte for byte."""

from __future__ import annotations

from collections import defaultdict

from jepsen_like.checkers.history_steps import Operations, values_of
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.workload import Workload

NAME = "digests"


def check(operations: Operations, workload: Workload) -> CheckerResult:
    """Compares digests taken at equal applied indexes. Records a doubt if the last digests of a group's nodes were not
    taken at one applied index, or if only some of a group's nodes sent digests. Does not notice a group of which no
    node sent one.
    """
    findings = Findings()
    first: dict[tuple[str, int], tuple[int, str, int]] = {}
    last: dict[str, dict[int, int]] = defaultdict(dict)
    compared = 0
    with values_of(operations.answered("digest")) as watched:
        for operation in watched:
            asked, completed = operation.invoked.value, operation.completed
            assert completed is not None
            node, group = int(asked["node"]), str(asked.get("group", ""))
            applied, digest = int(completed.value["applied"]), str(completed.value["digest"])
            last[group][node] = applied
            at = f"applied index {applied}" + (f" of group {group}" if group else "")
            other, expected, op = first.setdefault((group, applied), (node, digest, completed.index))
            compared += op != completed.index
            if digest != expected:
                what = f"at {at}, node {other} has digest {expected} and node {node} has {digest}"
                findings.add("digest-divergence", what, (op, completed.index), node=node, subject=group)
    for group, nodes in last.items():
        where = f"group {group}: " if group else ""
        if len(set(nodes.values())) > 1:
            stand = ", ".join(f"node {node} at {applied}" for node, applied in sorted(nodes.items()))
            findings.doubt(f"{where}the last digests were not taken at one applied index: {stand}")
        if len(nodes) < workload.replicas:
            findings.doubt(f"{where}only nodes {sorted(nodes)} sent digests; there are {workload.replicas} replicas")
    return findings.result(NAME, {"groups": len(last), "compared": compared}, workload.allowed)
