"""The part of a producer that runs on the event loop: one session, one connection to the leader, many requests in
flight.

Life of a send: `submit` (any order of topics, one order per producer) -> route known, sequence given, frame built -> in
flight -> reply -> settled. On trouble the window says which requests to send again; they go out before anything new.

There is one connection at a time. The pipeline drops it when it breaks, when no request is answered for an attempt's
time, or when another node leads; then all unanswered requests are sent again, with the same bytes, to the new leader.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from raftmq.client.cluster_view import ROUTE_LIFE_S, Backoff, ClusterView, why_not
from raftmq.client.connection import Connection, dial
from raftmq.client.errors import (
    TOO_MUCH,
    Failed,
    NotFound,
    RaftMQError,
    Refused,
    Unknown,
    error_of,
    is_disk_full,
)
from raftmq.client.message import SendResult, position_of
from raftmq.client.producing.send_frame import FrameWriter, SendRequest, Submission, queue_of_key
from raftmq.client.producing.send_window import AnyFuture, NextStep, Pending, SendWindow, never_sent
from raftmq.client.retries import Retry
from raftmq.client.send_room import Room
from raftmq_wire.codec import Header, remark_as_written
from raftmq_wire.codes import ResponseCode
from raftmq_wire.queue_numbers import group_of, number_of


class _SendReply(msgspec.Struct, gc=False):
    queueId: int  # field names of the protocol
    queueOffset: int
    msgId: str = ""
    recallHandle: str = ""


_decode_reply = msgspec.json.Decoder(_SendReply, strict=False).decode


def read_result(pending: Pending, header: Header, first_queue: int = 0) -> SendResult | list[SendResult]:
    """Returns one result, or one per message of a batch, whose offsets are consecutive. `first_queue`: the number of
    queue 0 of the group of brokers that answers. Raises Unknown if the reply reports success but no place."""
    ids = pending.message_ids
    try:
        reply = _decode_reply(header.extFields or b"{}")
    except msgspec.DecodeError as error:
        text = f"send to {pending.topic}: the success reply is not understood: {error}"
        raise Unknown(text, message_ids=ids) from error
    queue_id = first_queue + reply.queueId
    if not pending.batch:
        return SendResult(ids[0], queue_id, reply.queueOffset, position_of(reply.msgId), reply.recallHandle)
    positions = [position_of(i) for i in reply.msgId.split(",")]
    positions += [-1] * (len(ids) - len(positions))
    return [
        SendResult(message_id, queue_id, reply.queueOffset + n, position)
        for n, (message_id, position) in enumerate(zip(ids, positions, strict=False))
    ]


def settle(future: AnyFuture, result: SendResult | list[SendResult] | None, error: Exception | None) -> None:
    """Sets the result, or the error, of a future, unless the caller cancelled it."""
    with contextlib.suppress(asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


logger = logging.getLogger("raftmq")


class FlushResult(NamedTuple):
    """The numbers of requests that a producer settled since its last flush, by outcome; a batch is one request.

    `first_error` is the error of the earliest request that did not succeed; the futures hold all errors.
    """

    stored: int = 0
    failed: int = 0
    """Requests that were not stored: they ended with Failed, Refused or NotFound."""
    unknown: int = 0
    """Requests that may be stored: they ended with Unknown."""
    first_error: RaftMQError | None = None

    @property
    def all_stored(self) -> bool:
        """True if every request was stored."""
        return not self.failed and not self.unknown

    def raise_for_errors(self) -> None:
        """Raises `first_error` if there is one, with a note that says how many more there are."""
        if self.first_error is not None:
            more = self.failed + self.unknown - 1
            if more:
                self.first_error.add_note(f"and {more} more sends of this producer were not stored, or may not be")
            raise self.first_error

    def and_failed(self, error: RaftMQError) -> FlushResult:
        """Returns the numbers with one request moved from `stored` to failed or unknown, by the class of `error`.
        `and_settled` counts every settled request as stored, also this one."""
        unknown = isinstance(error, Unknown)
        failed, unknowns, first = self.failed + (not unknown), self.unknown + unknown, self.first_error or error
        return FlushResult(self.stored - 1, failed, unknowns, first)

    def and_those(self, others: FlushResult) -> FlushResult:
        """Returns the sums of both, with the first error of either."""
        first = self.first_error or others.first_error
        stored, failed = self.stored + others.stored, self.failed + others.failed
        return FlushResult(stored, failed, self.unknown + others.unknown, first)

    def and_settled(self, requests: int) -> FlushResult:
        """Returns the outcomes with `requests` more requests counted as stored."""
        return self._replace(stored=self.stored + requests)


_SWEEP_S = 0.1
_DOUBT_S = 0.4
"""Seconds without an answer after which the other nodes are asked who leads, while the requests stay where they are: a
node that hangs, or that the others do not reach, keeps its connections open. Each further question waits
_DOUBT_GROWS times as long, because a cluster that is only slow must not be asked by all of its clients."""
_DOUBT_GROWS = 2.5
_TOLD_EVERY_S = 30.0
"""Interval in seconds at which the producer logs that a full disk refuses its sends; the first time is at once."""
_OLDEST_ATTEMPTS = 3
"""Number of attempt times after which a request that is still unanswered counts as lost, on a connection that answers
others."""


class SendPipeline:
    """Sends the requests of a producer; it owns a SendWindow and its connection. Everything but `submit` and `wake`
    runs on the loop."""

    def __init__(self, view: ClusterView, room: Room, *, group: str, timeout_s: float, attempt_s: float) -> None:
        self.view = view
        self.timeout_s = timeout_s
        self.loop = asyncio.get_running_loop()
        self.producer_id = view.environment.entropy(16)
        self._room = room
        self._attempt_s = attempt_s
        self._frames = FrameWriter(group, self.producer_id, view.environment.credentials)
        self._window = SendWindow(view.jitter)
        self._incoming: deque[Submission] = deque()
        self._mine = self._incoming
        """Sends for this group of brokers. While the cluster is not known to have several groups, this is `_incoming`
        itself."""
        self._first_queue = number_of(view.group, 0)
        self._elsewhere: Callable[[int], SendPipeline | None] | None = None
        self._is_stuck = False
        """True while nothing is answered, or no leader is found. Messages that may go to another group then go
        there."""
        self._link: Connection | None = None
        self._linking: asyncio.Task[None] | None = None
        self._routing: dict[str, asyncio.Task[None]] = {}
        self._holding: asyncio.TimerHandle | None = None
        self._pacing: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._doubt_s = _DOUBT_S
        """Seconds of silence after which the next question about the leader is asked."""
        self._backoff = Backoff(view.jitter)
        self._lost_in_a_row = 0
        self._progress_at = 0.0
        self._told_at = float("-inf")
        self._turns: dict[str, int] = {}
        self._awake = False
        self._given_back = [0, 0]
        self._outcomes = FlushResult()
        """The outcomes since the last flush."""

    def sort_out_with(self, elsewhere: Callable[[int], SendPipeline | None]) -> None:
        """Makes this pipeline the entry point of all sends. `elsewhere` returns the pipeline of another group of
        brokers, None for a number that no other group has."""
        self._elsewhere = elsewhere

    # -- from any thread

    def submit(self, submission: Submission, from_loop: bool) -> None:
        """Queues a send, for which room in `Room` was already taken."""
        self._incoming.append(submission)
        if not self._awake:
            self._awake = True
            if from_loop:
                self.loop.call_soon(self._run)
            else:
                self.loop.call_soon_threadsafe(self._run)

    # -- on the loop

    def _run(self) -> None:
        """Sends the requests that may be sent. Called after every change; does nothing when there is nothing to do."""
        self._awake = False
        if self._incoming and self._elsewhere is not None and self.view.groups.several:
            self._sort_out(self._elsewhere)
        if not self._incoming and not self._mine and not len(self._window):
            return
        self._arm_sweep()
        if not self._mine and not len(self._window):
            return
        link = self._link
        if link is None or link.closed:
            self._relink()
            return
        if self._holding is not None or self._linking is not None:
            return
        now = self.loop.time()
        if self._window.oldest_sent_at() is None:
            self._progress_at = now
        frames = self._window.take_again(now) if self._window.again else []
        self._take_incoming(frames, now)
        if frames:
            link.write(frames)

    def _sort_out(self, elsewhere: Callable[[int], SendPipeline | None]) -> None:
        """Chooses the queue of each send, and hands sends for other groups of brokers to the pipelines of these, so
        that they do not wait for this group. Stops at a send whose topic's route must be fetched first."""
        if self._mine is self._incoming:
            self._mine = deque()
        incoming, now = self._incoming, self.loop.time()
        while incoming:
            submission = incoming[0]
            request = submission.request
            number = request.queue_id if request.queue_id is not None else self._choose_queue(request, now)
            if number is None:
                return
            incoming.popleft()
            sorted_out = submission._replace(request=request._replace(queue_id=number))
            pipeline = elsewhere(group_of(number))
            if pipeline is None:
                self._mine.append(sorted_out)
            else:
                pipeline.submit(sorted_out, from_loop=True)

    def _take_incoming(self, frames: list[bytes], now: float) -> None:
        incoming = self._mine
        born_ms = self.view.environment.now_ms()
        while incoming:
            request, future, deadline = incoming[0]
            queue_id = request.queue_id if request.queue_id is not None else self._choose_queue(request, now)
            if queue_id is None:
                return
            incoming.popleft()
            if queue_id < 0:
                text = f"topic {request.topic} has no queue that takes messages"
                self._fail(request, future, Refused(text, code=ResponseCode.NO_PERMISSION))
                continue
            pending = Pending(request.topic, future, request.message_ids, request.size, deadline, request.batch)
            sequence = self._window.admit(pending)
            plain_id = queue_id - self._first_queue
            pending.frame = self._frames.frame(request, plain_id, sequence, self._window.low, born_ms)
            if self._window.begin(pending, now):
                frames.append(pending.frame)

    def _choose_queue(self, request: SendRequest, now: float) -> int | None:
        """Returns a queue id for the request; -1 if no queue takes messages; None if the route has to be fetched
        first."""
        topic = request.topic
        route = self.view.known_route(topic)
        if route is None or now - route.fetched_at > ROUTE_LIFE_S:
            self._ask_route(topic)
            if route is None:
                return None
        queues = route.writable
        if not queues:
            return -1
        if request.ordering_key is not None:
            return queues[queue_of_key(request.ordering_key, len(queues))]
        turn = self._turns.get(topic)
        if turn is None:
            turn = self.view.jitter.randrange(len(queues))
        self._turns[topic] = turn + 1
        if len(route.groups) == 1:
            return queues[turn % len(queues)]
        return self._next_answered(queues, topic, turn)

    def _next_answered(self, queues: Sequence[int], topic: str, turn: int) -> int:
        """Returns the next queue in turn among those whose groups answer; among all queues if no group does."""
        for further in range(len(queues)):
            queue = queues[(turn + further) % len(queues)]
            other = self._elsewhere and self._elsewhere(group_of(queue))
            if (other or self)._answers():
                self._turns[topic] = turn + further + 1
                return queue
        return queues[turn % len(queues)]

    def _answers(self) -> bool:
        """Returns True unless nothing is answered at present. Looks for a leader if none is known."""
        if self._link is None and self.view.leader is None:
            self._relink()
            return False
        return not self._is_stuck

    def _ask_route(self, topic: str) -> None:
        if topic not in self._routing:
            self._routing[topic] = self.loop.create_task(self._fetch_route(topic))

    async def _fetch_route(self, topic: str) -> None:
        try:
            await self.view.route(topic, timeout_s=self.timeout_s, auto_create=True, fresh=True)
        except RaftMQError as error:
            if self.view.known_route(topic) is None or isinstance(error, NotFound):
                self.view.forget_route(topic)
                self._refuse_topic(topic, error)
        finally:
            del self._routing[topic]
        self._run()

    def _refuse_topic(self, topic: str, error: RaftMQError) -> None:
        """Settles all requests that wait for the route of a topic, with the error for which it cannot be fetched; none
        of them was sent."""
        kept: deque[Submission] = deque()
        while self._incoming:
            item = self._incoming.popleft()
            if item.request.topic == topic and item.request.queue_id is None:
                self._fail(item.request, item.future, error.about(item.request.message_ids))
            else:
                kept.append(item)
        self._incoming.extend(kept)

    def _fail(self, request: SendRequest, future: AnyFuture, error: RaftMQError) -> None:
        settle(future, None, error)
        self._outcomes = self._outcomes.and_failed(error).and_settled(1)
        self._room.give_back(1, request.size)

    # -- connection

    def _relink(self) -> None:
        if self._linking is None:
            self._linking = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Connects to a leader, and repeats this until it succeeds. `_rest` cancels it when nothing is left to send."""
        try:
            if self._lost_in_a_row > 1:
                await self._backoff.pause()
            while True:
                leader = await self.view.find_leader()
                link = Connection(
                    leader,
                    on_response=self._on_response,
                    on_read=self._on_read,
                    on_lost=self._on_lost,
                    credentials=self.view.environment.credentials,
                )
                try:
                    self._link = await dial(self.view.environment, link)
                    break
                except OSError as error:
                    self.view.suspect(leader)
                    self._tell(leader, why_not(error), len(self._window))
                    await self._backoff.pause()
        finally:
            self._linked()
        self._progress_at = self.loop.time()
        self._run()

    def _linked(self) -> None:
        if self._linking is asyncio.current_task():
            self._linking = None

    def _on_lost(self, link: Connection) -> None:
        if link is not self._link:
            return
        self._link = None
        self._lost_in_a_row += 1
        self.view.suspect(link.address)
        lost = self._window.lost(f"{link.address} {link.ending}")
        if lost:
            self._tell(link.address, link.ending, lost)
        self._run()

    def _tell(self, address: str, cause: str, requests: int, code: int = 0, topic: str = "") -> None:
        """Reports sends that are repeated; `topic` is given if they are known to share it."""
        what = f"send to {topic}" if topic else "sends"
        self.view.retries.tell(Retry(what, address, cause, code, requests))

    def _give_up_link(self) -> None:
        if self._link is not None:
            self.view.links.drop(self._link.address)
            self._link.abort(f"did not answer for {self._attempt_s:g} s")

    def _hold(self, ask_leader: bool) -> None:
        """Pauses before the next send; the pause grows while nothing succeeds. With `ask_leader`, looks for the leader
        afterwards."""
        if self._holding is None:
            self._holding = self.loop.call_later(self._backoff.next_s(), self._resume, ask_leader)

    def _next_rounds(self) -> None:
        """Begins the rounds of topics over a quota that are due, and sets a timer for the next ones. Does nothing while
        the timer runs."""
        if self._pacing is None:
            wait_s = self._window.next_rounds(self.loop.time())
            if wait_s is not None:
                self._pacing = self.loop.call_later(wait_s, self._paced)

    def _paced(self) -> None:
        self._pacing = None
        self._next_rounds()
        self._run()

    def _resume(self, ask_leader: bool) -> None:
        self._holding = None
        if ask_leader and self._linking is None and self._link is not None:
            self._linking = self.loop.create_task(self._follow_leader(self._link))
        else:
            self._run()

    async def _follow_leader(self, link: Connection) -> None:
        """Looks for the leader after the reply "no leader here", or after a silence: keeps the connection if the same
        node leads, else moves to the leader."""
        try:
            leader = await self.view.find_leader()
        finally:
            self._linked()
        if leader != link.address and link is self._link:
            link.abort()
        self._run()

    # -- replies

    def _on_response(self, header: Header, body: bytes) -> None:
        pending = self._window.find(header.opaque)
        if pending is None:
            return
        remark = remark_as_written(header.remark)
        verdict = self._window.answer(pending, header.code, remark, self.loop.time())
        if verdict is NextStep.OK:
            self._settle_ok(pending, header)
        elif verdict is NextStep.FINAL:
            what = f"send to {pending.topic}"
            error = error_of(header.code, remark, what, maybe=pending.maybe, message_ids=pending.message_ids)
            if header.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER):
                self.view.forget_route(pending.topic)
            self._settle(pending, None, error)
        else:
            busy = header.code in TOO_MUCH
            if not busy and self._link is not None:
                self.view.suspect(self._link.address)
            if is_disk_full(header.code, remark):
                self._tell_full(pending.topic, remark)
            paced = header.code == ResponseCode.FLOW_CONTROL
            told = self._window.is_told(pending.topic) if paced else self._holding is not None
            if not told and self._link is not None:  # once for all that are refused together
                cause = f"says: {remark or 'try again'}"
                self._tell(self._link.address, cause, 1, header.code, pending.topic)
            if paced:
                self._next_rounds()
            else:
                self._hold(ask_leader=not busy)

    def _tell_full(self, topic: str, remark: str | None) -> None:
        """Logs, at intervals, that a full disk refuses sends. They are tried again until their deadline, and a user
        should not have to wait that long for the reason."""
        now = self.loop.time()
        if now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            logger.warning("sends to %s are refused and tried again until their deadline: %s", topic, remark)

    def _settle_ok(self, pending: Pending, header: Header) -> None:
        if self._backoff.used or self._lost_in_a_row:
            self._backoff = Backoff(self.view.jitter)
            self._lost_in_a_row = 0
        route = self.view.known_route(pending.topic)
        if route is not None and not route.exists:
            self._ask_route(pending.topic)
        try:
            self._settle(pending, read_result(pending, header, self._first_queue), None)
        except Unknown as error:
            self._settle(pending, None, error)

    def _settle(
        self, pending: Pending, result: SendResult | list[SendResult] | None, error: RaftMQError | None
    ) -> None:
        settle(pending.future, result, error)
        if error is not None:
            self._outcomes = self._outcomes.and_failed(error)
        self._given_back[0] += 1
        self._given_back[1] += pending.size

    def _on_read(self) -> None:
        self._progress_at = self.loop.time()
        self._return_room()
        if self._window.again or self._mine:
            self._run()

    def _return_room(self) -> None:
        messages, size = self._given_back
        if messages:
            self._given_back = [0, 0]
            self._outcomes = self._outcomes.and_settled(messages)
            self._room.give_back(messages, size)

    # -- time

    def _arm_sweep(self) -> None:
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = self.loop.time()
        for pending, error in self._window.expire(now, self.view.why_no_leader):
            self._settle(pending, None, error)
        for waiting in (self._mine, self._incoming):
            while waiting and waiting[0].deadline <= now:
                request, future, _ = waiting.popleft()
                self._fail(request, future, self._never_sent(request))
        self._return_room()
        if self._incoming and self._elsewhere is not None and self.view.groups.several:
            self._run()  # a group that waits for its leader does not keep the others waiting
        if not self._incoming and not self._mine and not len(self._window):
            self._is_stuck = False
            self._rest()
            return
        self._is_stuck = self._link is None
        self._check_stall(now)
        self._arm_sweep()

    def _check_stall(self, now: float) -> None:
        oldest = self._window.oldest_sent_at()
        if oldest is None or self._link is None:
            return
        silent_s = now - max(self._progress_at, oldest)
        self._is_stuck = silent_s > _DOUBT_S
        if silent_s > self._attempt_s or now - oldest > self._attempt_s * _OLDEST_ATTEMPTS:
            self._give_up_link()
        elif silent_s <= _DOUBT_S:
            self._doubt_s = _DOUBT_S
        elif silent_s > self._doubt_s and self._linking is None and self._holding is None:
            self._doubt_s *= _DOUBT_GROWS
            self.view.doubt(self._link.address)
            self._linking = self.loop.create_task(self._follow_leader(self._link))

    def _rest(self) -> None:
        """Stops looking for a leader while there is nothing to send. The connection stays open, unless another node is
        known to lead."""
        if self._linking is not None:
            self._linking.cancel()
            self._linking = None
        leader = self.view.leader
        if self._link is not None and leader is not None and leader != self._link.address:
            link, self._link = self._link, None
            link.close()

    async def drained(self) -> None:
        """Returns once no send is unsettled. The deadlines of the sends bound the wait, unless more is sent
        meanwhile."""
        done: asyncio.Future[None] = self.loop.create_future()
        self._room.when_empty(functools.partial(settle, done, None, None))
        await done

    def take_outcomes(self) -> FlushResult:
        """Returns the outcomes of the requests that were settled since the last call."""
        self._return_room()
        outcomes, self._outcomes = self._outcomes, FlushResult()
        return outcomes

    async def close(self) -> None:
        """Waits until every send is settled, then closes."""
        await self.drained()
        self.abandon()

    def abandon(self) -> None:
        """Closes at once: unsettled sends end as if past their deadline."""
        for pending, error in self._window.abandon(self.view.why_no_leader):
            self._settle(pending, None, error)
        for waiting in (self._mine, self._incoming):
            while waiting:
                request, future, _ = waiting.popleft()
                self._fail(request, future, self._never_sent(request))
        self._return_room()
        for task in (self._linking, *self._routing.values()):
            if task is not None:
                task.cancel()
        for timer in (self._sweeping, self._holding, self._pacing):
            if timer is not None:
                timer.cancel()
        if self._link is not None:
            link, self._link = self._link, None
            link.close()

    def _never_sent(self, request: SendRequest) -> Failed:
        return never_sent(f"send to {request.topic}", request.message_ids, self.view.why_no_leader())
