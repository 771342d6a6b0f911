"""The other clients of the simulator: a consumer group with commits, an offsets register, topics and groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from cluster.client.client import AsyncClient
from cluster.client.errors import NotFound, RaftMQError, Unknown
from cluster.client.message import Message
from jepsen_like.sim.clients import TOPIC, ClientHost, id_of
from jepsen_like.sim.recorder import Recorder

GROUP = "readers"
REGISTER_GROUP = "register"
Report = Callable[[str, str], None]
"""(checker, what)"""


class GroupReader:
    """One member of a consumer group at a time: reads, commits, leaves with or without a commit, comes back."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report) -> None:
        self.host, self.recorder, self._report = host, recorder, report
        self.rng = host.rng
        self.stopped = False
        self.done = 0
        self.seen: dict[tuple[int, int], str] = {}
        """(queue, offset) -> message id."""
        self.ids: set[str] = set()
        self._floor: dict[int, int] = defaultdict(int)
        """Queue -> what was surely committed: no later member may begin below."""
        self._next: dict[int, int] = {}

    def start(self) -> None:
        """Begins; `stopped` ends it."""
        self.host.spawn(self._work)

    async def _work(self) -> None:
        client = self.host.client()
        while not self.stopped:
            try:
                await self._session(client)
            except (RaftMQError, OSError):
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))
        self.done = 1

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
        op = self.recorder.invoke("commit", positions)
        try:
            await commit()  # type: ignore[misc]
        except (RaftMQError, OSError) as error:
            self.recorder.end(op, "info", str(error)[:100])
            raise
        self.recorder.end(op, "ok", positions)
        for queue, offset in positions.items():
            self._floor[queue] = offset

    async def _leave(self, close: Callable[..., object], positions: dict[int, int], commits: bool) -> None:
        """A last commit of unknown outcome may also land later, and moves the group back: the floor is gone."""
        try:
            await close(commit=commits)  # type: ignore[misc]
            for queue, offset in positions.items():
                self._floor[queue] = offset
        except (RaftMQError, OSError):
            self._floor.clear()

    def _take(self, message: Message) -> None:
        queue, offset, message_id = message.queue_id, message.queue_offset, id_of(message.body)
        due = self._next.get(queue)
        if due is None and offset < self._floor[queue]:
            self._report("consumer", f"queue {queue} begins at {offset}, {self._floor[queue]} was committed")
        if due is not None and offset != due:
            self._report("consumer", f"queue {queue}: offset {offset} where {due} was due")
        self._next[queue] = offset + 1
        known = self.seen.setdefault((queue, offset), message_id)
        if known != message_id:
            self._report("consumer", f"queue {queue} offset {offset} was {known!r} and is now {message_id!r}")
        if (queue, offset - 1) not in self.seen and offset:
            self._report("consumer", f"queue {queue}: {offset} came before {offset - 1} ever did")
        self.ids.add(message_id)


class OffsetRegister:
    """One writer of one committed offset, always forward, and reads in between: what is read may never be older."""

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report) -> None:
        self.host, self.recorder, self._report = host, recorder, report
        self.rng = host.rng
        self.stopped = False
        self.done = 0
        self.acked = 0
        self.tried = 0

    def start(self) -> None:
        """Begins; `stopped` ends it."""
        self.host.spawn(self._work)

    async def _work(self) -> None:
        client = self.host.client()
        while not self.stopped:
            await (self._write(client) if self.rng.random() < 0.6 else self._read(client))
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))
        self.done = 1

    async def _write(self, client: AsyncClient) -> None:
        self.tried += 1
        op = self.recorder.invoke("offset-write", self.tried)
        try:
            await client.admin.commit(REGISTER_GROUP, TOPIC, 0, self.tried)
        except (RaftMQError, OSError) as error:
            unknown = isinstance(error, (Unknown, OSError))
            self.recorder.end(op, "info" if unknown else "fail", str(error)[:100])
            return
        self.acked = self.tried
        self.recorder.end(op, "ok", self.tried)

    async def _read(self, client: AsyncClient) -> None:
        low = self.acked
        op = self.recorder.invoke("offset-read", None)
        try:
            found = await client.admin.committed(REGISTER_GROUP, TOPIC, 0) or 0
        except (RaftMQError, OSError) as error:
            self.recorder.end(op, "fail", str(error)[:100])
            return
        self.recorder.end(op, "ok", found)
        if not low <= found <= self.tried:
            self._report("register", f"offset {found} was read; {low} was acknowledged before, {self.tried} is newest")


class Catalogue:
    """Creates and deletes topics and groups, one after the other; remembers what each name must be now."""

    NAMES = ("t-a", "t-b", "g-a", "g-b")

    def __init__(self, host: ClientHost, recorder: Recorder) -> None:
        self.host, self.recorder = host, recorder
        self.rng = host.rng
        self.stopped = False
        self.done = 0
        self.exists: dict[str, bool | None] = dict.fromkeys(self.NAMES, False)
        """None: an operation of unknown outcome was the last, or may still land."""

    def start(self) -> None:
        """Begins; `stopped` ends it."""
        self.host.spawn(self._work)

    async def _work(self) -> None:
        client = self.host.client()
        while not self.stopped:
            await self._change(client, self.rng.choice(self.NAMES))
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        self.done = 1

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
        op = self.recorder.invoke(f, name)
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
