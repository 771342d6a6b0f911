"""The check of what all users of a node share. It looks into the nodes now and then, and reports under these names:

- standing: a client that is registered in a group although, by the check's own model of users, its user has no right
  (any more) to be there;
- costly: a costly request that is in progress, or waits for its turn, although its client is gone; more costly requests
  in progress at once than there are slots;
- memory: more bytes than a node may keep of the requests that it has judged and denied;
- lines: more lines about denied requests of one address in a second than a log takes;
- tokens: a token that exists although it has ended, for example with its user's old secret; a token that is missing
  although nothing has ended it;
- audit: a change that a node does not keep (`audit_check`).

A node may need some time to correct its state after a change. So a finding counts only if it was made in all looks of
GRACE_S seconds while the node was running.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cluster.broker.access import denials
from cluster.broker.groups.consumer_group import Member
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.loop import PROCESS, Process
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.machines.network import Address
from jepsen_like.sim.users.access_model import AccessModel, ModelUser, Want
from jepsen_like.sim.users.audit_check import AuditCheck
from raftlog.types import NodeId
from raftmq_wire.codec import FLAG_ONEWAY
from statemachine.levels import OWNERS_LEVEL

if TYPE_CHECKING:
    from cluster.node.node import Node
    from cluster.remoting.costly_requests import CostlyRequests

LOOK_S: Final = 0.1
"""Time in seconds between two looks."""
GRACE_S: Final = {"standing": 2.0, "costly": 1.0, "tokens": 1.0}
"""Checker -> time in seconds for which a finding may last before it is reported."""
LONG_EVERY: Final = 20
"""Number of looks between two measurements of memory and readings of the audit, which take long."""
MEMORY_MAX: Final = 2 << 20
"""Bytes that a node may keep of judged and denied requests."""
AT_ONCE_MAX, OF_ONE_MAX = 8, 2
"""The most costly requests of one kind that may be in progress at once: AT_ONCE_MAX of all users, OF_ONE_MAX of one
user.
"""
LINES_MAX: Final = 12
"""The most lines in a second about denied requests from one address, at which there are a few users. A user leaves one,
and one more whenever the node's clock is set back."""
MEASURED: Final = ("cluster.broker.access.", "cluster.remoting.admission", "statemachine.access.access_decision")
"""Prefixes of the names of the modules whose objects are measured."""

Wrong = tuple[str, NodeId, str]
"""(checker, node, what is wrong)."""


class SharedCheck:
    """Looks for the faults that the module lists, on all running nodes. `look` is to be called every LOOK_S seconds."""

    def __init__(
        self,
        report: Report,
        now: Callable[[], float],
        machines: Callable[[], Iterable[Machine]],
        model: AccessModel,
        clients: Callable[[], Collection[Address]],
        is_calm: Callable[[], bool],
    ) -> None:
        """`clients` returns the addresses of clients to which any node has a connection. `is_calm` returns True if no
        message between nodes is lost or delayed.
        """
        self._report, self._now, self._machines, self._model = report, now, machines, model
        self._clients, self._is_calm = clients, is_calm
        self._audit = AuditCheck(report)
        self._wrong: dict[Wrong, int] = {}
        """Number of looks, one after the other, in which each finding was made."""
        self._looks = 0
        self.seen: Counter[str] = Counter()
        """Checker -> number of things that were looked at."""
        self._lines: dict[tuple[Process, str], deque[float]] = {}
        """(process, address of a client) -> times in seconds of the newest lines."""

    def look(self) -> None:
        """Checks all running nodes for each kind of fault that the module lists."""
        self._looks += 1
        before, self._wrong = self._wrong, {}
        clients, calm = frozenset(self._clients()), self._is_calm()
        for machine in self._machines():
            node, process = machine.node, machine.process
            if node is None or process is None or not process.alive or process.paused or process.stalls:
                continue
            if not hasattr(node, "serving"):
                continue  # the node is still being opened
            costly = self._costly(node, clients if calm else None)
            for checker, what in (*self._standing(node), *costly, *self._tokens(node)):
                wrong = checker, machine.node_id, what
                self._wrong[wrong] = before.get(wrong, 0) + 1
                if self._wrong[wrong] * LOOK_S >= GRACE_S[checker]:
                    self._report(checker, f"node {machine.node_id}: {what}, for {GRACE_S[checker]} s")
                    return
            if self._looks % LONG_EVERY == 0:
                self._measure(machine.node_id, node)
                self._audit.look(machine)

    # --- registrations -----------------------------------------------------------------------------------------------

    def _standing(self, node: Node) -> Iterator[tuple[str, str]]:
        index = node.state.applied.index
        if not self._model.enforced_at or self._model.is_open(index) or index > self._model.index:
            return
        by_id = {user.id: user for users in self._model.states(index, index) for user in users.values()}
        for role, group, member in _registered(node):
            self.seen["standing"] += 1
            if not _may_stay(by_id.get(member.user), role, group, member.connection.peer_address[0]):
                client = f"{member.client_id} of user {member.user} at {member.connection.peer_address}"
                yield "standing", f"{client} is a {role} of group {group} without a right to be"

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _tokens(self, node: Node) -> Iterator[tuple[str, str]]:
        index, there = node.state.applied.index, node.state.access.tokens
        if index > self._model.index:
            return
        for digest, token in self._model.tokens.items():
            self.seen["tokens"] += 1
            if token.is_there(index) != (digest in there):
                ended = f"has ended with entry {token.ended_at}" if digest in there else "is not there"
                yield "tokens", f"the token {digest.hex()[:8]} of user {token.user_id} {ended}"

    # --- costly requests ---------------------------------------------------------------------------------------------

    def _costly(self, node: Node, clients: Collection[Address] | None) -> Iterator[tuple[str, str]]:
        """Yields the costly requests that go on although their client is gone, and reports too many at once. `clients`:
        the addresses of the connected clients; None if they are not known, in which case nothing is yielded.
        """
        for costly in node.serving.remoting.router.table.costly:
            self._count(node, costly)
            if clients is None or node.state.level < OWNERS_LEVEL:
                continue
            waiting = [request for queue in costly._waiting.values() for request, _ in queue]
            for request in (*costly._running, *waiting):
                self.seen["costly"] += 1
                client = request.connection.peer_address
                if request.connection.forwarded and request.flag & FLAG_ONEWAY:
                    continue  # the node that forwarded it keeps no note of a oneway request
                if client not in clients:
                    yield "costly", f"requests of the client at {client} go on although it is gone"

    def _count(self, node: Node, costly: CostlyRequests) -> None:
        of = Counter(request.user or request.connection.peer_address[0] for request in costly._running)
        for who, count in of.items():
            if count > OF_ONE_MAX:
                self._report("costly", f"node {node.node_id}: {count} requests of {who} at once, {OF_ONE_MAX} at most")
        if of.total() > AT_ONCE_MAX:
            self._report("costly", f"node {node.node_id}: {of.total()} requests at once, {AT_ONCE_MAX} at most")

    # --- memory and log ----------------------------------------------------------------------------------------------

    def _measure(self, node_id: NodeId, node: Node) -> None:
        size = bytes_of((node.serving.broker.denials, node.serving.broker.guesses, node.serving.remoting.admission))
        self.seen["memory"] += 1
        if size > MEMORY_MAX:
            what = f"{size} bytes of judged and denied requests are kept, {MEMORY_MAX} at most"
            self._report("memory", f"node {node_id}: {what}")

    @contextmanager
    def hears_lines(self) -> Iterator[None]:
        """A context in which log lines about denied requests are counted. They are not written anywhere."""
        before = denials.logger
        denials.logger = _Lines(self._said)
        try:
            yield
        finally:
            denials.logger = before

    def _said(self, address: str) -> None:
        process = PROCESS.get()
        if process is None:
            return
        lines = self._lines.setdefault((process, address), deque(maxlen=LINES_MAX))
        self.seen["lines"] += 1
        if len(lines) == LINES_MAX and self._now() - lines[0] < 1.0:
            what = f"more than {LINES_MAX} lines within a second about denied requests from {address}"
            self._report("lines", f"{process.name}: {what}")
        lines.append(self._now())


class _Lines(logging.Logger):
    """A logger that reports the client's address in each line about a denied request, which is the line's first
    argument. It writes nothing. It works also while the simulator silences all other loggers.
    """

    def __init__(self, said: Callable[[str], None]) -> None:
        super().__init__("denials of the simulator")
        self._told = said

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.WARNING

    def _log(self, level: int, msg: object, args: Any, *_: Any, **__: Any) -> None:
        self._told(str(args[0]))


def _registered(node: Node) -> Iterator[tuple[str, str, Member]]:
    members = node.serving.broker.members
    for name, producers in members.producers.items():
        for member in producers.values():
            yield "producer", name, member
    for name, consumers in members.consumers.items():
        for member in consumers.values():
            yield "consumer", name, member


def _may_stay(user: ModelUser | None, role: str, group: str, source: str) -> bool:
    """Returns True if the user may be in the group: as a producer any user that is enabled, as a consumer one that also
    is a Super or has the right Sub on the group. Returns False for None, a user that does not exist."""
    if user is None or not user.enabled:
        return False
    want = Want("Group", group.removeprefix("%RETRY%"), ("Sub",))
    return role == "producer" or user.is_super or user.may(want, source)


def bytes_of(root: object) -> int:
    """Returns an estimate of the bytes that an object keeps: the length of each string and bytes object in it, and 100
    for each container and each object of a measured module (MEASURED). Other objects do not count, and are not looked
    into."""
    total, known, left = 0, set[int](), [root]
    while left:
        one = left.pop()
        if isinstance(one, str | bytes | bytearray):
            total += len(one) if isinstance(one, bytes | bytearray) or one.isascii() else 4 * len(one)
            continue
        if id(one) in known:
            continue
        known.add(id(one))
        if isinstance(one, dict):
            left += one
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset | deque):
            left += one
        elif type(one).__module__.startswith(MEASURED):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            left += [getattr(one, name, None) for name in slots]
            left += getattr(one, "__dict__", {}).values()
        else:
            continue
        total += 100
    return total
