"""Further clients of the simulator: a consumer group that commits, a register made of one committed offset, and a
client that creates and deletes topics and groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import TOPIC, Client, ClientHost, Retries, id_of
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.machines.machine import BROKER_PORT
from jepsen_like.sim.options import stream
from raftmq.client.client import AsyncClient
from raftmq.client.connection import Connection, ConnectionPool, dial
from raftmq.client.errors import NotFound, RaftMQError, Unknown, error_of
from raftmq.client.message import Message
from raftmq_wire.codes import RequestCode, ResponseCode

GROUP = "readers"
REGISTER_GROUP = "register"
IMPATIENT_S = 0.4
_REGISTER = {"consumerGroup": REGISTER_GROUP, "topic": TOPIC, "queueId": "0", "setZeroIfNotFound": "false"}


class GroupReader(Client):
    """A consumer group with one member at a time: the member reads, commits, leaves with or without a commit, and comes
    back."""

    def __init__(
        self, host: ClientHost, recorder: Recorder, report: Report, first_offset: Callable[[int], int] = lambda queue: 0
    ) -> None:
        """`first_offset(queue)`: the offset below which retention may have removed messages."""
        super().__init__(host)
        self.recorder, self._report = recorder, report
        self._first_offset = first_offset
        self.seen: dict[tuple[int, int], str] = {}
        """(queue, offset) -> id of the message that was read there."""
        self.ids: set[str] = set()
        self._floor: dict[int, int] = defaultdict(int)
        """Queue -> offset that was surely committed. No later member may begin below it, except at a place of
        `_doubtful`."""
        self._doubtful: set[tuple[int, int]] = set()
        """(queue, offset) of commits that may still be carried out."""
        self._next: dict[int, int] = {}

    async def _work(self) -> None:
        client = self.host.client()
        self._retries = Retries(client)
        while not self.stopped:
            try:
                await self._session(client)
            except (RaftMQError, OSError):
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))

    async def _session(self, client: AsyncClient) -> None:
        consumer = client.consumer(GROUP, TOPIC, max_wait_s=0.5)
        self._next.clear()
        left = self.rng.randint(20, 120)
        commits = self.rng.random() < 0.7
        try:
            await consumer.open()
            while left and not self.stopped:
                async for message in consumer:
                    self._take(message)
                    left -= 1
                    if left % 15 == 0 or not left or self.stopped:
                        break
                if left % 15 == 0:
                    await self._commit(consumer.commit, consumer.positions())
        finally:
            await self._leave(consumer.close, consumer.positions() if commits else {}, commits)

    async def _commit(self, commit: Callable[[], object], positions: dict[int, int]) -> None:
        op, retries = self.recorder.invoke("commit", positions), self._retries.count
        try:
            await commit()  # type: ignore[misc]
        except (RaftMQError, OSError) as error:
            self._doubtful.update(positions.items())
            self.recorder.end(op, "info", str(error)[:100])
            raise
        self.recorder.end(op, "ok", positions)
        self._committed(positions, retries)

    def _committed(self, positions: dict[int, int], retries: int) -> None:
        if self._retries.count != retries:
            self._doubtful.update(positions.items())
        for queue, offset in positions.items():
            self._floor[queue] = offset

    async def _leave(self, close: Callable[..., object], positions: dict[int, int], commits: bool) -> None:
        retries = self._retries.count
        try:
            await close(commit=commits)  # type: ignore[misc]
        except (RaftMQError, OSError):
            self._doubtful.update(positions.items())
        else:
            self._committed(positions, retries)

    def _take(self, message: Message) -> None:
        queue, offset, message_id = message.queue_id, message.queue_offset, id_of(message.body)
        due = self._next.get(queue)
        if due is None and offset < self._floor[queue] and (queue, offset) not in self._doubtful:
            self._report("consumer", f"queue {queue} begins at {offset}, {self._floor[queue]} was committed")
        moved = (due is None or offset > due) and 0 < offset <= self._first_offset(queue)
        if due is not None and offset != due and not moved:
            self._report("consumer", f"queue {queue}: offset {offset} where {due} was due")
        self._next[queue] = offset + 1
        known = self.seen.setdefault((queue, offset), message_id)
        if known != message_id:
            self._report("consumer", f"queue {queue} offset {offset} was {known!r} and is now {message_id!r}")
        if (queue, offset - 1) not in self.seen and offset and not moved:
            self._report("consumer", f"queue {queue}: {offset} came before {offset - 1} ever did")
        self.ids.add(message_id)


class OffsetRegister(Client):
    """A register: one committed offset, which one writer moves always forward, and a reader that asks any node for it.
    No read may return an older offset than one acknowledged before the read.

    The reader keeps asking a node that was cut off from the others, like a client that does not notice the cut.
    """

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report) -> None:
        super().__init__(host)
        self.recorder, self._report = recorder, report
        self.acked = 0
        self.tried = 0
        self._doubtful: set[int] = set()
        """Offsets whose commit was not acknowledged. Such a commit may be carried out late, so the offset may be read
        after newer ones.
        """

    def start(self) -> None:
        """Starts the writer and the reader as tasks; setting `stopped` ends them."""
        super().start()
        self.host.spawn(self._ask_around)

    async def _work(self) -> None:
        client = self.host.client()
        self._links, self._address = ConnectionPool(self.host.environment), self._any()
        while not self.stopped:
            await (self._write() if self.rng.random() < 0.8 else self._read(client))
            await asyncio.sleep(self.rng.uniform(0.02, 0.15))
        self._links.close()

    async def _ask_around(self) -> None:
        rng, connection = stream(self.host.options.seed, "ask around"), None
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.02, 0.08))
            try:
                if connection is None or connection.closed or rng.random() < 0.05:
                    address = f"{rng.choice(self.host.nodes)}:{BROKER_PORT}"
                    connection = await dial(self.host.environment, Connection(address))
            except OSError:
                connection = None
                continue
            self.host.spawn(partial(self.ask, connection, self.acked))

    async def ask(self, connection: Connection, low: int) -> None:
        """Reads the register once on this connection, and reports an offset older than `low`. The caller does not wait
        for one read before the next, because a paused leader answers only when it is resumed."""
        try:
            reply = await connection.call(RequestCode.QUERY_CONSUMER_OFFSET, _REGISTER, timeout_s=3.0)
        except OSError:
            return
        if reply.code == ResponseCode.SUCCESS:
            self._judge(low, int(reply.ext["offset"]))
        elif reply.code == ResponseCode.QUERY_NOT_FOUND:
            self._judge(low, 0)

    def _judge(self, low: int, found: int) -> None:
        if not low <= found <= self.tried and found not in self._doubtful:
            self._report("register", f"offset {found} was read; {low} was acknowledged before, {self.tried} is newest")

    async def _write(self) -> None:
        """Attempts one write through any node. The timeout is short, so that a paused leader does not keep the writer
        from the next write.
        """
        try:
            if await self.write(partial(self._links.get, self._address), IMPATIENT_S):
                return
        except OSError:
            self._links.drop(self._address)
        self._address = self._any()

    async def write(self, connect: Callable[[], Awaitable[Connection]], patience_s: float) -> bool:
        """Commits the next number on the connection that `connect` returns. Returns True if the commit was
        acknowledged, False if another answer came. Raises OSError if the connection fails, or if no answer comes within
        `patience_s` seconds."""
        self.tried += 1
        value = self.tried
        op = self.recorder.invoke("offset-write", value)
        try:
            link = await connect()
        except OSError as error:
            self.recorder.end(op, "fail", f"not sent: {error}"[:100])
            raise
        try:
            ext = {**_REGISTER, "commitOffset": str(value)}
            reply = await link.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_s=patience_s)
        except OSError as error:
            self._doubtful.add(value)
            self.recorder.end(op, "info", str(error)[:100])
            raise
        if reply.code == ResponseCode.SUCCESS:
            self.acked = value
            self.recorder.end(op, "ok", value)
            return True
        error_kind = error_of(reply.code, reply.remark, "commit")
        self._doubtful.add(value)
        self.recorder.end(op, "info" if isinstance(error_kind, Unknown) else "fail", str(error_kind)[:100])
        return False

    def _any(self) -> str:
        return f"{self.rng.choice(self.host.nodes)}:{BROKER_PORT}"

    async def _read(self, client: AsyncClient) -> None:
        low = self.acked
        op = self.recorder.invoke("offset-read", None)
        try:
            found = await client.admin.committed(REGISTER_GROUP, TOPIC, 0) or 0
        except (RaftMQError, OSError) as error:
            self.recorder.end(op, "fail", str(error)[:100])
            return
        self.recorder.end(op, "ok", found)
        self._judge(low, found)


class CatalogueClient(Client):
    """Creates and deletes topics and groups, one after the other, and keeps in `exists` which of them must exist. At
    the end the judge compares this with the nodes."""

    NAMES = ("t-a", "t-b", "g-a", "g-b")

    def __init__(self, host: ClientHost, recorder: Recorder) -> None:
        super().__init__(host)
        self.recorder = recorder
        self.exists: dict[str, bool | None] = dict.fromkeys(self.NAMES, False)
        """Name -> True if it exists, False if not; None if a request was retried and may still be carried out."""

    async def _work(self) -> None:
        client = self.host.client()
        self._retries = Retries(client)
        while not self.stopped:
            await self._change(client, self.rng.choice(self.NAMES))
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))

    async def _change(self, client: AsyncClient, name: str) -> None:
        admin = client.admin
        creates = self.rng.random() < 0.6
        f = f"{'create' if creates else 'delete'}-{'topic' if name[0] == 't' else 'group'}"
        calls: dict[str, Callable[[], Awaitable[None]]] = {
            "create-topic": partial(admin.create_topic, name, queues=self.rng.randint(1, 3)),
            "delete-topic": partial(admin.delete_topic, name),
            "create-group": partial(admin.create_group, name),
            "delete-group": partial(admin.delete_group, name),
        }
        op, retries = self.recorder.invoke(f, name), self._retries.count
        try:
            await calls[f]()
        except NotFound as error:
            self.recorder.end(op, "fail", str(error)[:100])
        except (RaftMQError, OSError) as error:
            unknown = isinstance(error, (Unknown, OSError))
            self.recorder.end(op, "info" if unknown else "fail", str(error)[:100])
            if unknown:
                self.exists[name] = None
        else:
            self.recorder.end(op, "ok", name)
            if self.exists[name] is not None:
                self.exists[name] = creates
        if self._retries.count != retries:
            self.exists[name] = None
