"""A topic of both groups takes messages in the first one alone, and is read out in the second, while a client with an
old route sends there and the leader is killed; then it is spread again (docs/adr/0114)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.gathering import SETTLE_MS
from jepsen_like.sim.clients.client_machines import ClientHost, id_of
from jepsen_like.sim.clients.stored_messages import stored_on
from jepsen_like.sim.groups.placed_clients import GROUP, QUEUES, TOPIC
from jepsen_like.sim.groups.retirement import NUMBER, Group, LateSender
from jepsen_like.sim.machines.machine import ROUTE_AGE_MS
from jepsen_like.sim.options import stream
from raftlog.types import FIRST_GROUP
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import Subscribe
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from cluster.node.node import Node
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.machine import Machine
    from jepsen_like.sim.options import Options
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

CHECKER = "gathering"
BEGUN_S, ENDED_S = 30.0, 30.0
HELD_S = (ROUTE_AGE_MS + SETTLE_MS) / 1000 + 2.0
"""Virtual seconds for which a topic with unread messages must stay."""
LEFT_S = 60.0
"""Virtual seconds within which one that is read leaves, with a leader that is killed meanwhile."""
READ_P, KILL_P = 0.1, 0.005
"""Probabilities, in a look, that the group reads one more queue to its end, and of the kill of the leader, once."""


class Gathering:
    """The phase. Nothing else disturbs the cluster in it."""

    def __init__(
        self, group: Group, options: Options, loop: SimLoop, first: Callable[[], Machine | None], host: ClientHost
    ) -> None:
        """`first` returns the machine of the first group's leader. `host`: a machine for one more client."""
        self._rng = stream(options.seed, "gathering")
        self._group, self._first = group, first
        self._report, self._loop = group.monitor.report, loop
        self.sender = LateSender(host, self._report, group.hosts)
        self._begun_s = 0.0
        self._has_killed = False

    def play(self, wait: Callable[..., bool]) -> bool:
        """Plays the phase; returns False if something is wrong."""
        self.sender.start()
        return (
            wait(self._begins, BEGUN_S, "the topic is not gathered", CHECKER)
            and wait(self._holds, HELD_S + BEGUN_S, "nobody leads", CHECKER)
            and wait(self._has_stopped, ENDED_S, "a client waits for ever")
            and wait(self._leaves, LEFT_S, "the topic does not leave the group, and all of it is read", CHECKER)
            and wait(self._spreads, BEGUN_S, "the topic is not spread again", CHECKER)
            and self._judge()
        )

    def _leader(self) -> Node | None:
        return next((node for node in self._group.states.running() if node.proposals.open), None)

    def _tell(self, machine: Machine | None, run: list[Command]) -> None:
        if machine is not None and machine.node is not None and machine.process is not None:
            node = machine.node
            if machine.process.alive and not machine.process.paused:
                machine.process.run(lambda: node.services.propose(run, lambda _: None, author="the operator"))

    def _tell_leader(self, run: list[Command]) -> None:
        leader = self._leader()
        if leader is not None:
            self._tell(self._group.machines[leader.node_id], run)

    def _queues(self, queues: tuple[int, int]) -> bool:
        """Returns True if all nodes of the second group have so many queues of the topic, to read and to write."""
        nodes = self._group.states.running()
        found = [(each.read_queues, each.write_queues) for node in nodes if (each := node.state.topics.get(TOPIC))]
        return len(found) == len(self._group.machines) and set(found) == {queues}

    def _begins(self) -> bool:
        leader = self._leader()
        if leader is not None and self._queues((QUEUES, 0)) and TOPIC in leader.state.groups[GROUP].subscriptions:
            self._begun_s = self._loop.now
            return True
        self._tell_leader([Subscribe(GROUP, [(TOPIC, "TAG", "*", 1)])])
        self._tell(self._first(), [CreateTopic({"name": TOPIC, "place": [[NUMBER, QUEUES, 0]]}, if_absent=False)])
        return False

    def _holds(self) -> bool:
        """Watches a topic that has unread messages; returns True at the end of the time for which it must stay."""
        self._look()
        if not self._has_killed and self._rng.random() < KILL_P:
            self._kill()
        return self._loop.now - self._begun_s >= HELD_S

    def _kill(self) -> None:
        leader = self._leader()
        if leader is not None:
            self._has_killed = True
            machine = self._group.machines[leader.node_id]
            machine.kill(power=self._rng.random() < 0.5)
            self._loop.call_outside(self._rng.uniform(0.1, 2.0), machine.start)

    def _look(self) -> None:
        """Reports a topic that has left a group in which something is unread."""
        for node in self._group.states.running():
            topic = node.state.topics.get(TOPIC)
            if topic is not None and not topic.queues and (left := _unread(node.state, topic.id)):
                who = f"node {node.config.node.id}"
                self._report(CHECKER, f"{who}: {TOPIC} has left with {sum(left.values())} messages that are unread")

    def _has_stopped(self) -> bool:
        self.sender.stopped = True
        return self.sender.done

    def _leaves(self) -> bool:
        """Has the group read to the end, queue by queue; returns True once the topic has left on all nodes."""
        self._look()
        leader = self._leader()
        if leader is not None and self._rng.random() < READ_P:
            topic = leader.state.topics[TOPIC]
            left = _unread(leader.state, topic.id)
            rows = [(GROUP, topic.id, queue, leader.state.max_offset(topic.id, queue)) for queue in sorted(left)[:1]]
            if rows:
                self._tell_leader([CommitOffsets(rows)])
        return self._queues((0, 0))

    def _judge(self) -> bool:
        """Judges the logs of the nodes that run: every message that was acknowledged is there."""
        for machine in self._group.states.members():
            if machine.readable is None:
                continue
            messages, trimmed = stored_on(machine, TOPIC)
            lost = self.sender.acked - {id_of(message.body) for message in messages}
            if lost and not trimmed:
                self._report(CHECKER, f"node {machine.node_id} does not have {min(lost)}, which was acknowledged")
        if not self.sender.refused:
            self._report(CHECKER, "no send was refused, though the topic takes none there")
        return not self._group.monitor.violations

    def _spreads(self) -> bool:
        place = [[FIRST_GROUP, QUEUES, QUEUES], [NUMBER, QUEUES, QUEUES]]
        if not self._queues((QUEUES, QUEUES)):
            self._tell(self._first(), [CreateTopic({"name": TOPIC, "place": place}, if_absent=False)])
            return False
        return True


def _unread(state: BrokerState, topic_id: int) -> dict[int, int]:
    """Returns the queues of the topic that the consumer group has not read to their end -> how many messages it has yet
    to read."""
    committed = state.offsets_by_topic(GROUP).get(topic_id, {})
    found = {}
    for queue in range(QUEUES):
        least = max(state.min_offset(topic_id, queue), committed.get(queue, 0))
        if (end := state.max_offset(topic_id, queue)) > least:
            found[queue] = end - least
    return found
