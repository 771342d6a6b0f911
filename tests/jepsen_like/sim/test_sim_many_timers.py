"""Very many delayed messages while leaders are killed, in virtual time: each is delivered once, and none early.

The seed decides when they are due and which node is killed when; it stands at the end of the test output. By default
1,000 messages over half a minute; `-m slow` has 100,000 over ten minutes, for which it needs two minutes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.client_kit.frames import Answer
from jepsen_like.commit_seed import commit_seed
from jepsen_like.sim.clients.client_machines import FULL, SEND_CODE, Client, ClientHost, body_of, id_of
from jepsen_like.sim.clients.delayed_messages import LATER_TOPIC, QUEUES
from jepsen_like.sim.clients.failing_consumers import outcome_of
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.clients.single_request import dial
from jepsen_like.sim.machines.clock import START_WALL_MS
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.scripted import ScriptedWorld
from raftmq_wire.message_format import decode_message

CHUNK = 250
"""Messages on their way at once."""
CROWDS_S = 5
"""Every third message is due at a multiple of this: hundreds or thousands are due in the same millisecond."""
KILL_EVERY_S, DOWN_S = 12.0, 3.0
LATE_S = 30.0


class Crowd(Client):
    """Sends `count` messages that are due within `seconds`, spread over nine tenths of them."""

    def __init__(self, host: ClientHost, count: int, seconds: float, rng: random.Random) -> None:
        super().__init__(host)
        self._count, self._seconds, self._crowd_rng = count, seconds, rng
        self.due_ms: dict[str, int] = {}
        self.outcomes: dict[str, str] = {}

    async def _work(self) -> None:
        rng, loop = self._crowd_rng, self.host.loop
        end_s = loop.now + self._seconds
        chunks = -(-self._count // CHUNK)
        connection: RawConnection | None = None
        for number in range(chunks):
            while connection is None or connection.closed:
                connection = await dial(self.host, rng.choice(self.host.nodes), "a crowd", lambda checker, what: None)
                await asyncio.sleep(0.2)
            await self._send(connection, min(CHUNK, self._count - number * CHUNK), end_s, rng)
            await asyncio.sleep(max(0.0, 0.9 * self._seconds / chunks - 0.05))

    async def _send(self, connection: RawConnection, count: int, end_s: float, rng: random.Random) -> None:
        loop, left = self.host.loop, asyncio.Event()
        frames = []
        asked = []
        for _ in range(count):
            due_s = rng.uniform(loop.now + 0.5, end_s)
            if rng.random() < 1 / 3:
                due_s = due_s // CROWDS_S * CROWDS_S + CROWDS_S
            message_id = f"crowd-{len(self.due_ms)}"
            self.due_ms[message_id] = START_WALL_MS + int(due_s * 1000)
            fields = foreign_send(LATER_TOPIC, message_id, rng.randrange(QUEUES), FULL)
            fields["i"] += f"TIMER_DELIVER_MS\x01{self.due_ms[message_id]}\x02"
            asked.append(message_id)
            heard = partial(self._heard, message_id, left, asked)
            frames.append(connection.frame(SEND_CODE, fields, body_of(message_id, 5), heard=heard))
        connection.on_lost.append(left.set)
        connection.write(b"".join(frames))
        try:
            async with asyncio.timeout(10):
                await left.wait()
        except TimeoutError:
            connection.transport.abort()
        for message_id in asked:
            self.outcomes.setdefault(message_id, "unknown")

    def _heard(self, message_id: str, left: asyncio.Event, asked: list[str], answer: Answer) -> None:
        self.outcomes[message_id] = outcome_of(answer)
        if all(each in self.outcomes for each in reversed(asked)):
            left.set()


class Crowded(ScriptedWorld):
    """A stage with a crowd; leaders are killed while it waits."""

    def __init__(self, seed: int, count: int, seconds: float) -> None:
        budget = 2_000_000 + 200 * count
        super().__init__(f"nodes 3 delayed=1 segment_size={1 << 20} checkpoint_every_ms=20000 event_budget={budget}\n")
        host = ClientHost(len(self.hosts) + 1, self.options, self.loop, self.network)
        self.hosts.append(host)
        self._rng = random.Random(seed)
        self.crowd = Crowd(host, count, seconds, random.Random(self._rng.random()))
        self._seconds = seconds
        self.kills = 0

    def phases(self) -> None:
        super().phases()
        self.crowd.start()
        end_s = self.loop.now + self._seconds
        while self.loop.now < end_s and not self.monitor.violations:
            self._pass_time(self._rng.uniform(0.5, 1.5) * KILL_EVERY_S)
            leader = self.nemesis.leader()
            if leader is not None:
                self.kills += 1
                self.do_kill(str(leader.node_id))
                self._pass_time(DOWN_S)
                self.do_start(str(leader.node_id))
        self._wait(lambda: self.crowd.done, LATE_S, "the crowd is not sent")
        self._wait(self._nothing_waits, LATE_S, "messages that are due are not delivered")
        self._wait(self.states.equal, LATE_S, "replicas do not become equal")


def delivered(machine: Machine) -> list[tuple[str, int]]:
    """(id, store time) of what the node has in its queues."""
    assert machine.node is not None
    state, read = machine.node.state, machine.node.serving.services.read_log
    topic = state.topics[LATER_TOPIC]
    found = []
    for queue_id in range(topic.queues):
        for item in state.fetch(topic.id, queue_id, 0, state.max_offset(topic.id, queue_id)):
            message, _ = decode_message(read(item.position, item.size))
            found.append((id_of(message.body), message.store_ms))
    return found


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(1_000, 30.0), pytest.param(100_000, 600.0, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_each_is_delivered_once_and_none_early(
    count: int, seconds: float, record_property: Callable[[str, object], None]
) -> None:
    seed = commit_seed().first_seed
    record_property("seeds", f"{count} delayed messages: seed {seed}")
    seen: list[list[tuple[str, int]]] = []

    class Looked(Crowded):
        def phases(self) -> None:
            super().phases()
            seen.extend(delivered(machine) for machine in self.members())

    stage = Looked(seed, count, seconds)
    assert stage.run().violations == ()
    crowd = stage.crowd
    assert stage.kills >= seconds / (2 * KILL_EVERY_S + DOWN_S)
    assert Counter(crowd.outcomes.values())["ok"] > 0.8 * count
    for found in seen:
        copies = Counter(message_id for message_id, _ in found)
        assert [one for one, outcome in crowd.outcomes.items() if outcome == "ok" and copies[one] != 1] == []
        assert [one for one, outcome in crowd.outcomes.items() if copies[one] > (outcome != "fail")] == []
        assert [one for one, store_ms in found if store_ms < crowd.due_ms[one]] == []
    assert len(seen) == 3
