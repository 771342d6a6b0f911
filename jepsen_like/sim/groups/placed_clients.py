"""Clients of a topic that two groups hold: they send to, read from and commit at the queues of one group, and go where
routes lead them. Another client creates topics at nodes of the second group."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from jepsen_like.client_kit.fields import foreign_send, place_of, pull_fields, topic_fields
from jepsen_like.client_kit.frames import Answer
from jepsen_like.history import Op
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost, id_of
from jepsen_like.sim.clients.history_recorder import Recorder, stored_at
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import Asker, dial
from jepsen_like.sim.machines.machine import BROKER_PORT, NAMESRV_PORT, Machine, name_of
from raftmq.client.errors import Unknown, error_of
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.message_format import Message, decode_message

TOPIC, QUEUES = "placed", 2
"""TOPIC: the topic that both groups hold. QUEUES: number of its queues in each group."""
SECOND_TOPIC = "placed-second"
"""A topic that the second group alone holds."""
GROUP = "placed-readers"
CHECKER = "placed"
REGISTRY_SHARE, REGISTRY_PATIENCE_S = 0.4, 5.0
"""REGISTRY_SHARE: share (0 to 1) of the route requests that go to the registry, if there is one. REGISTRY_PATIENCE_S:
seconds that such a request may take; the registry holds requests while it is not ready.
"""
ATTEMPTS = 5
DIAL_S = 1.5
PATIENCE_S, ACT_PATIENCE_S = 1.0, 4.0
"""PATIENCE_S: seconds after which a client gives a request up, and closes the connection. ACT_PATIENCE_S: the same for
a change of topics, which may take longer, so that the client hears that it was acknowledged.
"""
SLOTS, ACT_SLOTS = 3, 2
"""Requests that a producer (SLOTS) and the client that changes the truth (ACT_SLOTS) have in flight. They are more than
one, because a request may wait for a node that is away.
"""
LATER_SHARE = 0.2
"""Share (0 to 1) of the steps before which a client asks for a new route."""


Hosts = Callable[[], Mapping[int, Sequence[str]]]
"""Returns number of a group -> the hosts of its nodes, of which some may be new or gone."""


def route_of(body: bytes) -> dict[str, dict[str, str]]:
    """Returns broker name -> broker id -> address, from the body of a route. In this JSON of RocketMQ's the broker ids
    are keys without quotes.
    """
    table = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    return {data["brokerName"]: data["brokerAddrs"] for data in table["brokerDatas"]}


class PlacedClient(Asker):
    """A client that knows the cluster by routes alone, and works at one group."""

    def __init__(self, group: int, host: ClientHost, report: Report, hosts: Hosts) -> None:
        super().__init__(host, report)
        self.group = group
        self._hosts = hosts
        self._leader = ""
        """The host of the leader of this client's group, as the last route named it; "" if none is known."""
        self._links: dict[str, RawConnection] = {}
        self.routes = 0
        self.registry: Sequence[str] = ()
        """The hosts of the registry's processes; empty without a registry."""
        self.from_registry = 0
        """Number of routes that came from the registry."""
        self.has_led: Callable[[int, str], bool] = lambda group, host: True
        """Function (number of a group, host) that returns True if the node at that host has led the group."""

    async def _asked(
        self, link: RawConnection, code: int, ext: dict[str, str], body: bytes = b"", patience_s: float = PATIENCE_S
    ) -> Answer | None:
        """Returns the answer to a request. After `patience_s` seconds without one, closes the connection and returns
        None.
        """
        try:
            async with asyncio.timeout(patience_s):
                return await self._ask(link, code, ext, body)
        except TimeoutError:
            link.transport.abort()
            return None

    async def _look(self, rng: random.Random) -> None:
        """Asks some node of any group, or the registry, for a route, and checks what must be true of every route."""
        of_registry = bool(self.registry) and rng.random() < REGISTRY_SHARE
        nodes = [host for hosts in self._hosts().values() for host in hosts]
        asked = rng.choice(self.registry if of_registry else nodes)
        link = await self._link(asked, NAMESRV_PORT if of_registry else BROKER_PORT)
        if link is None:
            return
        patience_s = REGISTRY_PATIENCE_S if of_registry else PATIENCE_S
        answer = await self._asked(link, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, patience_s=patience_s)
        if of_registry and answer is not None and answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._report("routes", f"the registry at {asked} says that there is no topic {TOPIC}: {answer.remark}")
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.routes += 1
        self.from_registry += of_registry
        route = route_of(answer.body)
        for group, hosts in self._hosts().items():
            name = name_of(group)
            if name not in route:
                self._report("routes", f"{asked} leaves {name} out of the route of {TOPIC}")
                return
            known = {f"{host}:{BROKER_PORT}" for host in hosts}
            for each, addresses in route.items():
                if re.fullmatch(rf"{name}(-\d+)?", each) and not known.issuperset(addresses.values()):
                    self._report("routes", f"{asked} leads to {addresses} under {each}, where no node of it is")
            first = route[name].get("0", "").partition(":")[0]
            if first and not self.has_led(group, first):
                self._report("routes", f"{asked} names {first} the leader of {name}, and it never was")
        leader = route[name_of(self.group)].get("0", "")
        self._leader = leader.partition(":")[0]

    async def _link(self, host: str, port: int = BROKER_PORT) -> RawConnection | None:
        link = self._links.get(host)
        if link is None or link.closed:
            name = f"{type(self).__name__} of group {self.group}"
            try:
                async with asyncio.timeout(DIAL_S):  # a machine without power gives no answer for a long time
                    made = await dial(self.host, host, name, self._report, port=port)
            except TimeoutError:
                return None
            if made is None:
                return None
            self._links[host] = link = made
        return link

    async def _call(self, rng: random.Random, code: int, ext: dict[str, str], body: bytes = b"") -> Answer | None:
        """Sends a request to the leader of the client's own group or, now and then, to another node of that group.
        Returns the answer; None if none came or the request was not sent.
        """
        host = self._leader if self._leader and rng.random() < 0.8 else rng.choice(self._hosts()[self.group])
        link = await self._link(host)
        return None if link is None else await self._asked(link, code, ext, body)


class PlacedProducer(PlacedClient):
    """Sends with a producer identity, a few messages at a time, each until it is acknowledged or ATTEMPTS attempts have
    failed."""

    def __init__(self, group: int, host: ClientHost, recorder: Recorder, report: Report, hosts: Hosts) -> None:
        super().__init__(group, host, report, hosts)
        self._recorder = recorder
        self._pid = ""
        self._next = 0
        self._open: set[int] = set()
        """Sequence numbers of the sends that are in flight."""
        self.name = f"at{group}"

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        self._pid = rng.randbytes(16).hex()
        await asyncio.gather(*(self._slot(random.Random(rng.random())) for _ in range(SLOTS)))

    async def _slot(self, rng: random.Random) -> None:
        while not self.stopped:
            await self._pause(rng)
            if not self._leader or rng.random() < LATER_SHARE:
                await self._look(rng)
            if self.group == 2 and rng.random() < 0.1:
                await self._astray(rng)
            else:
                await self._send(rng)

    async def _send(self, rng: random.Random) -> None:
        self._next += 1
        sequence = self._next
        self._open.add(sequence)
        await self._until_answered(rng, sequence)
        self._open.discard(sequence)

    async def _until_answered(self, rng: random.Random, sequence: int) -> None:
        op = self._recorder.invoke("send", {"id": f"{self.name}-{sequence}", "topic": TOPIC})
        ext = foreign_send(TOPIC, op.value["id"], rng.randrange(QUEUES))
        ext |= {"raftmqPid": self._pid, "raftmqSeq": str(sequence), "raftmqLow": str(min(self._open))}
        maybe = False
        for _ in range(ATTEMPTS):
            answer = await self._call(rng, SEND_CODE, ext, self.host.body(TOPIC, op.value["id"], 10))
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                place = stored_at(answer)
                self._recorder.stored(op, *place)
                if rng.random() < 0.15:
                    await self._repeat(rng, op, ext)
                return
            maybe = maybe or answer is None or isinstance(error_of(answer.code, answer.remark, "send"), Unknown)
            await self._look(rng)
            if self.stopped:
                break
        self._recorder.end(op, "info" if maybe else "fail", op.value)

    async def _repeat(self, rng: random.Random, op: Op, ext: dict[str, str]) -> None:
        """Sends a stored message again, which must be answered with the place of the one copy."""
        body = self.host.body(TOPIC, op.value["id"], 10)
        answer = await self._call(rng, SEND_CODE, ext | {"e": str(rng.randrange(QUEUES))}, body)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            queue, offset = stored_at(answer)
            again = self._recorder.invoke("repeat", op.value)
            self._recorder.end(again, "ok", {**op.value, "queue_id": queue, "queue_offset": offset})

    async def _astray(self, rng: random.Random) -> None:
        """Sends a message for SECOND_TOPIC to a node of the first group, and reports it if the message is stored
        there."""
        link = await self._link(rng.choice(self._hosts()[1]))
        ext = foreign_send(SECOND_TOPIC, "astray", 0)
        answer = (
            None if link is None else await self._asked(link, SEND_CODE, ext, self.host.body(SECOND_TOPIC, "astray"))
        )
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._report(CHECKER, f"group 1 stores a message of {SECOND_TOPIC}, which group 2 alone holds")

    async def _pause(self, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0.2, 1.8) * 0.12)


class PlacedReader(PlacedClient):
    """Reads the queues of one group from any of its nodes, and commits the offset that it has reached."""

    def __init__(self, group: int, host: ClientHost, report: Report, hosts: Hosts) -> None:
        super().__init__(group, host, report, hosts)
        self.offsets = dict.fromkeys(range(QUEUES), 0)
        self._ids: dict[int, dict[int, str]] = defaultdict(dict)
        """Queue -> offset -> id of the message there."""
        self._committed: int | None = None
        self._maybe: set[int] = set()
        """Offsets of commits that had no answer, or no clear one: they may still be carried out."""
        self.queried = 0

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            if not self._leader or rng.random() < LATER_SHARE:
                await self._look(rng)
            await self._pull(rng, rng.randrange(QUEUES))
            if rng.random() < 0.5:
                await self._commit(rng)

    async def _pull(self, rng: random.Random, queue: int) -> None:
        offset = self.offsets[queue]
        answer = await self._call(rng, RequestCode.PULL_MESSAGE, pull_fields(GROUP, TOPIC, queue, offset))
        if answer is None:
            return
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self.offsets[queue] = max(offset, int(answer.ext["nextBeginOffset"]))  # a lagging replica may name less
        elif answer.code == ResponseCode.SUCCESS:
            self._take(queue, messages_of(answer.body))
            self.offsets[queue] = int(answer.ext["nextBeginOffset"])

    def _take(self, queue: int, messages: list[Message]) -> None:
        for message in messages:
            found, offset = id_of(message.body), message.queue_offset
            known = self._ids[queue].setdefault(offset, found)
            if known != found:
                self._report(CHECKER, f"group {self.group}, queue {queue}: {known} and {found} at offset {offset}")
            if not found.startswith(f"at{self.group}-"):
                self._report(CHECKER, f"group {self.group}, queue {queue}: {found}, which was sent to another group")

    async def _commit(self, rng: random.Random) -> None:
        """Commits the offset up to which queue 0 was read, at the leader that the route names, and asks for the
        committed offset on the same connection."""
        link = await self._link(self._leader) if self._leader else None
        if link is None:
            return
        offset = self.offsets[0]
        fields = place_of(GROUP, TOPIC, 0)
        answer = await self._asked(link, RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": str(offset)})
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._maybe.add(offset)
            return
        self._committed = offset
        answer = await self._asked(link, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        self.judge(answer)

    def judge(self, answer: Answer | None) -> None:
        """Checks the answer to a query for the committed offset. Does nothing for None, which means no answer."""
        if answer is None or self._committed is None:
            return
        self.queried += 1
        right = {self._committed, *self._maybe}
        if answer.code == ResponseCode.SUCCESS:
            if (found := int(answer.ext["offset"])) not in right:
                self._report(CHECKER, f"group {self.group}: {found} is committed, one of {sorted(right)} is right")
        elif answer.code == ResponseCode.QUERY_NOT_FOUND:
            self._report(CHECKER, f"group {self.group}: no offset is committed, one of {sorted(right)} is right")


class TruthChanger(PlacedClient):
    """Creates topics at nodes of the second group. `made`: the topics whose creation was acknowledged."""

    def __init__(
        self,
        host: ClientHost,
        report: Report,
        hosts: Hosts,
        machines: Callable[[], Mapping[str, Machine]],
    ) -> None:
        """`machines`: returns host -> machine of the second group."""
        super().__init__(2, host, report, hosts)
        self._machines = machines
        self.made: list[str] = []
        self._next = 0

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        await asyncio.gather(*(self._slot(random.Random(rng.random())) for _ in range(ACT_SLOTS)))

    async def _slot(self, rng: random.Random) -> None:
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.1, 0.5))
            if not self._leader or rng.random() < LATER_SHARE:
                await self._look(rng)
            await self._make(rng)

    async def _make(self, rng: random.Random) -> None:
        self._next += 1
        name, began_s = f"made-{self._next}", self.host.loop.now
        host = self._leader or rng.choice(self._hosts()[2])
        link = await self._link(host)
        if link is None:
            return
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        answer = await self._asked(link, code, topic_fields(name), patience_s=ACT_PATIENCE_S)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.made.append(name)
        self._judge(host, name, self.host.loop.now - began_s)

    def _judge(self, host: str, name: str, took_s: float) -> None:
        """Checks that a topic whose creation was acknowledged can be used at the node that acknowledged it."""
        asked = self._machines()[host].readable
        # A change that is not copied by the deadline is answered as done all the same.
        if asked is None or took_s * 1000 >= self.host.options.deadline_ms or not asked.serving.services.writes_open():
            return
        if name not in asked.state.topics:
            self._report(CHECKER, f"topic {name} is acknowledged at {host}, which has not copied it")


def messages_of(body: bytes) -> list[Message]:
    """Returns the messages in the answer to a pull."""
    found, at = [], 0
    while at < len(body):
        message, at = decode_message(body, at, hosts=False)
        found.append(message)
    return found
