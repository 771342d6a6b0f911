"""Client machines of the simulator, and the producers that run on them: RaftMQ's own producer, which has a producer
identity, and foreign ones, which speak as RocketMQ's clients do."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from jepsen_like.checkers.weak_acks import WEAK
from jepsen_like.client_kit.fields import WAIT_FALSE, foreign_send
from jepsen_like.history import Op
from jepsen_like.marks import mark_of
from jepsen_like.sim.clients.history_recorder import Recorder, stored_at
from jepsen_like.sim.machines.clock import START_WALL_MS
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import BROKER_PORT, NAMESRV_PORT, Machine, host_of
from jepsen_like.sim.machines.network import Network
from jepsen_like.sim.options import ROOT, Options, stream
from raftmq.client.client import AsyncClient
from raftmq.client.connection import Connection, Reply, dial
from raftmq.client.consuming.pull import PullStatus
from raftmq.client.environment import Environment
from raftmq.client.errors import RaftMQError, Unknown, error_of
from raftmq.client.message import Message, SendResult
from raftmq.client.producing.producer import AsyncProducer
from raftmq.client.producing.send_window import NextStep, Pending
from raftmq_wire.codes import is_unknown
from raftmq_wire.signature import Credentials

TOPIC = "orders"
FOREIGN_TOPIC = "foreign"
BRISK_TOPIC = "brisk"
"""Topic with its own acknowledgement level, in seeds with weak acknowledgements. A send to it that names no level gets
the topic's level.
"""
ORDERED_GROUP = "in-order"
"""The group whose consumers lock queues of TOPIC (`jepsen_like.sim.locks`)."""
FOREIGN_ATTEMPTS = 8
SEND_CODE = 310


FULL = "quorum+fsync"
"""The acknowledgement level with the full promise."""


def client_host(number: int) -> str:
    """Returns the IP address of a client's machine."""
    return f"10.0.1.{number}"


class ClientHost:
    """A process on a client machine, with the environment (clock, network, randomness) that the client library
    needs."""

    def __init__(self, number: int, options: Options, loop: SimLoop, network: Network) -> None:
        self.options, self.loop = options, loop
        self.rng = stream(options.seed, f"client {number}")
        self.process = Process(f"client{number}", client_host(number))
        self.nodes = [host_of(i) for i in range(1, options.nodes + 1)]
        self.credentials = Credentials(*ROOT) if options.users else None
        """Credentials with which this host's clients sign; None without users. Clients that are not users of their own
        sign as the Super user.
        """
        self.environment = Environment(
            lambda: START_WALL_MS + int(loop.now * 1000),
            self.rng.randbytes,
            lambda host, port, factory: loop.create_connection(factory, host, port),
            members_every_s=0.0,
            credentials=self.credentials,
        )

    def mark(self, topic: str) -> bytes:
        """Returns the mark that the bodies of messages to this topic carry; b"" in runs without users, whose bytes must
        stay the same as before marks existed."""
        return mark_of(topic) if self.options.users else b""

    def marked(self, topic: str, text: str) -> bytes:
        """Returns the body of a message to this topic that consists of a text without spaces, followed by the mark."""
        return b" ".join(filter(None, (text.encode(), self.mark(topic))))

    def body(self, topic: str, message_id: str, padding: int = 0) -> bytes:
        """Returns the body of a message to this topic (`body_of`), with the topic's mark."""
        return body_of(message_id, padding, self.mark(topic))

    def client(self, timeout_s: float = 30.0) -> AsyncClient:
        """Returns a new client of RaftMQ's client library. Must be called within the process."""
        return AsyncClient(
            [f"{host}:{NAMESRV_PORT}" for host in self.nodes], timeout_s=timeout_s, environment=self.environment
        )

    def spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Starts a task in this process and returns it."""

        async def run() -> None:
            await work()

        return self.process.run(self.loop.create_task, run())


class Client:
    """A client of the load, on its own host. Setting `stopped` ends it after its present operation."""

    def __init__(self, host: ClientHost) -> None:
        self.host, self.rng = host, host.rng
        self.stopped = False
        self._left = 0
        """Number of the client's coroutines that have not ended."""

    @property
    def done(self) -> bool:
        """True once all coroutines of the client have ended."""
        return not self._left

    def start(self) -> None:
        """Starts the client's work as a task."""
        self._spawn(self._work)

    async def _work(self) -> None:
        raise NotImplementedError

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Starts one more coroutine. A coroutine that raises never counts as ended, which makes the run fail."""

        async def run() -> None:
            await work()
            self._left -= 1

        self._left += 1
        self.host.spawn(run)


class Retries:
    """Counts the retries of a client: `count` grows by one for each attempt after a call's first.

    An attempt that the client gave up may still be carried out seconds later, so a retried call may happen twice.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.count = 0
        view: Any = client.view
        call, attempt = view.call, view._attempt

        async def counted_call(*args: Any, **options: Any) -> Any:
            self.count -= 1
            return await call(*args, **options)

        async def counted_attempt(*args: Any) -> Any:
            self.count += 1
            return await attempt(*args)

        view.call, view._attempt = counted_call, counted_attempt
        admin: Any = client.admin  # this object has already taken `call` from the view
        admin._call = partial(counted_call, **admin._call.keywords)


def body_of(message_id: str, padding: int, mark: bytes = b"") -> bytes:
    """Returns a message body that begins with the message id and has `padding` bytes of padding. `mark`: see
    `ClientHost.mark`."""
    return b"%b %b%b" % (message_id.encode(), mark, b"." * padding)


def id_of(body: bytes) -> str:
    """Returns the message id at the beginning of a body."""
    return body.split(b" ", 1)[0].decode()


OWN_ID = re.compile(rb"own\d+-\d+")
"""Pattern of the ids in the bodies of an `OwnProducer`: its name and a number that ascends with its calls."""


def note_refusals(producer: AsyncProducer, refused: set[str]) -> None:
    """Hooks into the producer: from this call on, `refused` collects the ids of messages that the producer must send
    again because of a node's reply, also if the node may have carried out the request."""
    window: Any = producer.pipeline._window
    answer = window.answer

    def noted(pending: Pending, code: int, remark: str | None, now: float = 0.0) -> NextStep:
        frame = pending.frame
        step: NextStep = answer(pending, code, remark, now)
        if not pending.done:
            refused.update(found.decode() for found in OWN_ID.findall(frame))
        return step

    window.answer = noted


class OwnProducer(Client):
    """Sends with RaftMQ's producer: `window` coroutines each send one message after the other through one producer
    session."""

    def __init__(self, number: int, host: ClientHost, recorder: Recorder) -> None:
        super().__init__(host)
        self.name, self.recorder = f"own{number}", recorder
        self.sent = 0
        self.refused: set[str] = set()
        """Ids of messages that had to be sent again because of a node's reply (`note_refusals`), or whose call ended
        with an unknown outcome."""
        self._producer: AsyncProducer | None = None

    @property
    def session(self) -> tuple[bytes, int] | None:
        """The producer id with which the client identifies its sends, and its next sequence; None before it has
        begun."""
        if self._producer is None:
            return None
        window: Any = self._producer.pipeline._window
        return bytes.fromhex(self._producer.producer_id), window._next

    async def _work(self) -> None:
        options, rng = self.host.options, self.rng
        client = self.host.client(timeout_s=rng.choice((3.0, 8.0, 20.0)))
        self._producer = client.producer(attempt_timeout_s=rng.choice((0.4, 1.0, 3.0)), max_messages=64)
        note_refusals(self._producer, self.refused)
        await asyncio.gather(*(self._slot(random.Random(rng.random())) for _ in range(options.window)))
        await client.close()

    async def _slot(self, rng: random.Random) -> None:
        options = self.host.options
        while not self.stopped:
            if rng.random() < 0.1:
                await self._batch(rng)
            else:
                await self._one(rng)
            await asyncio.sleep(rng.uniform(0.2, 1.8) * options.think_s * options.window)

    async def _one(self, rng: random.Random) -> None:
        assert self._producer is not None
        (op,) = self._invoke(1)
        queue = rng.randrange(self.host.options.queues)
        body = self.host.body(TOPIC, op.value["id"], rng.randrange(self.host.options.body_max))
        try:
            self._ok([op], [await self._producer.send(TOPIC, body, queue_id=queue)])
        except (RaftMQError, OSError) as error:
            self._failed([op], error)

    async def _batch(self, rng: random.Random) -> None:
        assert self._producer is not None
        ops = self._invoke(rng.randint(2, 3))
        queue = rng.randrange(self.host.options.queues)
        try:
            bodies = [self.host.body(TOPIC, op.value["id"], rng.randrange(60)) for op in ops]
            self._ok(ops, await self._producer.send_batch(TOPIC, bodies, queue_id=queue))
        except (RaftMQError, OSError) as error:
            self._failed(ops, error)

    def _failed(self, ops: list[Op], error: Exception) -> None:
        """Records calls that failed. Sends of unknown outcome are added to `refused`, too: such a send may still arrive
        after later ones that go over another connection (seed 890000014).
        """
        for op in ops:
            self.recorder.failed(op, error)
            if isinstance(error, Unknown):
                self.refused.add(op.value["id"])

    def _invoke(self, count: int) -> list[Op]:
        ops = []
        for _ in range(count):
            self.sent += 1
            ops.append(self.recorder.invoke("send", {"id": f"{self.name}-{self.sent}", "topic": TOPIC}))
        return ops

    def _ok(self, ops: list[Op], results: list[SendResult]) -> None:
        for op, result in zip(ops, results, strict=True):
            self.recorder.stored(op, result.queue_id, result.queue_offset)


class ForeignSend(NamedTuple):
    """Topic and acknowledgement level with which a foreign client sends one message."""

    topic: str
    asked: str
    """Level that the message's properties ask for, see `foreign_send`; "" if they name none."""
    level: str
    """Level at which the message is acknowledged."""


def promise_of(level: str) -> dict[str, str]:
    """Returns the fields that a recorded send gets for its level (`checkers.weak_acks`): none if the level has the full
    promise."""
    named = "leader" if level == WAIT_FALSE else level
    return {"level": named} if named in WEAK else {}


def brisk_level(options: Options) -> str:
    """Draws the acknowledgement level that is an attribute of the topic BRISK_TOPIC."""
    return stream(options.seed, "brisk").choice(("leader", "quorum"))


class Wishes:
    """Draws, message by message, the topic and acknowledgement level that a foreign client asks for."""

    def __init__(self, options: Options, rng: random.Random) -> None:
        self._options, self._rng = options, rng

    def draw(self) -> ForeignSend:
        """Draws topic and level of the next message. Without weak sends in the options no random number is drawn."""
        rng = self._rng
        if not self._options.weak or rng.random() >= self._options.weak:
            return ForeignSend(TOPIC, "", FULL)
        if rng.random() < 0.3:
            asked = rng.choice(("", "", FULL))
            return ForeignSend(BRISK_TOPIC, asked, asked or brisk_level(self._options))
        level = rng.choice(("leader", "leader", "quorum", "quorum", WAIT_FALSE, "all"))
        return ForeignSend(TOPIC, level, level)


class Attempt(NamedTuple):
    """One attempt of a foreign client to send a message: the node, its incarnation (the number of processes that its
    machine had started by then), and the outcome."""

    node: str
    incarnation: int
    ended: str
    """Outcome: ok, no (refused before anything was proposed), unknown (the node said so) or silence (no answer)."""


class Foreign(NamedTuple):
    """One message of a foreign client with all attempts to send it."""

    message_id: str
    attempts: list[Attempt]
    place: tuple[int, int] | None = None
    """(queue, offset) of the message as the answer named them; None without such an answer."""


class ForeignProducer(Client):
    """Sends as RocketMQ's clients do, without a producer identity, on one connection at a time.

    Every second message is sent once and never again. Its topic is `orders`, or `brisk` for some of the weak sends, and
    it is judged like a message of RaftMQ's own producer. The other messages go to the topic `foreign`. Each of them is
    sent again with the same UNIQ_KEY until it is acknowledged, at most FOREIGN_ATTEMPTS times; docs/adr/0011 says when
    two copies are allowed.
    """

    def __init__(self, number: int, host: ClientHost, recorder: Recorder, machines: dict[str, Machine]) -> None:
        super().__init__(host)
        self.name, self.recorder, self.machines = f"foreign{number}", recorder, machines
        self.sent = 0
        self.retried: list[Foreign] = []
        self._connection: Connection | None = None
        self._node = self.rng.choice(host.nodes)
        self._met = 0
        """The incarnation of the node to which the last request went. This process may be dead when its answer arrives
        (seed 962500127)."""
        self._wishes = Wishes(host.options, stream(host.options.seed, f"levels of {self.name}"))

    async def _work(self) -> None:
        while not self.stopped:
            self.sent += 1
            message_id = f"{self.name}-{self.sent}"
            if self.sent % 2:
                await self._once(message_id)
            else:
                await self._until_answered(message_id)
            options = self.host.options
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * (0.6 if options.weak else 2) * options.think_s)
        if self._connection is not None:
            self._connection.close()

    async def _once(self, message_id: str) -> None:
        wish = self._wishes.draw()
        op = self.recorder.invoke("send", {"id": message_id, "topic": wish.topic, **promise_of(wish.level)})
        try:
            reply = await self._ask(wish.topic, message_id, wish.asked)
        except ConnectionRefusedError as error:
            self.recorder.end(op, "fail", {**op.value, "error": str(error)})
        except OSError as error:
            self.recorder.end(op, "info", {**op.value, "error": str(error)})
        else:
            self.recorder.answered(op, reply)

    async def _until_answered(self, message_id: str) -> None:
        foreign = Foreign(message_id, [])
        self.retried.append(foreign)
        op = self.recorder.invoke("foreign", {"id": message_id})
        for _ in range(FOREIGN_ATTEMPTS):
            node = self._node
            ended, place = await self._attempt(message_id)
            foreign.attempts.append(Attempt(node, self._met, ended))
            if ended == "ok":
                self.recorder.end(op, "ok", op.value)
                self.retried[-1] = foreign._replace(place=place)
                return
            await asyncio.sleep(self.rng.uniform(0.05, 0.4))
        self.recorder.end(op, "info", op.value)

    async def _attempt(self, message_id: str) -> tuple[str, tuple[int, int] | None]:
        """Sends the message once. Returns the outcome (`Attempt.ended`) and, if it is ok, the message's (queue,
        offset), else None."""
        try:
            reply = await self._ask(FOREIGN_TOPIC, message_id)
        except ConnectionRefusedError:
            return "no", None
        except OSError:
            return "silence", None
        if reply.code == 0:
            return "ok", stored_at(reply)
        if is_unknown(reply.code, reply.remark):
            return "unknown", None
        return "silence" if isinstance(error_of(reply.code, reply.remark, "send"), Unknown) else "no", None

    async def _ask(self, topic: str, message_id: str, level: str = "") -> Reply:
        """Sends one message and returns the reply. Raises ConnectionRefusedError if the message was never sent, another
        OSError if the connection failed or no reply came in time."""
        try:
            connection = await self._connect()
        except OSError as error:
            self._node = self.rng.choice(self.host.nodes)
            raise ConnectionRefusedError(str(error)) from error
        self._met = len(self.machines[self._node].processes)
        ext = foreign_send(topic, message_id, self.rng.randrange(self.host.options.queues), level)
        try:
            return await connection.call(SEND_CODE, ext, self.host.body(topic, message_id, 10), timeout_s=4.0)
        except OSError:
            connection.abort()
            self._connection = None
            if self.rng.random() < 0.5:
                self._node = self.rng.choice(self.host.nodes)
            raise

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await dial(
                self.host.environment, Connection(f"{self._node}:{BROKER_PORT}", credentials=self.host.credentials)
            )
        return self._connection


async def read_queue(client: AsyncClient, topic: str, queue: int, address: str) -> tuple[list[Message], int]:
    """Returns every message of a queue that the node at this address has, and the offset below which retention has
    removed messages (0 if it has removed none)."""
    messages: list[Message] = []
    offset = lowest = 0
    while True:
        pulled = await client.pull(topic, queue, offset, 256, node=address)
        messages += pulled.messages
        if not pulled.messages and pulled.next_offset > offset:
            lowest = pulled.next_offset
        if pulled.status is PullStatus.END or (not pulled.messages and pulled.next_offset <= offset):
            return messages, lowest
        offset = pulled.next_offset
