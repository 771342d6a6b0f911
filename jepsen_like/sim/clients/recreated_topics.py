"""Topics that are deleted, created again and changed while messages and offsets flow to them.

The answer to a send must fit the topic's attributes at some moment between request and answer. A topic that was created
again begins empty, without offsets. At the end each replica holds exactly what belongs to the topic's last life.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial

from jepsen_like.client_kit.fields import foreign_send, place_of, topic_fields
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost, id_of, read_queue
from jepsen_like.sim.clients.history_recorder import Recorder, stored_at
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker
from raftmq.client.client import AsyncClient
from raftmq_wire.codes import RequestCode, ResponseCode

GROUP = "remakers"
SENDERS = 2
WRITABLE, READ_ONLY = 6, 4
REFUSED = (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)


@dataclass(slots=True)
class Epoch:
    """The topic's attributes between two changes, with the times in seconds at which the first change was sent and
    answered."""

    life: int
    """Number of times that the topic was created so far, this one included."""
    exists: bool
    queues: int
    perm: int
    asked_s: float
    answered_s: float | None = None

    def takes(self, queue: int) -> bool:
        """Returns True if the topic accepts a send to this queue in this epoch."""
        return self.exists and self.perm == WRITABLE and queue < self.queues


class StoredSend:
    """One send that was answered as stored: the message's id, its (queue, offset), and the times in seconds of request
    and answer."""

    __slots__ = ("answered_s", "asked_s", "message_id", "place")

    def __init__(self, message_id: str, place: tuple[int, int], asked_s: float, answered_s: float) -> None:
        self.message_id, self.place, self.asked_s, self.answered_s = message_id, place, asked_s, answered_s


class RecreatedTopics(Asker):
    """The client that changes topics and sends to them. Setting `stopped` ends it after the present request. After a
    change of unknown outcome it continues with a topic of another name."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report) -> None:
        super().__init__(host, report)
        self._recorder = recorder
        self.topic = ""
        self.epochs: list[Epoch] = []
        self.sent: list[StoredSend] = []
        self.unsure = False
        """True once a change was not answered: then the topic's attributes are unknown."""
        self._names = 0
        self._count = 0

    def start(self) -> None:
        """Starts the tasks that change topics and send."""
        works = (((0.05, 0.4), 0.1, self._change), *[((0.005, 0.06), 0.02, self._send_some)] * SENDERS)
        for pause_s, redials, act in works:
            rng = random.Random(self.rng.random())
            self._spawn(partial(self._in_turns, rng, pause_s, redials, "remakes", partial(act, rng)))

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _change(self, rng: random.Random, connection: RawConnection) -> None:
        if not self.topic or self.unsure:
            self._names += 1
            self.topic, self.epochs, self.sent, self.unsure = f"remake-{self._names}", [], [], False
        now = self.epochs[-1] if self.epochs else None
        if now is not None and now.exists and rng.random() < 0.4:
            await self.apply(connection, Epoch(now.life, False, 0, 0, self.host.loop.now))
            return
        life = 1 if now is None else now.life + (not now.exists)
        made = now is None or not now.exists
        perm = WRITABLE if made or rng.random() < 0.6 else READ_ONLY
        done = await self.apply(connection, Epoch(life, True, rng.randint(1, 4), perm, self.host.loop.now))
        if done and made:
            await self._look_for_offsets(connection)

    async def apply(self, connection: RawConnection, epoch: Epoch) -> bool:
        """Sends the change of the topic that `epoch` describes. Returns True if the answer says that it is done.
        Otherwise sets `unsure` and returns False."""
        if not epoch.exists:
            self._commit(connection)
        self.epochs.append(epoch)
        if epoch.exists:
            fields = topic_fields(self.topic, epoch.queues, epoch.perm)
            answer = await self._ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        else:
            answer = await self._ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic})
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self.unsure = True
            return False
        epoch.answered_s = self.host.loop.now
        return True

    def _commit(self, connection: RawConnection) -> None:
        """Sends commits of an offset that are in flight while the topic is deleted."""
        fields = place_of(GROUP, self.topic, 0) | {"commitOffset": "5"}
        for oneway in (True, False):
            connection.write(connection.frame(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=oneway))

    async def _look_for_offsets(self, connection: RawConnection) -> None:
        fields = place_of(GROUP, self.topic, 0) | {"setZeroIfNotFound": "false"}
        answer = await self._ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._report("topics", f"{self.topic} was made again and has offset {answer.ext.get('offset')} of before")

    # --- messages ----------------------------------------------------------------------------------------------------

    async def _send_some(self, rng: random.Random, connection: RawConnection) -> None:
        if self.topic:
            await asyncio.gather(*(self.send(connection, rng.randrange(4)) for _ in range(rng.randint(1, 3))))

    async def send(self, connection: RawConnection, queue: int) -> None:
        """Sends one message and judges its answer."""
        self._count += 1
        topic, message_id, asked_s = self.topic, f"remade-{self._count}", self.host.loop.now
        ext = foreign_send(topic, message_id, queue)
        answer = await self._ask(connection, SEND_CODE, ext, self.host.body(topic, message_id, 10))
        if answer is None or topic != self.topic:
            return
        met = self._met(asked_s)
        if answer.code == ResponseCode.SUCCESS:
            self._stored(StoredSend(message_id, stored_at(answer), asked_s, self.host.loop.now), met)
        elif answer.code in REFUSED and met and all(epoch.takes(queue) for epoch in met) and not self.unsure:
            why = f"{answer.code} {answer.remark[:80]}"
            self._report("topics", f"{message_id} to {topic} queue {queue} is refused: {why}")

    def _met(self, asked_s: float) -> list[Epoch]:
        """Returns the topic's epochs between `asked_s` and now, including changes that are still in flight. If the
        topic may have been created for the first time since `asked_s`, an epoch without the topic comes first."""
        met: list[Epoch] = []
        for at, epoch in enumerate(self.epochs):
            later = self.epochs[at + 1] if at + 1 < len(self.epochs) else None
            if later is None or later.answered_s is None or later.answered_s >= asked_s:
                met.append(epoch)
        if met and met[0] is self.epochs[0] and (met[0].answered_s is None or met[0].answered_s >= asked_s):
            met.insert(0, Epoch(0, False, 0, 0, 0.0))
        return met

    def _stored(self, sent: StoredSend, met: list[Epoch]) -> None:
        queue = sent.place[0]
        if not any(epoch.takes(queue) for epoch in met):
            what = f"{sent.message_id} was stored in {self.topic} queue {queue}"
            self._report("topics", f"{what}, which took nothing then")
            return
        for other in self.sent:
            if other.place == sent.place and self.life_of(other) == self.life_of(sent) is not None:
                what = f"{other.message_id} and {sent.message_id}"
                self._report("topics", f"{what} were both stored at {self.topic} {sent.place}")
        self.sent.append(sent)

    def life_of(self, sent: StoredSend) -> int | None:
        """Returns the number of the topic's life in which the message was stored; None if it may be one of several."""
        lives = set()
        for at, epoch in enumerate(self.epochs):
            later = self.epochs[at + 1] if at + 1 < len(self.epochs) else None
            ended_s = None if later is None else later.answered_s
            if epoch.exists and epoch.asked_s <= sent.answered_s and (ended_s is None or ended_s >= sent.asked_s):
                lives.add(epoch.life)
        return lives.pop() if len(lives) == 1 else None

    # --- the end -----------------------------------------------------------------------------------------------------

    async def judge(self, client: AsyncClient, addresses: list[str]) -> None:
        """Reads the topic from every node and checks its messages. Does nothing if the topic is deleted, or if it is
        not known what became of it."""
        if self.unsure or not self.epochs or not self.epochs[-1].exists:
            return
        life = self.epochs[-1].life
        mine = {sent.place: sent.message_id for sent in self.sent if self.life_of(sent) == life}
        old = {sent.message_id for sent in self.sent if (self.life_of(sent) or life) < life}
        for address in addresses:
            found: dict[tuple[int, int], str] = {}
            lowest: dict[int, int] = {}
            for queue in range(self.epochs[-1].queues):
                messages, lowest[queue] = await read_queue(client, self.topic, queue, address)
                found |= {(queue, message.queue_offset): id_of(message.body) for message in messages}
            for place, message_id in mine.items():
                if place[0] in lowest and place[1] >= lowest[place[0]] and found.get(place) != message_id:
                    what = f"{message_id} was stored at {self.topic} {place}"
                    self._report("topics", f"{what}, {address} has {found.get(place)!r} there")
                    return
            for message_id in sorted(old.intersection(found.values()))[:1]:
                self._report("topics", f"{message_id} of an earlier life of {self.topic} stands on {address}")
