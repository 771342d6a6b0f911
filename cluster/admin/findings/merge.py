"""Merges the findings of the nodes into one list for the cluster. Each finding is in it once, with its cause.

All functions are pure. This module also finds what only the views of several nodes together show: a node is down,
because it does not answer and no other node reaches it; the disks of all nodes are slow, so no single disk is to blame;
one node is cut off, while the cluster has a leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from cluster.admin.findings.catalogue import BECAUSE_OF, UNPROVEN_DO, command_of, runbook_of
from cluster.admin.findings.finding import Cause, Finding
from cluster.config.local_layout import Place, link_object, name_of, node_object
from cluster.runtime.findings import CLUSTER, SEVERITIES, Code
from raftlog.types import FIRST_GROUP

Views = Mapping[int, Sequence[Finding]]
"""Node -> its findings; nodes that do not answer are missing."""


NODE_DOWN = Code("node_down", "warning", "raftmq restart {n}")
CUT_OFF = ("no_leader", "no_quorum")
"""Codes of findings about the cluster. If a leader is known to some node, they are about the reporting node only."""


def merged(
    views: Views,
    members: Collection[int],
    maintained: Collection[int] = (),
    leaders: Mapping[int, int | None] | None = None,
    place: Place = "up",
    lost: Collection[int] = (),
    group: int = FIRST_GROUP,
) -> list[Finding]:
    """Returns the cluster's findings, the worst first. Within a severity, findings without a known cause come first,
    then the oldest. Findings about a node in maintenance are expected, so their severity becomes `info`.

    `views` and `leaders` map a node to its findings, and to the leader that it knows. `members`, `maintained` and
    `lost` are node ids: all members, those in maintenance, and those whose data directories are known to be lost.
    `place` says where the cluster runs. All these nodes are in the group of brokers `group`.
    """
    leader = _leader_elsewhere(leaders or {})
    found = _once(
        _of_one_node(each, node, leader, group)
        for node, view in views.items()
        for each in view
        if _about_members(each, _names({*views, *members}, group))
    )
    for each in [*_down(found, views, members, place, lost, group), *_all_slow(found, views)]:
        found[each.key] = each
    explained = [_explained(each, found) for each in found.values()]
    return sorted((_expected(each, _names(maintained, group)) for each in explained), key=_place)


def _leader_elsewhere(leaders: Mapping[int, int | None]) -> int | None:
    """Returns the leader that most nodes know; None if no node knows one."""
    known = [leader for leader in leaders.values() if leader is not None]
    return max(known, key=known.count) if known else None


def _of_one_node(finding: Finding, node: int, leader: int | None, group: int) -> Finding:
    """Returns a node's finding. If it is about the cluster but only the node itself is cut off, the returned finding is
    about that node. A leader that another node knows has a majority, so a node that knows no leader, or reaches no
    majority, is cut off from it."""
    if finding.code not in CUT_OFF or finding.object != CLUSTER or leader is None or leader == node:
        return finding
    what = "knows no leader" if finding.code == "no_leader" else "reaches no majority"
    about = node_object(group, node)
    says = f"{about} {what}, although {node_object(group, leader)} leads: it is cut off, and serves nobody"
    return replace(finding, object=about, severity="warning", says=says)


def _expected(finding: Finding, maintained: set[str]) -> Finding:
    kind = finding.object.partition(" ")[0]
    if kind in ("node", "link") and maintained & _names_in(finding.object):
        return replace(finding, severity="info")
    return finding


def _about_members(finding: Finding, known: set[str]) -> bool:
    """Returns False for a finding about a node that is no member and does not answer, or about a link to such a node: a
    removed node need not be reachable. The finding `removed` is the exception. `known` has the names of the members and
    of the nodes that answer."""
    if finding.code == "removed" or finding.object.partition(" ")[0] not in ("node", "link"):
        return True
    return all(name in known for name in _names_in(finding.object) if name.replace("/", "").isdecimal())


def _once(findings: Iterable[Finding]) -> dict[tuple[str, str], Finding]:
    once: dict[tuple[str, str], Finding] = {}
    for each in findings:
        known = once.get(each.key)
        if known is None:
            once[each.key] = each
            continue
        first, worst = min(known, each, key=_since), max(known, each, key=_weight)
        seen_by = sorted({*known.seen_by, *each.seen_by})
        once[each.key] = replace(worst, since=first.since, seen_by=seen_by)
    return once


def _down(
    found: Mapping[tuple[str, str], Finding],
    views: Views,
    members: Collection[int],
    place: Place,
    lost: Collection[int],
    group: int,
) -> Iterable[Finding]:
    """Yields a finding for each member that is down: it does not answer, and every answering node suspects its link to
    it. A node is not down if a link is suspect only because one side did not prove the cluster's secret."""
    gone = set(lost) - set(views)
    for node in sorted(members):
        others = [other for other in views if other != node and other in members]
        links = [found.get(("link_suspect", link_object(group, other, node))) for other in others]
        known = [link for link in links if link is not None]
        if node in views or not known or len(known) < len(links) or any(each.do_now == UNPROVEN_DO for each in known):
            continue
        why, do_now = "it is not running, or cut off", command_of(NODE_DOWN, name_of(group, node), place)
        if node in gone:  # it could vote a second time in a term, so it refuses to start
            why = "its data directory was lost, so it cannot be started"
            do_now = (
                f"raftmq node replace {name_of(group, node)}"
                if 2 * len(gone) < len(members)
                else "raftmq runbook no_quorum"
            )
        yield Finding(
            code=str(NODE_DOWN),
            severity=NODE_DOWN.severity,
            since=min(known, key=_since).since,
            object=node_object(group, node),
            says=f"{node_object(group, node)} does not answer, and no other node reaches it: {why}",
            do_now=do_now,
            runbook=runbook_of(NODE_DOWN),
            seen_by=sorted(others),
        )


def _all_slow(found: dict[tuple[str, str], Finding], views: Views) -> Iterable[Finding]:
    """Removes the findings about slow disks from `found` if every answering node has one, and yields one finding about
    the cluster instead."""
    slow = [each for each in found.values() if each.code == "disk_slow"]
    if len(views) < 2 or len(slow) < len(views):
        return
    for each in slow:
        del found[each.key]
    first = min(slow, key=_since)
    says = f"the disks of all {len(slow)} nodes that answer are slow, so look at what they share. {first.says}"
    yield replace(first, object=CLUSTER, says=says, seen_by=sorted({n for each in slow for n in each.seen_by}))


def _explained(finding: Finding, found: Mapping[tuple[str, str], Finding]) -> Finding:
    """Returns the finding with its cause in `because_of`. If writes would not survive the next failure because a node
    is down, the finding also gets the command that brings this node back or replaces it."""
    cause = _cause(finding, found)
    if finding.code == "no_quorum_margin" and cause is not None and cause.code == "node_down":
        finding = replace(finding, do_now=found[cause.code, cause.object].do_now)
    return replace(finding, because_of=cause)


def _cause(finding: Finding, found: Mapping[tuple[str, str], Finding]) -> Cause | None:
    if finding.do_now == UNPROVEN_DO:
        return None  # An unproven secret is itself the reason why the other node is silent; its own command helps.
    for code, relation in BECAUSE_OF.get(finding.code, ()):
        for other in found.values():
            if other.code == code and other.key != finding.key and _related(relation, other.object, finding.object):
                return Cause(other.code, other.object)
    return None


def _related(relation: str, cause: str, consequence: str) -> bool:
    if relation == "any":
        return True
    if relation == "same":
        return cause in (CLUSTER, consequence)
    return bool(_names_in(cause) & _names_in(consequence))


def _names_in(text: str) -> set[str]:
    """Returns the names of the nodes in the object of a finding: {"2/1", "2/3"} for "link 2/1-2/3"."""
    return set(text.partition(" ")[2].split("-"))


def _names(nodes: Iterable[int], group: int) -> set[str]:
    return {str(name_of(group, node)) for node in nodes}


def _since(finding: Finding) -> str:
    return finding.since


def _weight(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _place(finding: Finding) -> tuple[int, bool, str, str, str]:
    return -_weight(finding), finding.because_of is not None, finding.since, finding.code, finding.object
