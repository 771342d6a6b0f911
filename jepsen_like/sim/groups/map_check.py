"""Checks what nodes know of other groups of brokers. Also checks that their copy of the truth (topics, groups, users
and so on) contains nothing that the first group never had (docs/adr/0108).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.truth_check import CHECKER, TruthCheck, told
from statemachine.cluster_wide.broker_groups import is_retired

if TYPE_CHECKING:
    from cluster.placement.group_map import Epoch, GroupRecords
    from jepsen_like.sim.machines.loop import Process
    from jepsen_like.sim.machines.machine import Machine
    from raftlog.types import NodeId


class MapCheck:
    """Checks the map of each process: only a retired group may leave it, the epoch of a group never falls, and no node
    is named as the leader of a term that another node led. Where the node has a copy of the truth, no group of another
    cluster may be in the map."""

    def __init__(self, report: Report, leaders: Mapping[int, Mapping[int, NodeId]]) -> None:
        """`leaders`: number of a group -> term -> the node that led it."""
        self._report, self._leaders = report, leaders
        self._seen: dict[Process, GroupRecords] = {}
        self._epochs: dict[tuple[Process, int], Epoch] = {}
        self.changes = 0
        """Number of times that a node's map has changed."""

    def look(self, machine: Machine) -> None:
        """Checks the map of a node. Called after each of its events, so an unchanged map costs one comparison."""
        serving = getattr(machine.node, "serving", None)
        process = machine.process
        if serving is None or process is None:
            return
        groups: GroupRecords = serving.other_groups.others()
        seen = self._seen.get(process, {})
        if groups == seen:
            return
        self._seen[process] = groups
        self.changes += 1
        who = f"node {machine.node_id} of group {machine.group}"
        self._look_at_groups(machine, who, seen, groups)
        for number, record in groups.items():
            if number not in self._leaders:
                continue
            before = self._epochs.get((process, number))
            if before is not None and record.epoch < before:
                self._report("group map", f"{who} went back from {before} of group {number} to {record.epoch}")
            self._epochs[process, number] = record.epoch
            led = self._leaders[number].get(record.epoch.term)
            if led is not None and led != record.leader:
                what = f"{who} names {record.leader} the leader of group {number} in term {record.epoch.term}"
                self._report("group map", f"{what}; it was {led}")

    def _look_at_groups(self, machine: Machine, who: str, seen: GroupRecords, groups: GroupRecords) -> None:
        """Checks which groups the map has. A node without a copy of the truth believes the groups that other nodes
        send.
        """
        assert machine.node is not None
        rows = machine.node.state.broker_groups.by_number
        for number in seen.keys() - groups.keys():
            if number in self._leaders and not is_retired(rows, number):
                self._report("group map", f"{who} has lost group {number}")
        for number in groups.keys() - self._leaders.keys():
            if rows:
                self._report("group map", f"{who} has group {number}, which is not of this cluster")


class CopiesCheck:
    """Compares what nodes of the second group have with what the first one had at the same version. `compared` counts
    the comparisons."""

    def __init__(self, report: Report, truth: TruthCheck) -> None:
        self._report, self._truth = report, truth
        self.compared = 0
        self._newest: dict[NodeId, int] = {}

    def applied(self, machine: Machine) -> None:
        """Compares the copy of a node that has applied entries with the first group's state at the copy's version, if
        that state is known."""
        assert machine.node is not None
        state = machine.node.state
        version, who = state.truth.copied, f"node {machine.node_id}"
        wanted = self._truth.shown.get(version)
        if wanted is not None:
            self.compared += 1
            found = differing(*(self._truth.without_later(version, rows) for rows in (wanted, told(state))))
            if found:
                self._report(CHECKER, f"{who}: {found} are not those that the first group had at version {version}")


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Returns the first kind of rows that differ between the two states, with an example; "" if all are equal."""
    for kind, rows in wanted.items():
        if found[kind] != rows:
            if isinstance(rows, dict):
                names = sorted(str(name) for name in rows.keys() | found[kind].keys())
                other = next(name for name in names if rows.get(name) != found[kind].get(name)) if names else ""
                return f"{kind} ({other})"
            return kind
    return ""
