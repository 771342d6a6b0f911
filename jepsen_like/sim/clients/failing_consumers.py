"""Consumers of a group that fail to process some messages and report so (CONSUMER_SEND_MSG_BACK, code 36): each report
must yield one copy of the message for a retry, at its due time, and the last one a dead letter.

The number of times that a message fails is drawn when it is sent. A failure is reported until it is answered, at other
nodes too, and now and then by two consumers at once; or the consumer sends the message to its retry topic itself, as
RocketMQ's consumers do when no node accepts a report. The judge then checks on every node: an acknowledged failure has
one copy, of the next attempt, in the right topic. A failure of unknown outcome has at most one copy. A failure that was
refused, or never reported, has none. No copy is stored before its delay has passed since the message that failed was
stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.client_kit.fields import beat_body, foreign_send, group_body, pull_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, SEND_CODE, ClientHost, id_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker
from jepsen_like.sim.clients.stored_messages import stored_on
from jepsen_like.sim.machines.machine import DELAY_LEVELS_S
from raftmq.client.errors import Unknown, error_of
from raftmq.client.message import Message, decode_messages
from raftmq_wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine

GROUP, TOPIC, QUEUES = "failing", "failing", 2
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
RETRY_MAX_TIMES = 2
FIRST_LEVEL = 3
"""RocketMQ's delay level after the first failure if the consumer names none; each further failure adds one level."""
NEVER_AGAIN = -1
"""Delay level with which the message becomes a dead letter at once."""
SENT_BY_ITSELF = 0.15
"""Share (0 to 1) of the failures that are not reported: the consumer sends the message to the retry topic itself."""
REPORTS_MAX = 6
"""The most times that a report is sent until an answer is final."""
OUTCOMES = ("fail", "unknown", "ok")
PLACES = (*((TOPIC, queue_id) for queue_id in range(QUEUES)), (RETRY, 0))


class Failure(NamedTuple):
    """One delivered copy that a consumer failed to process. A message may have two copies of one attempt, if a consumer
    sent one of them itself or log time jumped; each of them is a separate failure."""

    message_id: str
    attempt: int
    """Number of earlier failures, from 0 on: the `reconsumeTimes` of the message that failed."""
    level: int
    store_ms: int
    """Log time at which the message that failed was stored."""
    position: int = 0
    """Byte position of the message in the log."""

    @property
    def dead(self) -> bool:
        """True if the copy that follows is a dead letter."""
        return self.level < 0 or self.attempt >= RETRY_MAX_TIMES

    @property
    def delay_ms(self) -> int:
        """Time in milliseconds that the copy that follows has to wait."""
        return 0 if self.dead else 1000 * DELAY_LEVELS_S[(self.level or FIRST_LEVEL + self.attempt) - 1]


class RetryCopy(NamedTuple):
    """A copy that the broker has made: message id, attempt, topic and the log time at which it was stored."""

    message_id: str
    attempt: int
    topic: str
    store_ms: int


class FailureJudge:
    """Knows the outcome of every reported failure, and judges the copies that nodes hold."""

    def __init__(self) -> None:
        self.outcomes: dict[Failure, str] = {}
        """Failure -> the best outcome (OUTCOMES) among its reports; `fail` if every answer said that nothing was
        stored.
        """

    def reported(self, failure: Failure, outcome: str) -> None:
        """Records the outcome of one report."""
        self.outcomes[failure] = max(self.outcomes.get(failure, "fail"), outcome, key=OUTCOMES.index)

    def wrong(self, copies: list[RetryCopy], *, trimmed: bool, exact: bool) -> Iterator[str]:
        """Yields a line for everything that is wrong with the copies on a node. `trimmed`: copies may have been
        removed. `exact` is False if log time has jumped, so that a repeated report may count as another failure."""
        found: dict[tuple[str, int], list[RetryCopy]] = defaultdict(list)
        for copy in copies:
            found[copy.message_id, copy.attempt].append(copy)
        for name, failures in self._by_copy().items():
            made = found.pop(name, [])
            outcomes = [self.outcomes[failure] for failure in failures]
            least, most = 0 if trimmed else outcomes.count("ok"), len(outcomes) - outcomes.count("fail")
            what = f"attempt {name[1] - 1} at {name[0]} failed (answered {', '.join(outcomes)})"
            if len(made) < least or (len(made) > most and (exact or not most)):
                yield f"{what}, and there are {len(made)} copies"
            for copy in made:
                unfit = [_unfit(copy, failure) for failure in failures]
                if all(unfit):
                    yield f"{what}, and its copy {unfit[0]}"
        for message_id, attempt in found:
            yield f"there is a copy of {message_id} for attempt {attempt}, and nobody said that it failed"

    def _by_copy(self) -> dict[tuple[str, int], list[Failure]]:
        """Returns (message, attempt) of a copy -> the failures that it may come from: a copy does not say which one."""
        failures: dict[tuple[str, int], list[Failure]] = defaultdict(list)
        for failure in self.outcomes:
            failures[failure.message_id, failure.attempt + 1].append(failure)
        return failures


def _unfit(copy: RetryCopy, failure: Failure) -> str:
    """Returns the reason why the copy cannot be the result of the failure; "" if it can."""
    if copy.topic != (DEAD if failure.dead else RETRY):
        return f"is in {copy.topic}"
    waited_ms = copy.store_ms - failure.store_ms
    return f"came after {waited_ms} ms of {failure.delay_ms}" if waited_ms < failure.delay_ms else ""


class Failures(Asker):
    """A producer and the consumers of GROUP. Setting `stopped` ends them once every copy has come."""

    def __init__(
        self, host: ClientHost, report: Report, ends: Callable[[str, int], int], waiting: Callable[[], int]
    ) -> None:
        """`ends(topic, queue)`: returns the offset after the last message that any node has. `waiting`: returns how
        many delayed messages any node has."""
        super().__init__(host, report)
        self._ends, self._waiting = ends, waiting
        self.judge = FailureJudge()
        self._next: dict[tuple[str, int], int] = dict.fromkeys(PLACES, 0)
        self._fails: dict[str, int] = {}
        """Message id -> number of times that the message fails."""

    def start(self) -> None:
        """Starts the producer and the consumers as tasks."""
        self.host.spawn(partial(self._produce, random.Random(self.rng.random())))
        self._spawn(partial(self._consume, random.Random(self.rng.random())))

    # --- the producer ------------------------------------------------------------------------------------------------

    async def _produce(self, rng: random.Random) -> None:
        async def send(connection: RawConnection) -> None:
            message_id = f"fails-{len(self._fails) + 1}"
            self._fails[message_id] = rng.choice((0, 1, 1, 2, 3, 4))
            fields = foreign_send(TOPIC, message_id, rng.randrange(QUEUES), FULL)
            await self._ask(connection, SEND_CODE, fields, self.host.body(TOPIC, message_id, 5))

        await self._in_turns(rng, (0.05, 0.25), 0.0, "a producer of what fails", send)

    # --- consumers ---------------------------------------------------------------------------------------------------

    async def _consume(self, rng: random.Random) -> None:
        while not (self.stopped and self._all_read()):
            connection = await self._connect(rng)
            rounds = rng.randint(3, 30) if connection is not None else 0
            while connection is not None and rounds and not connection.closed:
                rounds -= 1
                for place in PLACES:
                    await self._read(connection, place, rng)
                await asyncio.sleep(rng.uniform(0.02, 0.15))
                if self.stopped and self._all_read():
                    break
            if connection is not None:
                connection.transport.abort()
            await asyncio.sleep(rng.uniform(0.02, 0.2))

    def _all_read(self) -> bool:
        return not self._waiting() and all(offset >= self._ends(*place) for place, offset in self._next.items())

    async def _connect(self, rng: random.Random) -> RawConnection | None:
        """Opens a connection as a member of the group and sets the group's retry limits; returns None if that fails."""
        connection = await self._dial(rng, "a consumer that fails")
        if connection is None:
            return None
        beat = beat_body(f"failing-{rng.random()}", [GROUP], (TOPIC, RETRY))
        wanted = group_body(GROUP, retryMaxTimes=RETRY_MAX_TIMES, retryQueueNums=1)
        for code, body in (
            (RequestCode.HEART_BEAT, beat),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, wanted),
        ):
            answer = await self._ask(connection, code, {}, body)
            if answer is None or answer.code != ResponseCode.SUCCESS:
                connection.transport.abort()
                return None
        return connection

    async def _read(self, connection: RawConnection, place: tuple[str, int], rng: random.Random) -> None:
        answer = await self._ask(connection, RequestCode.PULL_MESSAGE, pull_fields(GROUP, *place, self._next[place]))
        if answer is None:
            return
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._next[place] = max(self._next[place], int(answer.ext["nextBeginOffset"]))
        elif answer.code == ResponseCode.SUCCESS:
            messages = decode_messages(answer.body)
            self._next[place] = messages[-1].queue_offset + 1
            await asyncio.gather(*(self._handle(message, rng) for message in messages))  # as a consumer's threads do

    async def _handle(self, message: Message, rng: random.Random) -> None:
        message_id = id_of(message.body)
        if message.reconsume_times >= self._fails.get(message_id, 0):
            return
        if rng.random() < SENT_BY_ITSELF:
            failure = Failure(message_id, message.reconsume_times, 1, message.store_ms, message.position)
            await self._send_again(message, failure, rng)
            return
        level = NEVER_AGAIN if rng.random() < 0.05 else rng.choice((0, 1, 1))
        failure = Failure(message_id, message.reconsume_times, level, message.store_ms, message.position)
        self.judge.reported(failure, "fail")
        twice = rng.random() < 0.25
        await asyncio.gather(*(self._say(message, failure, rng) for _ in range(1 + twice)))

    async def _send_again(self, message: Message, failure: Failure, rng: random.Random) -> None:
        """Sends the message to the retry topic, once: a send without an identity may be stored each time. The message
        carries the properties of a committed half message."""
        connection = await self._dial(rng, "a consumer that sends again")
        if connection is not None:
            fields = foreign_send(RETRY, message.message_id, 0, FULL)
            fields["i"] += f"RETRY_TOPIC\x01{TOPIC}\x02DELAY\x01{failure.level}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            fields["j"] = str(failure.attempt + 1)
            answer = await self._ask(connection, SEND_CODE, fields, message.body)
            connection.transport.abort()
            self.judge.reported(failure, outcome_of(answer))

    async def _say(self, message: Message, failure: Failure, rng: random.Random) -> None:
        """Reports a failure until an answer is final, at most REPORTS_MAX times, each time on a new connection to any
        node."""
        fields = {
            "group": GROUP,
            "offset": str(message.position),
            "delayLevel": str(failure.level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
        }
        for _ in range(REPORTS_MAX):
            connection = await self._dial(rng, "a report")
            if connection is not None:
                answer = await self._ask(connection, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                connection.transport.abort()
                outcome = outcome_of(answer)
                self.judge.reported(failure, outcome)
                if outcome == "ok" or (outcome == "fail" and answer and answer.code == ResponseCode.SYSTEM_ERROR):
                    return  # the report is done, or the message cannot be read any more
            await asyncio.sleep(rng.uniform(0.05, 0.5))


def outcome_of(answer: Answer | None) -> str:
    """Returns the outcome of an answer to a report or a send: ok, unknown or fail."""
    if answer is not None and answer.code == ResponseCode.SUCCESS:
        return "ok"
    if answer is None or isinstance(error_of(answer.code, answer.remark, "send"), Unknown):
        return "unknown"
    return "fail"


def copies_on(machine: Machine) -> tuple[list[RetryCopy], bool]:
    """Returns the retry copies and dead letters of GROUP that the node has, and True if some may have been trimmed."""
    copies: list[RetryCopy] = []
    trimmed = False
    for name in (RETRY, DEAD):
        messages, gone = stored_on(machine, name)
        trimmed |= gone
        copies += [RetryCopy(id_of(one.body), one.reconsume_times, name, one.store_ms) for one in messages]
    return copies, trimmed
