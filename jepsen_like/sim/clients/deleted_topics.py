"""Deletes topics that still have timers, half messages, failures, offsets and resets. A topic that is created again
under the same name must inherit none of them.

Each round uses new names. Messages are left waiting, the topic, the group or its retry topic is deleted and created
again, and messages are sent to it. Requests about the new topic or group must be answered as if the old one had never
existed. At the end nothing waits on any node, and the topic holds the messages that were sent since its last creation.
Delayed messages are in it as copies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.client_kit.fields import foreign_send, group_body, place_of, pull_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import FULL, SEND_CODE, Client, ClientHost, id_of
from jepsen_like.sim.clients.failing_consumers import outcome_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.reset_clients import committed
from jepsen_like.sim.clients.single_request import ask, dial
from jepsen_like.sim.clients.stored_messages import stored_on
from jepsen_like.sim.clients.transaction_producers import COMMIT
from raftmq.client.message import decode_messages
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import decode_message_id

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine

QUEUES = 2
DELAY = "TIMER_DELAY_MS"
DELAYS_MS = (300, 800, 1500, 2500)
RETRIES = "%RETRY%"
DELETED = ("topic", "topic", "group", "retries")
"""Kinds of object from which each round draws the one that it deletes. `retries`: the group's retry topic."""


class HalfLeft(NamedTuple):
    """A half message that its producer has left open: its key, the producer group, its byte position in the log and its
    queue offset."""

    key: str
    group: str
    position: int
    offset: int


class Made(NamedTuple):
    """A topic that was surely created again."""

    topic: str
    before: frozenset[str]
    """Ids of the messages that were sent to the topic before it was deleted."""
    since: frozenset[str]
    """Ids of messages that were acknowledged since the new creation, each of which must be there once."""


class DeletedTopics(Client):
    """Plays one round after the other, each with a topic and a group of its own (`TwoLives`). After `stopped` is set,
    it ends once no half message is open."""

    def __init__(self, host: ClientHost, report: Report, open_count: Callable[[], int]) -> None:
        """`open_count`: returns how many half messages any node knows of."""
        super().__init__(host)
        self.report, self._open_count = report, open_count
        self.made: list[Made] = []
        self._rounds = 0
        self.unfinished: set[str] = set()
        """Topics that may have half messages which no producer ends. They are deleted at the end."""

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stopped:
            connection = await dial(self.host, rng.choice(self.host.nodes), "an heir", self.report)
            if connection is not None:
                self._rounds += 1
                await TwoLives(self, f"legacy-{self._rounds}", connection, rng).play()
                connection.transport.abort()
            await asyncio.sleep(rng.uniform(0.02, 0.3))
        while self._open_count():
            connection = await dial(self.host, rng.choice(self.host.nodes), "an heir that clears up", self.report)
            if connection is not None:
                for topic in sorted(self.unfinished):
                    await ask(self.host, connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
                connection.transport.abort()
            await asyncio.sleep(0.3)


class TwoLives:
    """One topic and one group in two lives: before one of them, or the group's retry topic, is deleted and created
    again, and after that."""

    def __init__(self, legacies: DeletedTopics, name: str, connection: RawConnection, rng: random.Random) -> None:
        self._all, self._connection, self._rng = legacies, connection, rng
        self._topic, self._group = name, f"{name}-group"
        self._ids: dict[int, list[str]] = {1: [], 2: []}
        """Life (1 or 2) -> ids of the messages sent to the topic in it, acknowledged or not."""
        self._halves: list[HalfLeft] = []
        self._failed, self._failed_id = 0, ""
        """Byte position and id of the message that was reported as failed; 0 and "" if none was."""

    async def play(self) -> None:
        """Plays the round. Ends early if a request on which the later steps depend does not succeed, because the state
        behind the names may then be unknown."""
        what = self._rng.choice(DELETED)
        self._all.unfinished.add(self._topic)
        if await self._begin() and await self._leave(what) and await self._delete_and_make(what):
            if what == "topic":
                self._all.unfinished.remove(self._topic)
            await self._look(what)

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        return await ask(self._all.host, self._connection, code, ext, body)

    async def _does(self, code: int, ext: dict[str, str], body: bytes = b"") -> bool:
        answer = await self._ask(code, ext, body)
        return answer is not None and answer.code == ResponseCode.SUCCESS

    async def _send(self, name: str, life: int, more: str = "") -> Answer | None:
        """Sends a message with the further properties `more`. Returns the answer if the message is stored, else None. A
        message of unknown outcome may be stored later, in a new topic of the same name. The connection is then closed,
        which ends the round.
        """
        message_id = f"{self._topic}-{name}"
        self._ids[life].append(message_id)
        level = "" if self._all.host.options.plain else FULL
        fields = foreign_send(self._topic, message_id, self._rng.randrange(QUEUES), level)
        fields["i"] += more
        answer = await self._ask(SEND_CODE, fields, self._all.host.body(self._topic, message_id, 3))
        if outcome_of(answer) == "unknown":
            self._connection.transport.abort()
        return answer if outcome_of(answer) == "ok" else None

    # --- the first life ----------------------------------------------------------------------------------------------

    async def _make_topic(self, name: str, queues: int) -> bool:
        return await self._does(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues))

    async def _make_group(self) -> bool:
        body = group_body(self._group, retryQueueNums=1)
        return await self._does(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def _begin(self) -> bool:
        made = await self._make_topic(self._topic, QUEUES) and await self._make_group()
        return made and await self._send("first", 1) is not None

    async def _leave(self, what: str) -> bool:
        """Leaves messages that wait, a committed offset of queue 0, and a reset of queue 1. Returns False if the commit
        or the reset fails, or the failure report that a round with `what` = "retries" needs."""
        rng = self._rng
        for number in range(rng.randint(1, 3)):
            await self._send(f"timer-{number}", 1, self._delay())
        if rng.random() < 0.7:
            await self._leave_half()
        if what == "retries" and not await self._fail():
            return False
        offset = {"commitOffset": "1"}
        return await self._does(
            RequestCode.UPDATE_CONSUMER_OFFSET, place_of(self._group, self._topic, 0) | offset
        ) and await self._reset(1)

    def _delay(self) -> str:
        return f"{DELAY}\x01{self._rng.choice(DELAYS_MS)}\x02"

    async def _leave_half(self) -> None:
        group = f"{self._group}-p"
        answer = await self._send("half", 1, f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02")
        if answer is not None:
            position = decode_message_id(answer.ext["msgId"])[1]
            half = HalfLeft(f"{self._topic}-half", group, position, int(answer.ext["queueOffset"]))
            self._halves.append(half)

    async def _reset(self, queue: int) -> bool:
        fields = {
            "topic": self._topic,
            "group": self._group,
            "timestamp": "0",
            "isForce": "true",
            "queueId": str(queue),
            "offset": "0",
        }
        return await self._does(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)

    async def _fail(self) -> bool:
        """Reports the first message of a queue as failed, with a delay of one second for its retry copy. Returns False
        if that does not succeed."""
        for queue in range(QUEUES):
            pulled = await self._ask(RequestCode.PULL_MESSAGE, pull_fields(self._group, self._topic, queue, 0))
            if pulled is not None and pulled.code == ResponseCode.SUCCESS:
                message = decode_messages(pulled.body)[0]
                self._failed, self._failed_id = message.position, id_of(message.body)
                return await self._report_failure()
        return False

    async def _report_failure(self) -> bool:
        fields = {"group": self._group, "offset": str(self._failed), "delayLevel": "1", "originTopic": self._topic}
        return await self._does(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    # --- the second life ---------------------------------------------------------------------------------------------

    async def _delete_and_make(self, what: str) -> bool:
        rng = self._rng
        if what == "group":
            fields = {"groupName": self._group, "cleanOffset": "true"}
            return await self._does(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields) and await self._make_group()
        name, queues = (self._topic, QUEUES) if what == "topic" else (RETRIES + self._group, 1)
        if not await self._does(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}):
            return False
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 1.5))
        return await self._make_topic(name, queues)

    async def _look(self, what: str) -> None:
        """Sends requests about the topic or group that was created again, checks the answers, and records the messages
        that the topic must hold.
        """
        if what == "retries":
            again = await self._report_failure()
            name = RETRIES + self._group
            self._all.made.append(Made(name, frozenset(), frozenset([self._failed_id] if again else [])))
            return
        await self._look_for_offsets(what)
        if what == "topic":
            for half in self._halves:
                await self._ask(RequestCode.END_TRANSACTION, commit_of(half))
            sent = await self._send("second", 2)
            since = frozenset(self._ids[2]) if sent is not None else frozenset[str]()
            self._all.made.append(Made(self._topic, frozenset(self._ids[1]), since))
            if sent is not None:
                await self._send("later", 2, self._delay())

    async def _look_for_offsets(self, what: str) -> None:
        for queue in range(QUEUES):
            known, offset = await committed(self._all.host, self._connection, self._group, self._topic, queue)
            if known and offset is not None:
                again = f"the {what} of {self._topic} was made again"
                self._all.report("legacies", f"{again}, and the group has offset {offset} of queue {queue}")
            answer = await self._ask(RequestCode.PULL_MESSAGE, pull_fields(self._group, self._topic, queue, 1))
            if answer is not None and answer.remark == "OFFSET_RESET":
                self._all.report("legacies", f"the {what} of {self._topic} was made again, and its offset is reset")


def commit_of(half: HalfLeft) -> dict[str, str]:
    """Returns the fields of END_TRANSACTION that commit this half message."""
    return {
        "producerGroup": half.group,
        "tranStateTableOffset": str(half.offset),
        "commitLogOffset": str(half.position),
        "commitOrRollback": str(COMMIT),
        "msgId": half.key,
    }


def found_wrong(machine: Machine, made: list[Made]) -> Iterator[str]:
    """Yields a line for everything that the node has and should not have, or lacks and should have."""
    assert machine.node is not None
    for one in made:
        if one.topic not in machine.node.state.topics:
            yield f"{one.topic} was made again, and is not there"
            continue
        messages, trimmed = stored_on(machine, one.topic)
        found = [id_of(message.body) for message in messages]
        for message in messages:
            waited = b"TIMER_OUT_MS\x01" in message.properties  # only a delivered copy has this property
            if f"{DELAY}\x01".encode() in message.properties and not waited:
                yield f"{id_of(message.body)} was to wait, and went into {one.topic} at once"
        for message_id in one.before.intersection(found):
            yield f"{message_id} of an earlier life of {one.topic} was delivered"
        for message_id in one.since:
            if found.count(message_id) > 1 or (not trimmed and message_id not in found):
                yield f"{message_id} was stored in {one.topic}, and is there {found.count(message_id)} times"
