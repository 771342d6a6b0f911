"""The check of marks: reads every byte that a node writes to a client, and reports marks (`jepsen_like.marks`) that no
user proven on that connection may read.

A connection proves a user by a request with a right signature, by the check's own model of users. From then on it may
be given what that user may read: messages of topics that the user may subscribe to or look at, half messages of topics
to which the user may send, and replies to the user. What the user was allowed in any state of the last GRACE_S seconds
counts, because an answer may have been made then. Connections of a Super are not read further.

The node may know a changed secret before the model does. So requests with a signature that nobody can have made yet are
kept, and looked at again before anything is reported (seed 760000144). While the model lacks an entry that a node has
applied, nothing is reported: the frame is judged again when it has learned that entry (seed 964000031).

While not every node reaches all others, a reply may go to another user's client with the requester's client id. The
node that knows who waits for the reply may then be out of reach, and the reply goes to the one client that is known
(seed 790000194).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from jepsen_like.client_kit.frames import frames_of
from jepsen_like.marks import MarkedStream
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.network import Address
from jepsen_like.sim.users.access_check import AccessCheck
from jepsen_like.sim.users.access_model import ModelUser, ModelUsers, Want
from raftlog.types import NodeId
from raftmq_wire.codec import CodecError, Header, ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import ACCESS_KEY, SIGNATURE, content, is_right

CHECKER: Final = "marks"
GRACE_S: Final = 2.0
"""Time in seconds for which a right that was taken away may still have an effect."""
REPLY_TO: Final = "reply-to/"
"""Prefix of the marks of replies, which are in no topic; the name of the user who asked follows."""
UNPROVEN_MAX: Final = 200
"""The most requests of a connection that are kept because, as far as the model knows, no user can have signed them yet.
"""
_GROUP_TOPICS: Final = ("%RETRY%", "%DLQ%")


class _Doubt(NamedTuple):
    """A mark that no user on the connection may read, as far as the model knows."""

    stream: ClientStream
    header: Header | None
    topic: str
    since_s: float
    """The time in seconds from which on states of the users count."""
    settled_at: int
    """Index of the entry that the model has to learn before the doubt is decided; 0 if none."""


class MarkCheck:
    """Checks the marks in all bytes that nodes send to clients in a run. The observers that `watch` returns report the
    bytes."""

    def __init__(
        self, report: Report, now: Callable[[], float], access: AccessCheck, linked: Callable[[], bool]
    ) -> None:
        """`linked`: returns True if every node reaches all others."""
        self._report, self._now, self._access, self._linked = report, now, access, linked
        self._apart_s = float("-inf")
        """Virtual time in seconds at which some node was last seen not to reach another."""
        self._doubts: deque[_Doubt] = deque()
        self.read = 0
        """Number of marks that were found where they are allowed, on connections of users who are not Supers."""

    def look(self) -> None:
        """Notes whether every node reaches all others. Must be called several times in GRACE_S."""
        if not self._linked():
            self._apart_s = self._now()

    def judge_doubts(self) -> None:
        """Decides the doubts that had to wait for an entry that the model has learned by now. Must be called often, and
        at the end."""
        while self._doubts and self._doubts[0].settled_at <= self._access.model.index:
            doubt = self._doubts.popleft()
            if self._is_wrong(doubt, list(self._access.states_since(doubt.since_s))):
                return

    def watch(self, client: Address, node: Address) -> ClientStream:
        """Returns the observer of the bytes of a new connection between a client and a node."""
        node_id = NodeId(int(node[0].rpartition(".")[2]))
        return ClientStream(self, client[0], node_id, f"{client[0]}:{client[1]} at {node[0]}:{node[1]}")

    def proves(self, header: Header, body: bytes) -> Iterator[ModelUser]:
        """Yields the users, as of any index of the log, who may have signed this request."""
        try:
            ext = ext_of(header)
        except CodecError:
            return
        name, signature = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        if not name or not signature:
            return
        signed = content(ext, body)
        known: set[tuple[int, str]] = set()
        for users in self._access.model.states(0, self._access.model.index):
            user = users.get(name)
            if user is not None and (user.id, user.secret) not in known:
                known.add((user.id, user.secret))
                if is_right(user.secret.encode(), signed, signature):
                    yield user

    def found(self, stream: ClientStream, header: Header | None, topics: Iterable[str]) -> None:
        """Checks the marks of one frame that a node has written to a client."""
        since_s = self._now() - GRACE_S
        if self._access.was_open_since(stream.node, since_s):
            return
        states, unlearned = list(self._access.states_since(since_s)), self._access.unlearned()
        for topic in topics:
            doubt = _Doubt(stream, header, topic, since_s, unlearned)
            if unlearned and not self._may(doubt, states):
                self._doubts.append(doubt)
            elif self._is_wrong(doubt, states):
                return

    def _may(self, doubt: _Doubt, states: list[ModelUsers]) -> bool:
        stream, header = doubt.stream, doubt.header
        is_half = header is not None and header.code == RequestCode.CHECK_TRANSACTION_STATE
        actions = ("Pub",) if is_half else ("Sub", "Get")
        return any(
            _may_read(users, user_id, doubt.topic, stream.source, actions)
            for users in states
            for user_id in stream.users
        )

    def _is_wrong(self, doubt: _Doubt, states: list[ModelUsers]) -> bool:
        """Reports the mark and returns True if no user on the connection may read it."""
        stream, header, topic = doubt.stream, doubt.header, doubt.topic
        if self._may(doubt, states):
            self.read += 1
            return False
        stream.look_again()
        if stream.is_super or self._may(doubt, states) or (topic.startswith(REPLY_TO) and self._may_lack_notes()):
            return False
        names = sorted({name for users in states for name, user in users.items() if user.id in stream.users})
        what = "bytes that are no frame" if header is None else f"a frame of code {header.code}"
        self._report(
            CHECKER, f"{what} with a message of {topic} goes to {stream.name}, of {', '.join(names) or 'nobody'}"
        )
        return True

    def _may_lack_notes(self) -> bool:
        """Returns True if some node did not reach another within the last GRACE_S seconds. It may then have failed to
        ask the other node who waits for a reply."""
        self.look()
        return self._now() - self._apart_s <= GRACE_S


class ClientStream:
    """Observes the bytes of one connection of a client, as the node at its other end reads and writes them."""

    def __init__(self, check: MarkCheck, source: str, node: NodeId, name: str) -> None:
        self._check, self.source, self.node, self.name = check, source, node, name
        self.users: set[int] = set()
        """Ids of the users that are proven on the connection."""
        self.is_super = False
        """True once a Super is proven on the connection."""
        self._unproven: deque[tuple[Header, bytes]] = deque(maxlen=UNPROVEN_MAX)
        """Requests that nobody can have signed, as far as the model knew when they came."""
        self._asked: bytearray | None = bytearray()
        self._given = MarkedStream()

    def received(self, data: bytes) -> None:
        """Records bytes that the node is about to read."""
        if self.is_super or self._asked is None:
            return
        self._asked += data
        try:
            for header, body in frames_of(self._asked):
                if not self._proves(header, body):
                    self._unproven.append((header, body))
        except CodecError:
            self._asked = None  # the node closes such a connection

    def look_again(self) -> None:
        """Looks again at the kept requests: the model may by now know the secret with which one was signed, and so its
        user.
        """
        for header, body in self._unproven:
            self._proves(header, body)

    def _proves(self, header: Header, body: bytes) -> bool:
        found = list(self._check.proves(header, body))
        self.users.update(user.id for user in found)
        self.is_super |= any(user.is_super for user in found)
        return bool(found)

    def sent(self, data: bytes) -> None:
        """Checks bytes that the node has written."""
        if not self.is_super:
            for header, topics in self._given.take(data):
                self._check.found(self, header, topics)

    def ended(self) -> None:
        """Checks the beginning of a frame that was never finished."""
        if not self.is_super and (topics := self._given.rest()):
            self._check.found(self, None, topics)


def _may_read(users: ModelUsers, user_id: int, topic: str, source: str, actions: tuple[str, ...]) -> bool:
    for name, user in users.items():
        if user.id != user_id or not user.enabled:
            continue
        if topic.startswith(REPLY_TO):
            return topic == REPLY_TO + name
        group = next((topic.removeprefix(prefix) for prefix in _GROUP_TOPICS if topic.startswith(prefix)), None)
        want = Want("Topic", topic, actions) if group is None else Want("Group", group, actions)
        return user.is_super or user.may(want, source)
    return False
