"""Commits of offsets that carry an identity: done once, however often they come.

What was done is in the log as a session of its sender, like that of a producer, so the next leader knows it too. A
sender says with each commit which of its older ones it has settled: one of those that comes late moves nothing back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Services
from cluster.replication.outcome import Done, Outcome, ProposeResult
from statemachine import commands
from statemachine.payload import SESSION_ROW, SessionRows

SENDERS_MAX = 65_536
UNSETTLED_MAX = 4096
"""Per sender: a consumer has one for each of its queues."""


class Name(NamedTuple):
    """The identity of a commit."""

    sender: bytes
    sequence: int
    low: int
    """Everything below is settled at the sender."""


class _Sender:
    __slots__ = ("low", "proposed")

    def __init__(self) -> None:
        self.low = 0
        self.proposed: set[int] = set()
        """From `low` on, by this node."""


class NamedCommits:
    """What this node, while it leads, knows of them besides the log."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._senders: OrderedDict[bytes, _Sender] = OrderedDict()

    def commit(self, row: list[object], name: Name, done: Done) -> None:
        """Proposes the row [group, topic_id, queue_id, offset] unless that was done; `done` hears the
        outcome either way. Raises Refused."""
        sender = self._sender(name)
        if name.sequence in sender.proposed and not self._is_done(name):
            self._wait_for_first(row, name, done)
        elif self._is_done(name):
            done(self._done(row))
        else:
            self._propose(row, name, done)

    def _sender(self, name: Name) -> _Sender:
        session = self._services.state.session(name.sender)
        sender = self._senders.setdefault(name.sender, _Sender())
        self._senders.move_to_end(name.sender)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        low = max(name.low, sender.low, session.low_sequence if session is not None else 0)
        if low > sender.low:
            sender.low = low
            sender.proposed = {sequence for sequence in sender.proposed if sequence >= low}
        if name.sequence < low:
            remark = f"commit {name.sequence} is too late: its sender has settled all commits below {low}"
            raise Refused(Reason.INVALID, remark)
        if len(sender.proposed) >= UNSETTLED_MAX:
            raise Refused(Reason.INVALID, f"more than {UNSETTLED_MAX} commits are not settled")
        return sender

    def _is_done(self, name: Name) -> bool:
        session = self._services.state.session(name.sender)
        return session is not None and session.find(name.sequence) is not None

    def _done(self, row: list[object]) -> ProposeResult:
        exists = row[1] in self._services.state.topics_by_id
        return ProposeResult(Outcome.OK, [commands.done() if exists else commands.not_found("topic")], None, "")

    def _propose(self, row: list[object], name: Name, done: Done) -> None:
        self._senders[name.sender].proposed.add(name.sequence)
        place = SESSION_ROW.pack(name.sequence, row[1], row[2], row[3], 0)
        session = SessionRows(name.sender, name.low, name.sequence, place)
        run: list[commands.Command] = [[commands.COMMIT_OFFSETS, [row]]]
        self._services.propose(run, done, session)

    def _wait_for_first(self, row: list[object], name: Name, done: Done) -> None:
        """It is on its way, or was lost with an earlier term of office: what is proposed now comes behind it."""

        def decided(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(ProposeResult(Outcome.UNKNOWN, [], None, "the same commit arrived before, and is undecided"))
            elif self._is_done(name):
                done(self._done(row))
            else:
                remark = "an earlier attempt was lost with its leader; nothing was done, try again"
                sender = self._senders.get(name.sender)
                if sender is not None:
                    sender.proposed.discard(name.sequence)
                done(ProposeResult(Outcome.FAIL, [], None, remark))

        self._services.propose([], decided)
