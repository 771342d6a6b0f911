"""Runs and checks the attack phase: all faults are healed, no node fails, and hostile clients send whatever they can.

No node may stop or begin another term. Every request must be answered once, honest clients must be served, and the
memory that a node uses for clients must stay below a bound and be freed afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.client_kit.frames import Answer
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.clients.client_machines import SEND_CODE, TOPIC, ClientHost
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.raw_client import RawConnection
from jepsen_like.sim.machines.machine import BROKER_PORT, NAMESRV_PORT, Machine
from jepsen_like.sim.machines.network import Network
from raftmq_wire.codes import ResponseCode, is_unknown

if TYPE_CHECKING:
    from jepsen_like.sim.checks.monitor import Monitor
    from jepsen_like.sim.hostile.hostile_clients import Hostile
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.options import Options

ATTACK_S = 3.0
ANSWERS_S = 20.0
"""Time in seconds within which every request must be answered once no client sends any more."""
SERVED_S = 30.0
"""Time in seconds within which an honest send must succeed during the attack: 10 s, and the 20 s
(ha.housekeeping_interval_ms) after which a node gives up a connection that has led nowhere since before the heal."""
GIVEN_BACK_S = 10.0
"""Time in seconds within which a node must give back all memory that it counted for requests, once there are no
requests.
"""
SLACK = 256 << 10
"""Bytes of answers that a node may keep for one client on top of its limits
(`cluster.remoting.connection.connection_memory.FIRST_ANSWER_BYTES`)."""
FULL = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Response codes with which a node refuses a send that the log does not take in time."""
PORTS = (BROKER_PORT, NAMESRV_PORT)


class Prober:
    """An honest client that sends one message at a time through every node. Each request is written in two pieces, so
    that the node reads it in two reads, and must be stored all the same.
    """

    def __init__(self, host: ClientHost, recorder: Recorder, report: Report, taken: Callable[[], int]) -> None:
        """`taken`: returns the number of messages that the nodes have acknowledged to all clients since their
        starts."""
        self.host, self._recorder, self._report, self._taken = host, recorder, report, taken
        self.open = 0
        self.served = 0
        self._sent = 0

    def probe(self, nodes: Iterable[str]) -> None:
        """Sends one message through each node."""
        for node in nodes:
            self.open += 1
            self.host.spawn(partial(self._probe, node))

    async def _probe(self, node: str) -> None:
        loop, rng = self.host.loop, random.Random(self.host.rng.random())
        ends_s, before, tries = loop.now + SERVED_S, self._taken(), Counter[str]()
        try:
            while (ended := await self._sends(node, rng)) != "stored":
                tries[ended] += 1
                if loop.now >= ends_s:
                    # If 90 messages arrive per second and the log takes 30, one in 14 sends of a user with many clients
                    # is stored. So all sends of one client may be refused as long as sends of others are stored, of
                    # whatever kind they are (seeds 962500006, 998126038).
                    if tries["lost"] or self._taken() - before < tries["late"]:
                        self._report("honest", f"no send through {node} succeeds within {SERVED_S:.0f} s")
                    return
                await asyncio.sleep(0.3)
            self.served += 1
        finally:
            self.open -= 1

    async def _sends(self, node: str, rng: random.Random) -> Literal["stored", "late", "lost"]:
        """Sends one message through the node. Returns "stored" if it was acknowledged, "late" if the node answered that
        the log did not take it, or did not decide, in time, and "lost" otherwise.
        """
        connection = RawConnection(f"honest {node}", self.host.loop, self._report, self.host.credentials)
        try:
            await connection.reach(node)
        except OSError:
            return "lost"
        self._sent += 1
        op = self._recorder.invoke("send", {"id": f"honest-{self._sent}", "topic": TOPIC})
        answers: list[Answer] = []
        ext = foreign_send(TOPIC, op.value["id"], rng.randrange(self.host.options.queues))
        frame = connection.frame(SEND_CODE, ext, self.host.body(TOPIC, op.value["id"], 300), heard=answers.append)
        at = rng.randrange(1, len(frame))
        connection.write(frame[:at])
        await asyncio.sleep(rng.uniform(0.002, 0.05))
        connection.write(frame[at:])
        for _ in range(200):
            if answers or connection.closed:
                break
            await asyncio.sleep(0.02)
        if connection.closed and not answers:
            self._report("honest", f"{node} closed the connection of a client whose send came in two reads")
        connection.transport.close()
        if self._recorder.answered(op, answers[0] if answers else None) is not None:
            return "stored"
        is_late = any(each.code in FULL or is_unknown(each.code, each.remark) for each in answers)
        return "late" if is_late else "lost"


class Accounts:
    """Checks how much memory nodes use for clients, during the attack phase and at the end of a run."""

    def __init__(self, network: Network, machines: Callable[[], Iterable[Machine]], limit: int, report: Report) -> None:
        """`limit`: bytes of answers that a node may keep for all clients, besides SLACK for each connection."""
        self._limit = limit
        self._network, self._machines, self._report = network, machines, report
        self.most = 0

    def look(self) -> None:
        """Reports every node that keeps too many bytes of answers for clients that do not read them."""
        waiting: dict[str, int] = {}
        for endpoint in self._network.endpoints:
            if endpoint.own[1] in PORTS:
                waiting[endpoint.own[0]] = waiting.get(endpoint.own[0], 0) + endpoint.get_write_buffer_size()
        for host, size in waiting.items():
            self.most = max(self.most, size)
            most = self._limit + SLACK * sum(end.own[0] == host for end in self._network.endpoints)
            if size > most:
                self._report("memory", f"{host} keeps {size} bytes of answers that nobody takes, {most} at most")

    def given_back(self) -> str:
        """Returns a description of the memory that is still counted although no request is in flight; "" if there is
        none."""
        for machine in self._machines():
            node = machine.node
            if node is None:
                continue
            left = node.serving.proposals.gate.left()
            if left:
                return f"node {machine.node_id} counts {left}"
        return ""


class CalmWorld(Protocol):
    """The attributes of the simulated world (`jepsen_like.sim.world`) that the attack phase uses."""

    options: Options
    loop: SimLoop
    network: Network
    monitor: Monitor
    hostile: Hostile | None
    prober: Prober | None

    def members(self) -> list[Machine]:
        """Returns the machines whose nodes are members of the Raft group, or will be once all changes are done."""

    def pass_time(self, seconds: float) -> None:
        """Lets this many seconds of virtual time pass."""

    def wait_for(self, reached: Callable[[], object], what: str) -> bool:
        """Lets time pass until `reached` returns something true; reports a violation with `what` if that takes too
        long."""


class Calm:
    """Runs the attack phase and checks the nodes meanwhile. Reports violations to the monitor."""

    def __init__(self, world: CalmWorld) -> None:
        self._world = world
        self.hostile = world.hostile
        limit = 4 * world.options.unsent_bytes
        self.accounts = Accounts(world.network, world.members, limit, world.monitor.report)
        self._linked_since_s = world.loop.now
        """Virtual time in seconds since which every connection between members has worked. A request that a node
        forwards to the leader on a dead connection is lost. Most kinds of requests then get an error; a few kinds get
        no answer.
        """

    def attack(self, seconds: float = ATTACK_S) -> None:
        """Makes the hostile clients continue at a faster pace, and checks that no node begins another term and that
        honest clients are served."""
        world, hostile, prober = self._world, self.hostile, self._world.prober
        assert hostile is not None
        assert prober is not None
        before = self._reigns()
        hostile.stopped, hostile.pace_s = False, (0.02, 0.15)
        end = world.loop.now + seconds
        while world.loop.now < end and not world.monitor.violations:
            if not prober.open:
                prober.probe([machine.host for machine in world.members()])
            world.pass_time(0.05)
            self._look_at_links()
            self.accounts.look()
        hostile.stopped = True

        def ended() -> bool:
            self._look_at_links()  # a connection may stay dead for longer than the attack (seed 959000017)
            return hostile.done and not prober.open

        world.wait_for(ended, "hostile clients do not end")
        if not world.monitor.violations and self._reigns() != before:
            world.monitor.report("calm", f"leader and term were {before} and are {self._reigns()}: a client did that")
        world.monitor.sometimes["attacked in calm"] += 1

    def _reigns(self) -> tuple[int, int] | None:
        return max(((term, int(node)) for term, node in self._world.monitor.leaders.items()), default=None)

    def settle(self) -> None:
        """Waits until every request of the hostile clients is answered. Reports a violation if one has no answer after
        ANSWERS_S seconds.
        """
        world, hostile = self._world, self.hostile
        assert hostile is not None
        end = world.loop.now + ANSWERS_S
        if world.monitor.violations:
            return
        while world.loop.now < end and not world.monitor.violations:
            if not hostile.overdue(world.loop.now, silent_since_s=self._linked_since_s):
                break
            world.pass_time(0.1)
            self._look_at_links()
        for name, asked in hostile.overdue(world.loop.now, silent_since_s=self._linked_since_s)[:1]:
            what = f"a request of code {asked.code}, asked at {asked.at_s:.3f} s on {name}"
            world.monitor.report("answers", f"{what}, has no answer {ANSWERS_S:.0f} s after all is healed")

    def _look_at_links(self) -> None:
        hosts = {machine.host for machine in self._world.members()}
        if any(True for _ in self._world.network.dead_ends(hosts)):
            self._linked_since_s = self._world.loop.now

    def given_back(self) -> None:
        """Disconnects the hostile clients, and checks that the nodes give back all counted memory within GIVEN_BACK_S
        seconds."""
        if self.hostile is not None:
            self.hostile.leave()
        world, end = self._world, self._world.loop.now + GIVEN_BACK_S
        while (left := self.accounts.given_back()) and world.loop.now < end and not world.monitor.violations:
            world.pass_time(0.1)
        if left:
            world.monitor.report("memory", f"{left} although nothing is under way")
