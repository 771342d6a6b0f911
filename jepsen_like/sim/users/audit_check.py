"""The check of the audit, the record of changes. Each node must keep the newest changes, the newest changes of each
user who asked for any, and not many more.

A simulated audit is so small that a run fills it many times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgpack

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.machine import Machine
from statemachine.access import users
from statemachine.rows import meta_keys
from statemachine.rows.kv import META

if TYPE_CHECKING:
    from raftlog.types import NodeId

CHECKER: Final = "audit"
KEPT, OF_USER_KEPT = 40, 10
"""KEPT: the number of newest changes that a simulated node's audit keeps. OF_USER_KEPT: the number of newest changes
that it keeps for each user.
"""
_FIELDS: Final = 5
"""The number of fields in a row of the audit. From the feature level on that keeps the newest changes of each user, one
more field numbers the row among the user's rows.
"""


@contextmanager
def small_audit() -> Iterator[None]:
    """A context in which the audits of all nodes are small."""
    before = {name: getattr(users, name) for name in ("AUDIT_KEPT", "AUDIT_OF_USER_KEPT")}
    try:
        for name, kept in zip(before, (KEPT, OF_USER_KEPT), strict=True):
            setattr(users, name, kept)
        yield
    finally:
        for name, kept in before.items():
            setattr(users, name, kept)


class AuditCheck:
    """Checks which changes the audits of nodes keep. It remembers every row that it has seen on any node."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._of_user: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """User who asked -> numbers of the changes that count for the user."""

    def look(self, machine: Machine) -> None:
        """Reads the audit of one node and reports changes that it lacks, or if it keeps too many. Must be called at
        least once for every KEPT changes, or some changes are never seen."""
        found: dict[int, None] = {}
        for key, row in machine.kv.scan(META, *meta_keys.AUDIT):
            number, fields = meta_keys.audit_number(key), msgpack.unpackb(row)
            found[number] = None
            if len(fields) > _FIELDS:
                self._of_user[fields[1]][number] = None
        newest = max(found, default=0)
        self._look_for(machine.node_id, found, range(max(1, newest - KEPT + 1), newest + 1), "all")
        for user, known in self._of_user.items():
            own = sorted((number for number in known if number <= newest), reverse=True)
            self._look_for(machine.node_id, found, islice(own, OF_USER_KEPT), user)
        most = KEPT + OF_USER_KEPT * len(self._of_user)
        if len(found) > most:
            self._report(CHECKER, f"node {machine.node_id} keeps {len(found)} changes, {most} at most")

    def _look_for(self, node_id: NodeId, found: dict[int, None], numbers: Iterable[int], whose: str) -> None:
        if lost := [number for number in numbers if number not in found]:
            self._report(CHECKER, f"node {node_id} has lost the change {lost[0]}, one of the newest of {whose}")
