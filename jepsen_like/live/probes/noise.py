"""Clients that send as fast as they can, and ignore the answers: separate processes, each of which reports the outcomes
of its sends.

One client in each process is RaftMQ's, with many sends in flight. The others have plain connections: whatever the
answer to a send is, the next send follows at once, as in a program that repeats refused sends. Some of their sends are
oneway.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from jepsen_like.client_kit.fields import foreign_send
from raftmq.client import aconnect
from raftmq.client.connection import Connection, dial
from raftmq.client.environment import REAL, Environment, with_credentials, with_tls
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.client.producing.send_frame import MessageIds
from raftmq_wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from raftmq.client import AsyncClient, AsyncProducer
    from raftmq.client.message import SendResult
    from raftmq.local.local_users import ClientOptions

TIMEOUT_S: Final = 2.5
"""Seconds that RaftMQ's client waits for the outcome of a send: longer than a node holds a send back, so that some
sends are refused and some succeed.
"""
ANSWER_S: Final = 20.0
ONEWAY_S: Final = 0.1
"""Seconds between two oneway sends."""
AGAIN_S: Final = 0.05
"""Seconds until a connection that could not be made, or was lost, is tried again."""
STOP_S: Final = 0.05
PULLED_AT_ONCE: Final = 32
END_S: Final = 60.0
"""Longest time in seconds until a process that was told to stop has ended."""
OURS: Final = -1
"""The lane number of RaftMQ's client. Plain connections have lanes from 0 on."""
REFUSED: Final = frozenset({ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY})
"""Response codes to a send on a plain connection that mean that the message was not stored."""


class NoiseOrders(NamedTuple):
    """The numbers and settings of the clients of one process."""

    servers: str
    nodes: tuple[str, ...]
    """The addresses of the nodes' client ports."""
    options: ClientOptions
    topic: str
    queues: int
    ours: int = 300
    """Sends that RaftMQ's client has in flight; 0: there is no such client."""
    connections: int = 4
    """Number of plain connections."""
    at_once: int = 100
    """Sends that each plain connection has in flight."""
    pullers: int = 0
    """Number of clients that pull the first messages again and again, each from one node."""
    seconds_max: float = 900.0
    """Seconds after which the process ends even if it is not told to."""


class Ack(NamedTuple):
    """An acknowledged send. Seconds are monotonic."""

    number: int
    lane: int
    sent_s: float
    at_s: float
    queue: int
    offset: int


class NoiseSends(NamedTuple):
    """The outcomes of the sends of one process: message `number` has the body b"writer/number ...". Messages whose
    number is neither in `refused` nor in `unknown` were acknowledged.
    """

    writer: int
    sent: int
    refused: frozenset[int]
    """Numbers of the messages whose answer says that they were not stored."""
    unknown: frozenset[int]
    """Numbers of the messages without an answer that says whether they were stored, including all oneway ones."""
    acks: list[Ack]
    pulled: list[tuple[float, int]]
    """(monotonic seconds, number of messages) of each answer to a pull."""
    codes: dict[str, int]
    """Code of an answer -> how often it came."""


class Noise:
    """A context in which processes send to a topic, until `stop`."""

    def __init__(self, orders: NoiseOrders, processes: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._started: list[tuple[Any, Any]] = []
        for writer in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_play, args=(orders, writer, self._stop, theirs), daemon=True)
            self._started.append((process, ours))

    def __enter__(self) -> Self:
        for process, _ in self._started:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _ in self._started:
            process.kill()
            process.join()

    def stop(self) -> list[NoiseSends]:
        """Stops all clients; returns the sends of each process. Raises OSError if a process ended before, or does not
        report within END_S.
        """
        self._stop.set()
        told: list[NoiseSends] = []
        for process, pipe in self._started:
            if not pipe.poll(END_S):
                raise OSError(f"process {process.pid} does not say what it sent")
            try:
                told.append(pipe.recv())
            except EOFError:
                raise OSError(f"process {process.pid} ended before it said what it sent") from None
        return told


def _play(orders: NoiseOrders, writer: int, stop: Any, pipe: Any) -> None:
    pipe.send(asyncio.run(_Player(orders, writer, stop).play()))


class _Player:
    """The clients of one process, on one loop."""

    def __init__(self, orders: NoiseOrders, writer: int, stop: Any) -> None:
        self._orders, self._writer, self._stop = orders, writer, stop
        self._numbers = itertools.count()
        self._refused, self._unknown = set[int](), set[int]()
        self._acks: list[Ack] = []
        self._pulled: list[tuple[float, int]] = []
        self._codes: Counter[str] = Counter()
        self._ends = False
        signs = with_credentials(REAL, orders.options.get("access_key", ""), orders.options.get("secret_key", ""))
        self._environment: Environment = with_tls(signs, orders.options.get("tls"))
        self._ids = MessageIds(self._environment.entropy(10))

    async def play(self) -> NoiseSends:
        """Runs all clients until the process is told to stop; returns the outcomes."""
        orders = self._orders
        async with aconnect(orders.servers, timeout_s=TIMEOUT_S, **orders.options) as mq:
            producer = mq.producer(max_messages=max(1, orders.ours))
            tasks = [asyncio.create_task(self._pull(mq, number)) for number in range(orders.pullers)]
            tasks += [asyncio.create_task(self._plain(lane)) for lane in range(orders.connections)]
            if orders.ours:
                tasks.append(asyncio.create_task(self._ours(producer)))
            until_s = time.monotonic() + orders.seconds_max
            while not self._stop.is_set() and time.monotonic() < until_s:  # noqa: ASYNC110 - an event of processes
                await asyncio.sleep(STOP_S)
            self._ends = True
            await asyncio.gather(*tasks)
            await producer.close()
        sent = next(self._numbers)
        return NoiseSends(
            self._writer,
            sent,
            frozenset(self._refused),
            frozenset(self._unknown),
            self._acks,
            self._pulled,
            dict(self._codes),
        )

    def _body(self, number: int) -> bytes:
        return b"%d/%d " % (self._writer, number) + b"." * 80

    # --- our client --------------------------------------------------------------------------------------------------

    async def _ours(self, producer: AsyncProducer) -> None:
        in_flight: set[asyncio.Future[SendResult]] = set()
        while not self._ends:
            number, sent_s = next(self._numbers), time.monotonic()
            try:
                future = await producer.send_soon(self._orders.topic, self._body(number))
            except RaftMQError as error:
                self._settle(number, error)
                await asyncio.sleep(AGAIN_S)
                continue
            in_flight.add(future)
            future.add_done_callback(in_flight.discard)
            future.add_done_callback(lambda done, number=number, sent_s=sent_s: self._done(number, sent_s, done))  # type: ignore[misc]
        await asyncio.gather(*in_flight, return_exceptions=True)

    def _done(self, number: int, sent_s: float, done: asyncio.Future[SendResult]) -> None:
        error = done.exception()
        if error is not None:
            self._settle(number, error)
            return
        told = done.result()
        self._acks.append(Ack(number, OURS, sent_s, time.monotonic(), told.queue_id, told.queue_offset))

    def _settle(self, number: int, error: BaseException) -> None:
        known = isinstance(error, RaftMQError) and not isinstance(error, Unknown)
        self._codes[f"ours: {getattr(error, 'code', None) or type(error).__name__}"] += 1
        (self._refused if known else self._unknown).add(number)

    # --- plain connections -------------------------------------------------------------------------------------------

    async def _plain(self, lane: int) -> None:
        nodes = self._orders.nodes
        for turn in itertools.count(lane):
            if self._ends:
                return
            connection = Connection(nodes[turn % len(nodes)], credentials=self._environment.credentials)
            try:
                await dial(self._environment, connection)
            except OSError:
                await asyncio.sleep(AGAIN_S)
                continue
            sends = [self._send(connection, lane) for _ in range(self._orders.at_once)]
            await asyncio.gather(self._oneway(connection, lane), *sends)
            connection.abort()

    async def _send(self, connection: Connection, lane: int) -> None:
        while not (self._ends or connection.closed):
            number, sent_s = next(self._numbers), time.monotonic()
            body = self._body(number)
            try:
                reply = await connection.call(RequestCode.SEND_MESSAGE_V2, self._ext(lane), body, timeout_s=ANSWER_S)
            except (OSError, TimeoutError):
                self._unknown.add(number)
                return
            self._codes[str(reply.code)] += 1
            if reply.code == ResponseCode.SUCCESS:
                queue, offset = int(reply.ext["queueId"]), int(reply.ext["queueOffset"])
                self._acks.append(Ack(number, lane, sent_s, time.monotonic(), queue, offset))
            elif reply.code in REFUSED:
                self._refused.add(number)
            else:
                self._unknown.add(number)
                await asyncio.sleep(AGAIN_S)  # no node leads now

    async def _oneway(self, connection: Connection, lane: int) -> None:
        while not (self._ends or connection.closed):
            number = next(self._numbers)
            self._unknown.add(number)
            connection.tell(RequestCode.SEND_MESSAGE_V2, self._ext(lane), self._body(number))
            await asyncio.sleep(ONEWAY_S)

    def _ext(self, lane: int) -> dict[str, str]:
        return foreign_send(self._orders.topic, self._ids.next(), lane % self._orders.queues, group="noise")

    # --- pulls -------------------------------------------------------------------------------------------------------

    async def _pull(self, mq: AsyncClient, number: int) -> None:
        node = self._orders.nodes[number % len(self._orders.nodes)]
        while not self._ends:
            try:
                pulled = await mq.pull(self._orders.topic, 0, 0, PULLED_AT_ONCE, node=node, wait_s=1.0)
            except RaftMQError as error:
                self._codes[f"pull: {getattr(error, 'code', None) or type(error).__name__}"] += 1
                await asyncio.sleep(AGAIN_S)
                continue
            self._pulled.append((time.monotonic(), len(pulled.messages)))


def codes_of(sent: Iterable[NoiseSends]) -> dict[str, int]:
    """Returns how often each answer came, over all processes."""
    total: Counter[str] = Counter()
    for each in sent:
        total.update(each.codes)
    return dict(sorted(total.items()))
