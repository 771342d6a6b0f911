"""Hostile clients that speak the protocol: senseless requests, halves of frames, pulls whose answers are not read.

During the faults the run only checks that no node ends because of what they send, and that no request is answered
twice. After the heal they go on for a while (`sim/attack_phase.py`), and then every request of theirs must be answered,
once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

from jepsen_like.client_kit.fields import beat_body, foreign_send, pull_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, TOPIC, Client, ClientHost
from jepsen_like.sim.clients.raw_client import RawConnection, UnansweredRequest
from jepsen_like.sim.hostile.senseless_requests import draw_odd
from jepsen_like.sim.hostile.unknown_peers import intrude
from jepsen_like.sim.machines.machine import BROKER_PORT, NAMESRV_PORT
from jepsen_like.sim.options import LONG_WORK_FROM, MANY_FROM, stream
from jepsen_like.sim.users.attackers import OWN
from jepsen_like.sim.users.user_clients import first_secret
from raftlog.types import NodeId
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import BatchItem, build_batch
from raftmq_wire.signature import Credentials

HALVES = (4, 16)
"""Fewest and most connections of one episode, each of which gets the beginning of a frame."""
HALF_BYTES = (200, 2900)
PULLS = (20, 120)
"""Fewest and most pulls in flight at once on one connection."""
GROUPS = (5, 40)
"""Fewest and most groups in one heartbeat."""
FILTERS = (10, 60)
"""Fewest and most pulls, each with a filter of its own, in one write."""
TERMS = (20, 120)
"""Fewest and most terms of one filter, in pulls that have a filter of their own (FILTERS)."""
WAKES = (60, 300)
"""Fewest and most pulls that are parked for one message."""
JOINS = (20, 120)
"""Fewest and most consumers that join one group from one connection."""
MEMBERS = (600, 2000, 2000)
"""Numbers of consumers of one group on one connection, of which one is drawn."""
BATCHES, BATCH = (4, 10), (40, 100)
"""BATCHES: fewest and most batches of messages that are sent to one topic. BATCH: fewest and most messages in each."""
USED_S = 30.0
"""Time in seconds between two requests that keep an otherwise silent connection in use."""
DONE_S = 4.0
"""Time in seconds for which an episode (one kind of attack) leaves its connection open for the answers."""


OWN_TOPICS = ("odd-a", "odd-b", "odd-c")
PULL_EXT = pull_fields("odd-pull", TOPIC, count=1024)
"""Fields of a pull that carries its own subscription and is not parked."""


class Hostile(Client):
    """The hostile client: it plays episodes against the nodes. Setting `stopped` ends it. It keeps every connection
    until it is closed, so that unanswered requests are found."""

    def __init__(self, host: ClientHost, report: Report) -> None:
        super().__init__(host)
        self._report = report
        self.pace_s = (0.2, 1.2)
        """Shortest and longest time in seconds between two episodes."""
        self.connections: list[RawConnection] = []
        self._busy = 0
        self._signers = stream(host.options.seed, "signers of hostile clients")
        self.episodes: tuple[Callable[[str], Awaitable[None]], ...] = (
            self.odd,
            self.odd,
            self.odd,
            self.halves,
            self.pulls,
            self.twice,
            self.crowd,
            self.stranger,
        )
        if host.options.seed >= LONG_WORK_FROM:
            self.episodes += (self.filters, self.wakes, self.joins)
        if host.options.seed >= MANY_FROM:
            self.episodes += (self.members, self.rows)

    async def _work(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(*self.pace_s))
            self.begin(self.rng.choice(self.episodes), self.rng.choice(self.host.nodes))

    def begin(self, episode: Callable[[str], Awaitable[None]], node: str) -> None:
        """Starts an episode against a node as a task; it ends by itself."""
        self._busy += 1

        async def run() -> None:
            try:
                await episode(node)
            except OSError:
                pass
            finally:
                self._busy -= 1

        self.host.spawn(run)

    @property
    def done(self) -> bool:
        """True if no episode is in progress."""
        return not self._busy

    def overdue(self, before_s: float, *, silent_since_s: float) -> list[tuple[str, UnansweredRequest]]:
        """Returns the overdue requests on all open connections (see `RawConnection.overdue`), each with the name of its
        connection."""
        self.connections = [one for one in self.connections if not one.closed]
        return [
            (one.name, asked)
            for one in self.connections
            for asked in one.overdue(before_s, silent_since_s=silent_since_s)
        ]

    def leave(self) -> None:
        """Aborts all open connections."""
        for one in self.connections:
            self.host.process.run(one.transport.abort)

    async def open(self, node: str, port: int | None = None) -> RawConnection:
        """Opens a new connection to a node. Raises OSError."""
        port = self.rng.choice((BROKER_PORT, BROKER_PORT, NAMESRV_PORT)) if port is None else port
        made = RawConnection(f"{node}:{port} #{len(self.connections)}", self.host.loop, self._report, self._signer())
        self.connections.append(await made.reach(node, port))
        return made

    def _signer(self) -> Credentials | None:
        """Draws the user that signs on a connection, in runs with users: the Super, a user with few rights, or none."""
        if self.host.credentials is None:
            return None
        return self._signers.choice(
            (self.host.credentials, self.host.credentials, Credentials(OWN, first_secret(OWN)), None)
        )

    # --- episodes ----------------------------------------------------------------------------------------------------

    async def odd(self, node: str) -> None:
        """Sends senseless requests, some at once, some oneway, with either form of header."""
        rng = random.Random(self.rng.random())
        connection = await self.open(node)
        for _ in range(rng.randint(3, 20)):
            request = draw_odd(rng)
            connection.write(
                connection.frame(
                    request.code,
                    request.ext,
                    request.body,
                    oneway=rng.random() < 0.15,
                    parked_s=request.parked_s,
                    binary=rng.random() < 0.2,
                )
            )
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0.0, 0.2))
        await self._wait(connection)

    async def halves(self, node: str) -> None:
        """Sends the beginnings of frames on several connections, which stay open until the run's end or until the node
        closes them."""
        for _ in range(self.rng.randint(*HALVES)):
            connection = await self.open(node)
            size = self.rng.randint(*HALF_BYTES)
            connection.write((size + 100).to_bytes(4, "big") + (40).to_bytes(4, "big") + bytes(size))
        await asyncio.sleep(1.0)

    async def pulls(self, node: str) -> None:
        """Pulls the same messages 20 to 120 times, and begins to read the answers at once or up to 3 s later."""
        rng = random.Random(self.rng.random())
        connection = await self.open(node, BROKER_PORT)
        slow_s = rng.choice((0.0, 0.5, 3.0))
        if slow_s:
            connection.transport.pause_reading()
        for _ in range(rng.randint(*PULLS)):
            connection.write(connection.frame(RequestCode.PULL_MESSAGE, PULL_EXT))
        await asyncio.sleep(slow_s)
        if slow_s and not connection.closed:
            connection.transport.resume_reading()
        await self._wait(connection)

    async def twice(self, node: str) -> None:
        """Sends the same message with the same producer identity again before the first send is answered."""
        connection = await self.open(node, BROKER_PORT)
        pid, topic = self.rng.randbytes(16).hex(), self.rng.choice(OWN_TOPICS)
        ext, body = foreign_send(topic, "twice", 0), self.host.marked(topic, "twice")
        for sequence in range(1, self.rng.randint(2, 5)):
            named = {**ext, "raftmqPid": pid, "raftmqSeq": str(sequence), "raftmqLow": "1"}
            for _ in range(self.rng.randint(2, 3)):
                connection.write(connection.frame(SEND_CODE, named, body))
                if self.rng.random() < 0.3:
                    await asyncio.sleep(0.001)
        await self._wait(connection)

    async def crowd(self, node: str) -> None:
        """Sends a heartbeat for many groups that do not exist."""
        connection = await self.open(node, BROKER_PORT)
        first = self.rng.randrange(1 << 20)
        names = [f"crowd-{first + n}" for n in range(self.rng.randint(*GROUPS))]
        connection.write(connection.frame(RequestCode.HEART_BEAT, {}, beat_body("crowd", names)))
        await self._wait(connection)

    async def filters(self, node: str) -> None:
        """Sends pulls with long filters that the node has not seen before, all in one write."""
        connection = await self.open(node, BROKER_PORT)
        first, terms = self.rng.randrange(1 << 20), self.rng.randint(*TERMS)
        data = b""
        for number in range(first, first + self.rng.randint(*FILTERS)):
            text = " OR ".join(f"a{term} = {number}" for term in range(terms))
            ext = PULL_EXT | {"consumerGroup": "long-filters", "subscription": text, "expressionType": "SQL92"}
            data += connection.frame(RequestCode.PULL_MESSAGE, ext)
        connection.write(data)
        await self._wait(connection)

    async def wakes(self, node: str) -> None:
        """Parks pulls at the end of one queue, some with the same filter and some without, and sends one message that
        wakes all."""
        rng = random.Random(self.rng.random())
        connection = await self.open(node, BROKER_PORT)
        topic, ends = rng.choice(OWN_TOPICS), list[Answer]()
        connection.write(
            connection.frame(SEND_CODE, foreign_send(topic, "wakes", 0), self.host.marked(topic, "wake"))
        )  # the send creates the topic
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        ext = {"topic": topic, "queueId": "0"}
        connection.write(connection.frame(RequestCode.GET_MAX_OFFSET, ext, heard=ends.append))
        for _ in range(40):
            if ends or connection.closed:
                break
            await asyncio.sleep(0.05)
        if not ends or ends[0].code != ResponseCode.SUCCESS:
            return
        at = {"consumerGroup": "waits-for-one", "topic": topic, "queueOffset": ends[0].ext["offset"]}
        waits = PULL_EXT | at | {"sysFlag": "6", "suspendTimeoutMillis": "3000"}
        long = "b = 1 OR " * rng.choice((1, 40)) + "b = 2"
        filters = {"subscription": long, "expressionType": "SQL92"}
        data = b""
        for _ in range(rng.randint(*WAKES)):
            pull = waits | filters if rng.random() < 0.5 else waits
            data += connection.frame(RequestCode.PULL_MESSAGE, pull, parked_s=3.0)
        connection.write(data)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        connection.write(connection.frame(SEND_CODE, foreign_send(topic, "wakes", 0), self.host.marked(topic, "wake")))
        await self._wait(connection)

    async def joins(self, node: str) -> None:
        """Makes many consumers join one group, one after the other, with their heartbeats in one write."""
        connection = await self.open(node, BROKER_PORT)
        first = self.rng.randrange(1 << 20)
        data = b""
        for number in range(first, first + self.rng.randint(*JOINS)):
            data += connection.frame(RequestCode.HEART_BEAT, {}, beat_body(f"joins-{number}", ["joined-by-many"]))
        connection.write(data)
        await self._wait(connection)

    async def members(self, node: str) -> None:
        """Registers very many consumers of one group and asks for lists of them. Then the consumers fall silent,
        although their connection stays in use."""
        connection = await self.open(node, BROKER_PORT)
        first = self.rng.randrange(1 << 20)
        data = b""
        for number in range(first, first + self.rng.choice(MEMBERS)):
            data += connection.frame(RequestCode.HEART_BEAT, {}, beat_body(f"member-{number}", ["very-many"]))
        for code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST):
            data += connection.frame(code, {"consumerGroup": "very-many"})
        connection.write(data)
        self.host.spawn(partial(self._use, connection))

    async def _use(self, connection: RawConnection) -> None:
        ext = {"consumerGroup": "very-many"}
        while not connection.closed:
            await asyncio.sleep(USED_S)
            if not connection.closed and not connection.unanswered:
                connection.write(connection.frame(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext))

    async def rows(self, node: str) -> None:
        """Sends very many messages to one topic, searches through all of them in vain, and deletes the topic half of
        the time."""
        rng = random.Random(self.rng.random())
        connection = await self.open(node, BROKER_PORT)
        sends = foreign_send("very-many", "rows", 0) | {"m": "true"}
        for _ in range(rng.randint(*BATCHES)):
            item = BatchItem(0, self.host.marked("very-many", "row"), b"KEYS\x01row\x02TAGS\x01row\x02")
            connection.write(
                connection.frame(RequestCode.SEND_BATCH_MESSAGE, sends, build_batch([item] * rng.randint(*BATCH)))
            )
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        pull = PULL_EXT | {"consumerGroup": "seeks-rows", "topic": "very-many"}
        for wanted in ("no = 'such' OR such = 'row'", "TAGS = 'none'"):
            ext = pull | {"subscription": wanted, "expressionType": "SQL92"}
            connection.write(connection.frame(RequestCode.PULL_MESSAGE, ext))
        connection.write(connection.frame(RequestCode.PULL_MESSAGE, pull | {"subscription": "none"}))
        times = {"beginTimestamp": "0", "endTimestamp": str(1 << 50)}
        key = {"topic": "very-many", "key": "row", "maxNum": "64"}
        connection.write(connection.frame(RequestCode.QUERY_MESSAGE, key | times))
        if rng.random() < 0.5:
            connection.write(connection.frame(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "very-many"}))
        await self._wait(connection)

    async def stranger(self, node: str) -> None:
        """Dials the node's peer port without the cluster's secret."""
        await intrude(self.host.loop, random.Random(self.rng.random()), node, NodeId(int(node.rsplit(".", 1)[1])))

    async def _wait(self, connection: RawConnection) -> None:
        """Waits up to DONE_S seconds. Looks 20 times whether everything is answered, and if so closes the connection
        with probability 0.7. A connection that is left open is judged at the end."""
        for _ in range(20):
            await asyncio.sleep(DONE_S / 20)
            if connection.closed:
                return
            if not connection.unanswered and self.rng.random() < 0.7:
                connection.transport.close()
                return
