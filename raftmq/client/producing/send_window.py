"""The sends of one producer session that are not settled: their identity, order and deadlines, and the meaning of a
reply. This module does no I/O.

Rules of this file:
 - Each request has a sequence, ascending from 1. It keeps the sequence, and every byte of its frame, however often it
   is sent.
 - `low` is the smallest unsettled sequence: everything below will never be sent again, so servers may forget it.
 - `maybe` is set once an attempt ended without an answer. From then on a refusal no longer proves anything: only a
   success or the deadline settles the request, and the deadline makes it Unknown.
 - Requests that have to be sent again go out in sequence order, before anything new. Those that are over a quota, and
   what is new for their topic, wait for its pace (`raftmq.client.producing.topic_pace`).

Meaning of a reply (docs/client.md has the same table; a test runs every row):

    code             first attempt            after an attempt without an answer
    0, 10, 11, 12    ok                       ok (the server recognises the identity and answers with the original)
    14, 2, 215       again until deadline     again until deadline
    1 [UNKNOWN]      again, maybe             again
    1                Failed                   Unknown
    17, 22, 24, 26   NotFound                 Unknown
    3, 13, 16, 25, 29  Refused                Unknown
    anything else    Unknown                  Unknown
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from raftmq.client.errors import TRY_AGAIN, RaftMQError, Refused, Unknown, Unreachable, error_of
from raftmq.client.port_probe import hint_for
from raftmq.client.producing.topic_pace import TopicPace
from raftmq_wire.codes import ResponseCode, is_unknown

STORED = frozenset((0, 10, 11, 12))
"""Codes that mean "stored": success, and RocketMQ's flush timeout, no replica and replica timeout (weak modes only)."""

LOOK_S = 0.05
"""The shortest time in seconds until the next check of a round that has not ended."""

AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]


class NextStep(Enum):
    """The next step for a request after its reply."""

    OK = "ok"
    AGAIN = "again"
    """The attempt was not carried out: send the request again after a pause."""
    AGAIN_MAYBE = "again maybe"
    """The attempt may have been carried out: send the request again under the same identity to learn the outcome."""
    FINAL = "final"
    """The request is settled with the error of `error_of`."""


def judge(code: int, remark: str | None) -> NextStep:
    """Returns the next step for a reply, by the first column of the module's table; `Pending.maybe` changes only the
    error that FINAL gives."""
    if code in STORED:
        return NextStep.OK
    if code in TRY_AGAIN:
        return NextStep.AGAIN
    return NextStep.AGAIN_MAYBE if is_unknown(code, remark) else NextStep.FINAL


class Pending:
    """One unsettled request. Invariant: `in_flight` means that its bytes were handed to the present connection and are
    unanswered."""

    __slots__ = (
        "batch",
        "deadline",
        "done",
        "frame",
        "future",
        "held_s",
        "in_flight",
        "maybe",
        "message_ids",
        "paced",
        "refusal",
        "sent_at",
        "sequence",
        "size",
        "topic",
        "trouble",
    )

    def __init__(
        self, topic: str, future: AnyFuture, message_ids: tuple[str, ...], size: int, deadline: float, batch: bool
    ) -> None:
        self.sequence = 0
        self.topic = topic
        self.frame = b""
        self.future = future
        self.message_ids = message_ids
        self.size = size
        self.deadline = deadline
        self.batch = batch
        self.in_flight = False
        self.maybe = False
        self.done = False
        self.sent_at = 0.0
        self.held_s = 0.0
        """The seconds for which a leader held the last attempt because of a quota, before it refused the attempt."""
        self.paced = False
        """True while the request is in flight in a round of its topic's pace."""
        self.refusal: tuple[int, str | None] | None = None
        self.trouble = ""
        """Why the connection ended while the request was in flight, with its address; "" if it did not."""


class SendWindow:
    """All unsettled requests of a session, oldest first."""

    def __init__(self, jitter: random.Random) -> None:
        self._order: deque[Pending] = deque()
        self._by_opaque: dict[int, Pending] = {}
        self._next = 1
        self._again = False
        self._jitter = jitter
        self._paces: dict[str, TopicPace] = {}
        """Topic -> its pace, while its sends are refused because of a quota."""

    def __len__(self) -> int:
        return len(self._by_opaque)

    @property
    def low(self) -> int:
        """The lowest unsettled sequence: every sequence below it is settled."""
        order = self._order
        while order and order[0].done:
            order.popleft()
        return order[0].sequence if order else self._next

    @property
    def again(self) -> bool:
        """True if a request waits to be sent again now."""
        return self._again

    def admit(self, pending: Pending) -> int:
        """Adds a request and gives it the next sequence; the opaque on the wire is the sequence's low 31 bits."""
        pending.sequence = self._next
        self._next += 1
        self._order.append(pending)
        self._by_opaque[pending.sequence & 0x7FFFFFFF] = pending
        return pending.sequence

    def find(self, opaque: int) -> Pending | None:
        """Returns the unsettled request to which a reply belongs; None if it has been settled."""
        return self._by_opaque.get(opaque)

    def answer(self, pending: Pending, code: int, remark: str | None, now: float = 0.0) -> NextStep:
        """Processes the reply to a request, which came at `now`. OK and FINAL settle the request; other steps queue it
        to be sent again."""
        verdict = judge(code, remark)
        pending.in_flight = False
        pending.held_s = 0.0
        if self._paces or code == ResponseCode.FLOW_CONTROL:
            self._pace(pending, code, remark, now)
        if verdict is NextStep.OK or verdict is NextStep.FINAL:
            self._settle(pending)
        else:
            self._again = self._again or code != ResponseCode.FLOW_CONTROL  # else the pace of its topic decides
            pending.refusal = (code, remark)
            pending.maybe = pending.maybe or verdict is NextStep.AGAIN_MAYBE
        return verdict

    def _settle(self, pending: Pending) -> None:
        self._leave_round(pending)
        pending.done = True
        pending.frame = b""
        del self._by_opaque[pending.sequence & 0x7FFFFFFF]

    def lost(self, trouble: str = "") -> int:
        """Called when the connection is lost for the reason `trouble`: requests in flight may have been carried out,
        and are marked to be sent again. Returns their number."""
        lost = 0
        for pending in self._order:
            if pending.in_flight and not pending.done:
                self._leave_round(pending)
                pending.in_flight = False
                pending.maybe = True
                pending.trouble = trouble
                self._again = True
                lost += 1
        return lost

    def take_again(self, now: float) -> list[bytes]:
        """Returns the frames to send again, in sequence order; they count as in flight from now. A request stays behind
        if the leader would probably hold it beyond its deadline, because its outcome would then be unknown."""
        self._again = False
        frames = []
        for pending in self._order:
            if (
                not pending.done
                and not pending.in_flight
                and now + pending.held_s <= pending.deadline
                and (not self._paces or self._may_go(pending))
            ):
                pending.in_flight = True
                pending.sent_at = now
                frames.append(pending.frame)
        return frames

    # --- topics over a quota -----------------------------------------------------------------------------------------

    def begin(self, pending: Pending, now: float) -> bool:
        """Returns True if a request that was just admitted may be sent at once, and marks it as in flight. Returns
        False if it must wait for the pace of its topic."""
        if self._paces and not self._may_go(pending):
            return False
        pending.in_flight = True
        pending.sent_at = now
        return True

    def _may_go(self, pending: Pending) -> bool:
        pace = self._paces.get(pending.topic)
        if pace is None:
            return True
        pending.paced = pace.take()
        if not pending.paced and pending.refusal is None:
            pending.refusal = pace.refusal
        return pending.paced

    def _pace(self, pending: Pending, code: int, remark: str | None, now: float) -> None:
        """Reports the reply to the pace of its topic. The first refusal because of a quota creates the pace."""
        self._leave_round(pending)
        pace = self._paces.get(pending.topic)
        if code == ResponseCode.FLOW_CONTROL:
            pending.held_s = now - pending.sent_at
            if pace is None:
                pace = self._paces[pending.topic] = TopicPace(self._jitter, now)
            pace.refused(code, remark, now)
        elif pace is not None and code in STORED:
            pace.stored()

    def _leave_round(self, pending: Pending) -> None:
        if pending.paced:
            pending.paced = False
            pace = self._paces.get(pending.topic)
            if pace is not None:
                pace.ended(1)

    def is_told(self, topic: str) -> bool:
        """Returns True if more than one send to the topic was refused in its round because of a quota."""
        pace = self._paces.get(topic)
        return pace is not None and not pace.is_first

    def next_rounds(self, now: float) -> float | None:
        """Begins the rounds that are due and forgets the paces that are over; `again` is then True for either. Returns
        the seconds until this method must be called next; None if no topic has a pace."""
        for topic, pace in list(self._paces.items()):
            if pace.is_over(now):
                del self._paces[topic]
                self._again = True
            elif pace.next_round(now):
                self._again = True
        return min((max(pace.due - now, LOOK_S) for pace in self._paces.values()), default=None)

    def oldest_sent_at(self) -> float | None:
        """The loop time at which the oldest request in flight was sent; None if none is in flight."""
        return next((p.sent_at for p in self._order if p.in_flight and not p.done), None)

    def expire(self, now: float, why: Callable[[], str] = str) -> list[tuple[Pending, RaftMQError]]:
        """Settles the requests that are past their deadline; returns each with its error. Deadlines ascend with the
        sequence. `why` returns the reason why there is no leader."""
        expired = []
        for pending in self._order:
            if pending.done:
                continue
            if pending.deadline > now:
                break
            self._settle(pending)
            expired.append((pending, out_of_time(pending, why)))
        return expired

    def abandon(self, why: Callable[[], str] = str) -> list[tuple[Pending, RaftMQError]]:
        """Settles all requests as if past their deadline, and returns each with its error, because the producer is
        closed without waiting."""
        return self.expire(float("inf"), why)


def out_of_time(pending: Pending, why: Callable[[], str] = str) -> RaftMQError:
    """Returns the error of a request past its deadline: Unknown if an attempt may have been carried out, else the
    reason why it was not."""
    what, ids = f"send to {pending.topic}", pending.message_ids
    if pending.maybe or pending.in_flight:
        code = pending.refusal[0] if pending.refusal else 0
        said = f"{pending.refusal[1]}; " if pending.refusal and pending.refusal[1] else ""
        met = f"{pending.trouble}; " if pending.trouble else said
        return Unknown(f"{what}: {met}no answer before the deadline; it may be stored", code=code, message_ids=ids)
    if pending.refusal is not None:
        return error_of(*pending.refusal, what, message_ids=ids)
    return never_sent(what, ids, why())


def never_sent(what: str, ids: tuple[str, ...], why: str) -> Unreachable:
    """Returns the error for messages that this client never sent. `why` describes what the servers answered."""
    text = f"{what}: no leader could be reached before the deadline"
    return Unreachable(f"{text} ({why})" if why else text, retryable=True, hint=hint_for(why), message_ids=ids)


def too_large(what: str, size: int, limit: int, ids: tuple[str, ...]) -> Refused:
    """Returns the error for a request larger than a frame may be. The server would close the connection instead of
    answering."""
    return Refused(
        f"{what} is {size} bytes, a frame holds at most {limit}",
        code=ResponseCode.MESSAGE_ILLEGAL,
        hint="Split it, or store the payload elsewhere and send its address.",
        message_ids=ids,
    )
