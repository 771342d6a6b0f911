"""Checks that another group of brokers can copy the truth of the first one: topics, groups, users, settings and all
else that groups of brokers have in common (docs/adr/0108).

A separate state, `copy`, stands for the other group. It copies pages from whichever node has just applied an entry,
also from followers and from nodes that have just recovered: the changes after a version are the same on all nodes.
When the copy has reached a node's version, both must show the same. A topic that was deleted and created again must
have a new id in the copy, too.

The journal has only the newest change of each name. A copy of a version has each name as it was at that version. If the
name was changed again later, the copy may have it as it was at any earlier moment, and gets the change with a later
version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jepsen_like.fakes.memory_kv import MemoryKV
from jepsen_like.sim.callbacks import Report
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, FIRST_GROUP, EntryType
from statemachine import commands
from statemachine.access.user_rows import user_row
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.truth_journal import TruthKind, TruthName
from statemachine.consuming.groups import group_settings
from statemachine.truth import CopyTruth, topic_row

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine

CHECKER = "truth"
PAGE_BYTES = 60
"""Size of a page of the copy, in bytes: so small that almost every row has a page of its own."""
SEGMENT_SIZE = 1 << 26


def told(state: BrokerState) -> dict[str, Any]:
    """Returns the truth (what all groups of brokers have in common) as readers of this state see it: kind -> rows."""
    access = state.access
    return {
        "topics": {name: topic_row(topic) for name, topic in state.topics.items()},
        "groups": {name: group_settings(group) for name, group in state.groups.items()},
        "users": {each.id: (user_row(each), each.rules, sorted(each.tokens)) for each in access.by_id.values()},
        "names": {name: user.id for name, user in access.users.items()},
        "tokens": dict(access.tokens),
        "access": (access.mode, access.key_id, access.supers, access.keys_in_use),
        "settings": (dict(state.settings.by_key), state.settings.version),
        "broker groups": dict(state.broker_groups.by_number),
        "quotas": dict(state.quotas.by_subject),
        "learnt": state.learnt.in_force,
    }


KINDS: dict[str, tuple[TruthKind, ...]] = {
    "topics": (TruthKind.TOPIC,),
    "groups": (TruthKind.GROUP,),
    "users": (TruthKind.USER, TruthKind.RULE, TruthKind.TOKEN),
    "names": (TruthKind.USER,),
    "tokens": (TruthKind.USER, TruthKind.TOKEN),
    "access": (TruthKind.USER, TruthKind.ACCESS),
    "settings": (TruthKind.SETTING,),
    "broker groups": (TruthKind.BROKER_GROUP,),
    "quotas": (TruthKind.QUOTA,),
    "learnt": (TruthKind.LEARNT,),
}
"""Kind of rows in `told` -> the kinds of names in the truth journal from which these rows are made."""
BY_NAME = ("topics", "groups")
"""Kinds in `told` whose rows have the same names as in the journal."""


class TruthCheck:
    """Keeps a copy of the first group's truth, from nodes that have applied entries, and compares nodes with it.
    `report` takes the checker's name and what is wrong."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.copy = BrokerState(MemoryKV(), group=FIRST_GROUP + 1)
        """The state of the other group."""
        self._tail = EMPTY_TAIL
        self._ids: dict[int, int] = {}
        """Id of a topic in the first group -> its id in the other."""
        self.shown: dict[int, dict[str, Any]] = {}
        """Version -> what the first group had then (`told`), for versions at which both were compared."""
        self.newest: dict[tuple[TruthKind, TruthName], int] = {}
        """(kind, name) -> version at which the name was last changed or deleted, in the journals compared so far."""
        self.compared = -1
        """The newest version at which both were compared."""

    def applied(self, machine: Machine) -> None:
        """Copies the truth from a node that has applied entries. Compares the node with the copy once both have the
        same version, one time per version."""
        assert machine.node is not None
        state, node = machine.node.state, machine.node_id
        journal, copy = state.truth_journal, self.copy
        while journal.is_kept and copy.truth.copied < journal.version:
            after = copy.truth.copied
            page = state.truth.after(after, PAGE_BYTES)
            if not after < page.version <= journal.version:
                self._report(CHECKER, f"node {node}: what comes after version {after} brings to {page.version}")
                return
            result = self._run(CopyTruth(after, page.version, page.rows))
            if not result.ok:
                self._report(CHECKER, f"node {node}: a page of the truth is {result.code}: {result.value}")
                return
        if journal.is_ready and copy.truth.copied == journal.version != self.compared:
            self.compared = journal.version
            self._compare(node, state)

    def without_later(self, version: int, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the rows of `shown` (the result of `told` for a copy of this version) that are the same in every copy
        of this version. Names that were changed again later are left out, because a copy may have them as they were
        before.
        """
        later = {name for name, newest in self.newest.items() if newest > version}
        kinds = {kind for kind, _ in later}
        kept = {kind: rows for kind, rows in shown.items() if kind in BY_NAME or kinds.isdisjoint(KINDS[kind])}
        for kind in BY_NAME:
            kept[kind] = {name: row for name, row in shown[kind].items() if (*KINDS[kind], name) not in later}
        return kept

    def _run(self, command: commands.Command) -> commands.CommandResult:
        packed, now_ms = commands.pack([command]), 1
        entry = make_entry(
            self._tail,
            term=1,
            entry_type=EntryType.COMMAND,
            payload=packed,
            timestamp_ms=now_ms,
            group_id=FIRST_GROUP + 1,
            segment_size=SEGMENT_SIZE,
        )
        self._tail = tail_after(self._tail, entry)
        return self.copy.apply([entry]).results[0][0]

    def _compare(self, node: int, state: BrokerState) -> None:
        here, there = told(state), told(self.copy)
        for kind, rows in here.items():
            if there[kind] != rows:
                self._report(CHECKER, f"{kind} of node {node} differ from their copies at version {self.compared}")
                return
        self.shown[self.compared] = here
        changes = list(state.truth_journal.changes(0))
        for change in changes:
            self.newest[change.kind, change.name] = change.version
        names = Counter((change.kind, change.name, change.ended) for change in changes)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            self._report(CHECKER, f"the journal of node {node} has two rows of {twice[0]}")
            return
        for name, topic in state.topics.items():
            copied = self.copy.topics[name].id
            if self._ids.setdefault(topic.id, copied) != copied:
                self._report(CHECKER, f"topic {name} has got another id in the copy, and was not made again")
                return
        if len(set(self._ids.values())) < len(self._ids):
            self._report(CHECKER, "a topic was made again, and its copy is still the one before")
