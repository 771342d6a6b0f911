"""The base class, and the client, of the phases at the end of a run in which one or all topics leave the second
group."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jepsen_like.client_kit.fields import foreign_send
from jepsen_like.sim.clients.client_machines import SEND_CODE, ClientHost, id_of
from jepsen_like.sim.clients.stored_messages import stored_on
from jepsen_like.sim.groups.placed_clients import QUEUES, TOPIC, Hosts, PlacedClient
from jepsen_like.sim.options import stream
from raftlog.types import FIRST_GROUP
from raftmq_wire.codes import ResponseCode

if TYPE_CHECKING:
    from cluster.node.node import Node
    from cluster.replication.outcome import ProposeResult
    from jepsen_like.sim.callbacks import Report
    from jepsen_like.sim.checks.monitor import Monitor
    from jepsen_like.sim.group_states import GroupStates
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.machine import Machine
    from jepsen_like.sim.options import Options
    from raftlog.types import NodeId
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

NUMBER = FIRST_GROUP + 1
SLOTS = 10
"""Sends that the client has in flight."""


class Group(Protocol):
    """The attributes of the second group that the phases use."""

    machines: dict[NodeId, Machine]
    states: GroupStates

    @property
    def monitor(self) -> Monitor:
        """The monitor of its nodes."""

    def hosts(self) -> dict[int, list[str]]:
        """Returns number of a group -> the hosts of its nodes."""


class LateSender(PlacedClient):
    """A client with an old route: it keeps sending to the second group, whatever state that group is in."""

    def __init__(self, host: ClientHost, report: Report, hosts: Hosts) -> None:
        super().__init__(NUMBER, host, report, hosts)
        self.acked: set[str] = set()
        self.refused = 0
        self.rests = False
        """True while it sends nothing."""

    async def _work(self) -> None:
        rng = random.Random(self.rng.random())
        await asyncio.gather(*(self._slot(random.Random(rng.random()), slot) for slot in range(SLOTS)))

    async def _slot(self, rng: random.Random, slot: int) -> None:
        number = 0
        while not self.stopped:
            await asyncio.sleep(rng.uniform(0.001, 0.02))
            if self.rests:
                continue
            number += 1
            message_id = f"late-{slot}-{number}"
            link = await self._link(rng.choice(self._hosts()[NUMBER]))
            if link is None:
                continue
            ext, body = foreign_send(TOPIC, message_id, rng.randrange(QUEUES)), self.host.body(TOPIC, message_id, 10)
            answer = await self._asked(link, SEND_CODE, ext, body)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.acked.add(message_id)
            elif answer is not None and answer.code == ResponseCode.NO_PERMISSION:
                self.refused += 1


class LeavingPhase:
    """Base class of the phases. No other faults disturb the cluster during a phase."""

    CHECKER: str
    """The name of the checker under which the phase reports violations."""

    def __init__(
        self,
        group: Group,
        options: Options,
        loop: SimLoop,
        first: Callable[[], Machine | None],
        host: ClientHost,
    ) -> None:
        """`first` returns the machine of the first group's leader. `host`: a machine for one more client."""
        self._rng = stream(options.seed, self.CHECKER)
        self._group, self._first, self._options = group, first, options
        self._report, self._loop = group.monitor.report, loop
        self.sender = LateSender(host, self._report, group.hosts)
        self._has_killed = False

    def _leader(self) -> Node | None:
        """Returns the leader of the second group; None if it has none."""
        return next((node for node in self._group.states.running() if node.serving.proposals.open), None)

    def _tell_first(self, run: list[Command]) -> BrokerState | None:
        """Proposes commands to the first group; returns its leader's state, None if there is no leader."""
        return self._tell(self._first(), run)

    def _tell(
        self, machine: Machine | None, run: list[Command], told: Callable[[ProposeResult], None] = lambda _: None
    ) -> BrokerState | None:
        """Proposes commands to the node on that machine; none are proposed if `run` is empty. `told` gets the result.
        Returns the node's state, None if the node does not run or its process is paused."""
        if machine is None or machine.node is None or machine.process is None:
            return None
        node = machine.node
        if not machine.process.alive or machine.process.paused:
            return None
        if run:
            machine.process.run(lambda: node.serving.services.propose(run, told, author="the operator"))
        return node.state

    def _kill(self) -> None:
        """Kills the leader of the second group, if there is one, and has it started again 0.1 to 2 s later."""
        leader = self._leader()
        if leader is not None:
            self._has_killed = True
            machine = self._group.machines[leader.node_id]
            machine.kill(power=self._rng.random() < 0.5)
            self._loop.call_outside(self._rng.uniform(0.1, 2.0), machine.start)

    def _has_stopped(self) -> bool:
        """Stops the client; returns True once it has stopped."""
        self.sender.stopped = True
        return self.sender.done

    def _judge(self) -> bool:
        """Checks that every readable node has each acknowledged message, unless messages of the topic were trimmed
        there. Returns False if the run has a violation."""
        for machine in self._group.states.members():
            if machine.readable is None:
                continue
            messages, trimmed = stored_on(machine, TOPIC)
            lost = self.sender.acked - {id_of(message.body) for message in messages}
            if lost and not trimmed:
                what = f"node {machine.node_id} does not have {min(lost)}, which was acknowledged"
                self._report(self.CHECKER, what)
        return not self._group.monitor.violations
