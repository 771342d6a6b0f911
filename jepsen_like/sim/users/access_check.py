"""The check of users and access rules: derives from the log which requests should have been allowed, where, and when.

A node decides by what it has applied. So a request is judged by the states that the node with the client's connection
went through between the request and the answer, and a write also by the states of the leader that stored it. The check
reports

- a request that was let through although no state of the node with its connection allows it,
- a message that was stored although no state of its leader, between the request and the entry, allows it to its user,
- a pull that was given a message although no state since the message's own entry allows the pull,
- a request that was denied although every state of every node in that time allows it. For a denial by a follower, the
  states count from the index that the leader had applied when the client asked (ADR 0104).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cluster.node.node import Node
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import id_of
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.users.access_model import AccessModel, ModelUsers, Reveal, Want, Who, is_allowed, is_allowed_by_id
from raftlog.errors import DamagedLogError
from raftlog.types import Entry, EntryType, NodeId
from raftmq_wire.message_format import decode_messages
from statemachine import payload
from statemachine.command_table import in_entry, unpack
from statemachine.commands import Found

ID_PREFIX = "judged-"
"""Prefix of the ids of messages that this check judges."""


@dataclass(slots=True, eq=False)
class Request:
    """One request of a client: its signer, the resources it touches, and the outcome as the client saw it. Times are in
    seconds."""

    what: str
    who: Who
    wants: tuple[Want, ...]
    node: NodeId
    """The node that the client is connected to."""
    asked_s: float
    message_id: str = ""
    """Id of the message that the request sends; empty for other requests."""
    answered_s: float = -1.0
    passed: bool = False
    """True if the node let the request through."""
    denied: bool = False
    given: list[str] = field(default_factory=list)
    """Ids of the judged messages that the answer carried."""
    committed: int = 0
    """The highest index that any node knew to be committed when the answer came. No node can have decided by a later
    entry.
    """
    known: int = 0
    """The index that the leader had applied when the client asked; no change acknowledged by then is above it. 0 if
    there was no leader, if the asked node led or leads by now, or if it did not know how to ask a leader.
    """


class _Heard:
    """One node's applied index over time, as apply reached it and as the node learned it."""

    def __init__(self) -> None:
        self._told: tuple[list[float], list[int]] = [], []
        """(times in seconds, applied indexes): at each time the node learned that it had applied up to that index."""
        self._done: tuple[list[float], list[int]] = [], []
        """(times in seconds, applied indexes): at each time apply had reached that index, which the node may not know
        yet."""

    def done(self, now_s: float, index: int) -> None:
        """Records that apply has reached this index."""
        self._done[0].append(now_s)
        self._done[1].append(index)

    def told(self, now_s: float, index: int) -> None:
        """Records that the node knows that apply has reached this index."""
        self._told[0].append(now_s)
        self._told[1].append(index)

    def low(self, from_s: float, to_s: float) -> int:
        """Returns the lowest applied index by which the node may have decided between these two times."""
        times, indexes = self._told
        begin = max(0, bisect_left(times, from_s) - 1)
        return min(indexes[begin : bisect_right(times, to_s)], default=0)

    def high(self, to_s: float, otherwise: int) -> int:
        """Returns the highest applied index by which the node may have decided until `to_s`, or `otherwise` if it has
        applied nothing since. The node may have seen the effects of an apply that is still in progress."""
        times, indexes = self._done
        at = bisect_right(times, to_s)
        return max(indexes[max(0, at - 1)], indexes[at]) if at < len(times) else otherwise

    def known(self, at_s: float) -> int:
        """Returns the applied index that the node knew of at this time; 0 if none."""
        at = bisect_right(self._told[0], at_s)
        return self._told[1][at - 1] if at else 0

    def is_settled(self, until_s: float) -> bool:
        """Returns True if the node has applied further entries since `until_s`."""
        return bool(self._done[0]) and self._done[0][-1] > until_s


class AccessCheck:
    """Judges the answers to requests of users. It receives all entries that nodes apply, and all requests and answers
    of the clients of `user_clients`."""

    def __init__(
        self, report: Report, now: Callable[[], float], leader_of: Callable[[int], NodeId | None], reveal: Reveal
    ) -> None:
        """`leader_of`: returns the node that led a term, None if unknown."""
        self._report = report
        self._now = now
        self._leader_of = leader_of
        self.model = AccessModel(reveal)
        self._heard: defaultdict[NodeId, _Heard] = defaultdict(_Heard)
        self._sent: dict[str, Request] = {}
        self._stored: dict[str, tuple[int, NodeId | None]] = {}
        """Message id -> index of the message's entry, and the node that led the entry's term."""
        self._machines: dict[NodeId, Machine] = {}
        self._committed = 0
        """The highest index that any node has known to be committed."""
        self._open: list[Request] = []
        """Requests that were answered and are not judged yet."""
        self.judged = {"passed": 0, "denied": 0}
        """Outcome ("passed" or "denied") -> number of requests with it that were judged."""

    # --- nodes -------------------------------------------------------------------------------------------------------

    def started(self, machine: Machine) -> None:
        """Records that a node has recovered, or has installed a snapshot."""
        self._machines[machine.node_id] = machine
        self.applied(machine, ())
        self.heard(machine)

    def applied(self, machine: Machine, batch: Iterable[Sequence[Entry]]) -> None:
        """Records the entries that a node has applied, and judges the requests that this settles."""
        assert machine.node is not None
        for run in batch:
            for entry in run:
                if entry.index > self.model.index + 1:
                    self._catch_up(machine, entry.index)
                if entry.index > self.model.index:
                    self._learn(entry)
        self._heard[machine.node_id].done(self._now(), machine.node.state.applied.index)
        self._judge_settled()

    def _catch_up(self, machine: Machine, index: int) -> None:
        """Learns the entries below `index` from this node's log: a node does not report the entries that it applies as
        it opens (seed 130787260)."""
        assert machine.node is not None
        with suppress(DamagedLogError):  # another node has reported these entries
            for entry in machine.node.storage.directory.log.read_entries(self.model.index + 1, index, 1 << 30):
                self._learn(entry)

    def heard(self, machine: Machine) -> None:
        """Records that a node knows what it has applied."""
        assert machine.node is not None
        self._heard[machine.node_id].told(self._now(), machine.node.state.applied.index)

    def makes_sure(self, node_id: NodeId) -> bool:
        """Returns True if the node asks a leader before it denies a request."""
        machine = self._machines.get(node_id)
        return machine is not None and machine.node is not None and machine.node.serving.confirmed.is_possible

    def _running(self) -> list[Node]:
        return [machine.node for machine in self._machines.values() if machine.node is not None]

    def _led(self) -> int:
        """Returns the lowest index that the leading nodes have applied; 0 if none leads."""
        return min(
            (node.state.applied.index for node in self._running() if node.serving.services.writes_open()), default=0
        )

    def look(self) -> int:
        """Returns the highest index that any node has known to be committed so far."""
        known = (node.raw.commit_index for node in self._running())
        self._committed = max([self._committed, self.model.index, *known])
        return self._committed

    def unlearned(self) -> int:
        """Returns the highest index that any node has applied, if the model has not learned the log up to there yet;
        else 0.
        """
        applied = max((node.state.applied.index for node in self._running()), default=0)
        return applied if applied > self.model.index else 0

    def _learn(self, entry: Entry) -> None:
        known: list[Found] = []
        if entry.type in (EntryType.COMMAND, EntryType.CHANGE):
            known = in_entry(entry.type, entry.payload)
        elif entry.type == EntryType.MESSAGES:
            decoded = payload.decode(entry.payload)
            known = unpack(decoded.effects)
            self._messages(entry, entry.payload[payload.HEAD.size :][: decoded.messages_len])
        self.model.learn(entry.index, known)

    def _messages(self, entry: Entry, stored: bytes) -> None:
        if ID_PREFIX.encode() not in stored:
            return
        for message in decode_messages(stored):
            # Hostile clients send bodies that are not text. Their messages may share entries with judged ones.
            request = self._sent.get(id_of(message.body)) if message.body.startswith(ID_PREFIX.encode()) else None
            if request is not None:
                self._stored[request.message_id] = entry.index, self._leader_of(entry.term)
                self._judge_stored(request, entry)

    # --- clients -----------------------------------------------------------------------------------------------------

    def asks(self, request: Request) -> None:
        """Records a request that a client is about to send."""
        self.look()
        request.known = self._led() if self.makes_sure(request.node) else 0
        if request.message_id:
            self._sent[request.message_id] = request

    def answered(self, request: Request, *, passed: bool, denied: bool, given: Iterable[str] = ()) -> None:
        """Records the answer to a request and the ids of the messages in it. An answer that is neither `passed` nor
        `denied` says nothing about rights and is not judged."""
        request.answered_s, request.passed, request.denied = self._now(), passed, denied
        request.given = [each for each in given if each.startswith(ID_PREFIX)]
        request.committed = self.look()
        if not self.makes_sure(request.node):
            request.known = 0
        if passed or denied:
            self._open.append(request)

    # --- verdicts ----------------------------------------------------------------------------------------------------

    def _judge_settled(self) -> None:
        while self._open and self._is_settled(self._open[0]):
            self._judge(self._open.pop(0))

    def _is_settled(self, request: Request) -> bool:
        """Returns True if the model has every entry by which a node may have decided. The leader may have answered
        while it was applying an entry that no node has reported yet."""
        return self.model.index >= request.committed and self._heard[request.node].is_settled(request.answered_s)

    def states_since(self, from_s: float) -> Iterator[ModelUsers]:
        """Yields the states of the users by which any node may have decided from this time in seconds on."""
        low = min((heard.low(from_s, self._now()) for heard in self._heard.values()), default=0)
        return self.model.states(low, self.model.index)

    def had_applied(self, node: NodeId, index: int, by_s: float) -> bool:
        """Returns True if the node knew at this time in seconds that it had applied the log up to `index`."""
        return self._heard[node].known(by_s) >= index

    def was_open_since(self, node: NodeId, from_s: float) -> bool:
        """Returns True if from this time in seconds on the node may have let everybody do everything: it was restarted,
        and had applied less than the switch to enforce (seed 760000070)."""
        return self.model.is_open(self._heard[node].low(from_s, self._now()))

    def judge_all(self) -> None:
        """Checks all requests that are still open, at the end of a run."""
        while self._open:
            self._judge(self._open.pop(0))

    def _judge(self, request: Request) -> None:
        self.judged["passed" if request.passed else "denied"] += 1
        if request.denied:
            self._judge_denied(request)
            return
        heard = self._heard[request.node]
        low, high = heard.low(request.asked_s, request.answered_s), heard.high(request.answered_s, self.model.index)
        if not self._allowed(request, low, high):
            self._tell(request, f"was let through, and the node went from {low} to {high}")
            return
        for message_id in request.given:
            self._judge_given(request, message_id)

    def _judge_given(self, request: Request, message_id: str) -> None:
        at, leader = self._stored.get(message_id, (self.model.index, None))
        high = max(heard.high(request.answered_s, self.model.index) for heard in self._heard.values())
        # A node that is behind may accept a signature with an old secret, and the leader trusts the node's statement of
        # who has signed.
        user_id = self.model.id_of(request.who) if request.node != leader else 0
        for users in self.model.states(at, high):
            if is_allowed(users, request.who, request.wants):
                return
            if user_id and is_allowed_by_id(users, user_id, request.who, request.wants):
                return
        self._tell(request, f"was given {message_id} of entry {at}")

    def _judge_stored(self, request: Request, entry: Entry) -> None:
        leader = self._leader_of(entry.term)
        low = 0 if leader is None else self._heard[leader].low(request.asked_s, self._now())
        user_id = self.model.id_of(request.who)  # the leader trusts another node's statement of who signed
        states = self.model.states(min(low, entry.index - 1), entry.index - 1)
        if not any(is_allowed_by_id(users, user_id, request.who, request.wants) for users in states):
            self._tell(request, f"is in entry {entry.index}; its leader, node {leader}, had applied {low} before")

    def _judge_denied(self, request: Request) -> None:
        all_heard = self._heard.values()
        low = max(request.known, min(heard.low(request.asked_s, request.answered_s) for heard in all_heard))
        high = max(heard.high(request.answered_s, self.model.index) for heard in all_heard)
        states = self.model.states(low, high)
        if all(is_allowed(users, request.who, request.wants) for users in states):
            self._tell(request, f"is denied, and every state from {low} to {high} allows it")

    def _allowed(self, request: Request, low: int, high: int) -> bool:
        return self.model.is_open(low) or any(
            is_allowed(users, request.who, request.wants) for users in self.model.states(low, high)
        )

    def _tell(self, request: Request, what: str) -> None:
        who = request.who.name or "nobody"
        self._report(
            "users", f"{request.what} of {who} at node {request.node}, asked at {request.asked_s:.4f} s, {what}"
        )
