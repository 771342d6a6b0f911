"""The client of a scripted run: one send, query or commit at a time, each at a node that the script names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.history import Op
from jepsen_like.sim.clients.client_machines import (
    FOREIGN_TOPIC,
    SEND_CODE,
    TOPIC,
    Attempt,
    ClientHost,
    Foreign,
    promise_of,
)
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.readers import OffsetRegister
from jepsen_like.sim.machines.machine import BROKER_PORT, Machine
from raftmq.client.connection import Connection, ConnectionPool, Reply, dial
from raftmq.client.errors import RaftMQError
from raftmq.client.producing.producer import AsyncProducer
from raftmq_wire.codes import is_unknown

ATTEMPT_S, TIMEOUT_S = 0.6, 4.0
"""Times in seconds after which RaftMQ's client gives up: ATTEMPT_S one attempt, TIMEOUT_S the whole send."""


class ScriptedClient:
    """The client of a script. `open`: number of operations that have not ended. Every operation is recorded and judged
    like those of a random run."""

    def __init__(self, host: ClientHost, recorder: Recorder, register: OffsetRegister) -> None:
        self.host, self.recorder, self.register = host, recorder, register
        self.open = 0
        self.retried: list[Foreign] = []
        self._sent = 0
        self._named: dict[int, Op] = {}
        self._stored: set[int] = set()
        self._producer: AsyncProducer | None = None
        self._links: ConnectionPool | None = None

    @property
    def address(self) -> str:
        """IP address of the client's machine."""
        return self.host.process.host

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self.open += 1

        async def run() -> None:
            try:
                await work()
            finally:
                self.open -= 1

        self.host.spawn(run)

    # --- our client --------------------------------------------------------------------------------------------------

    def send(self, count: int, size: int) -> None:
        """Sends `count` messages with RaftMQ's client, each after the one before has its outcome, to the leader that
        the client finds."""
        self._begin(partial(self._send_all, count, size))

    async def _send_all(self, count: int, size: int) -> None:
        if self._producer is None:
            self._producer = self.host.client(timeout_s=TIMEOUT_S).producer(attempt_timeout_s=ATTEMPT_S)
        for _ in range(count):
            op = self._invoke()
            try:
                result = await self._producer.send(TOPIC, self.host.body(TOPIC, op.value["id"], size), queue_id=0)
            except (RaftMQError, OSError) as error:
                self.recorder.failed(op, error)
            else:
                self.recorder.stored(op, result.queue_id, result.queue_offset)

    def _invoke(self, level: str = "") -> Op:
        self._sent += 1
        return self.recorder.invoke("send", {"id": f"hand-{self._sent}", "topic": TOPIC, **promise_of(level)})

    # --- a client of others, at one node -----------------------------------------------------------------------------

    def ask(self, node: str, count: int, size: int, level: str = "") -> None:
        """Sends `count` messages to one node as RocketMQ's clients do: all at once, and each once."""
        for _ in range(count):
            self._begin(partial(self._ask, node, self._invoke(level), size, level))

    async def _ask(self, node: str, op: Op, size: int, level: str) -> None:
        try:
            reply = await self._call(node, TOPIC, op.value["id"], size, level)
        except OSError as error:
            self.recorder.failed(op, error)
        else:
            self.recorder.answered(op, reply)

    def offer(self, machine: Machine, message_id: str) -> None:
        """Sends a message with this UNIQ_KEY to one node; it may have been sent before."""
        foreign = next((one for one in self.retried if one.message_id == message_id), None)
        if foreign is None:
            foreign = Foreign(message_id, [])
            self.retried.append(foreign)
        self._begin(partial(self._offer, machine, foreign))

    async def _offer(self, machine: Machine, foreign: Foreign) -> None:
        incarnation = 0
        try:
            await self._link(machine.host)
            incarnation = len(machine.processes)
            reply = await self._call(machine.host, FOREIGN_TOPIC, foreign.message_id, 10)
        except OSError:
            ended = "silence"
        else:
            unknown = is_unknown(reply.code, reply.remark)
            ended = "ok" if reply.code == 0 else "unknown" if unknown else "no"
        foreign.attempts.append(Attempt(machine.host, incarnation, ended))

    async def _call(self, node: str, topic: str, message_id: str, size: int, level: str = "") -> Reply:
        link, fields = await self._link(node), foreign_send(topic, message_id, 0, level)
        return await link.call(SEND_CODE, fields, self.host.body(topic, message_id, size), timeout_s=4.0)

    async def _link(self, node: str) -> Connection:
        if self._links is None:
            self._links = ConnectionPool(self.host.environment)
        return await self._links.get(f"{node}:{BROKER_PORT}")

    # --- a client that names its sends -------------------------------------------------------------------------------

    def named(self, node: str, sequences: list[int], low: int) -> None:
        """Sends messages with these sequence numbers of one producer id to a node. Some may have been sent before and
        their answers lost: each may be stored at most once."""
        for sequence in sequences:
            op = self._named.get(sequence)
            if op is None:
                value = {"id": f"named-{sequence}", "topic": TOPIC}
                op = self._named[sequence] = self.recorder.invoke("send", value)
            self._begin(partial(self._name, node, op, sequence, low))

    async def _name(self, node: str, op: Op, sequence: int, low: int) -> None:
        ext = foreign_send(TOPIC, op.value["id"], 0)
        ext |= {"raftmqPid": "ab" * 16, "raftmqSeq": str(sequence), "raftmqLow": str(low)}
        try:
            reply = await (await self._link(node)).call(
                SEND_CODE, ext, self.host.body(TOPIC, op.value["id"], 10), timeout_s=4.0
            )
        except OSError:
            return
        if reply.code == 0 and sequence not in self._stored:
            self._stored.add(sequence)
            self.recorder.answered(op, reply)

    # --- the register ------------------------------------------------------------------------------------------------

    def commit(self, node: str) -> None:
        """Commits the next value of the register (a committed offset) through a node."""
        self._begin(partial(self._commit, node))

    async def _commit(self, node: str) -> None:
        try:
            await self.register.write(partial(self._link, node), 4.0)
        except OSError:
            return

    def query(self, node: str, *, anew: bool) -> None:
        """Reads the register through a node; the answer must not be older than what is acknowledged by now.

        `anew`: uses a new connection, whose requests are numbered from one again.
        """
        self._begin(partial(self._query, node, self.register.acked, anew))

    async def _query(self, node: str, low: int, anew: bool) -> None:
        try:
            own = dial(self.host.environment, Connection(f"{node}:{BROKER_PORT}")) if anew else self._link(node)
            await self.register.ask(await own, low)
        except OSError:
            return
