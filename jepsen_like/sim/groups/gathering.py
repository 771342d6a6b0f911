"""Gathers a topic of both groups in the first one, and then spreads it over both again (docs/adr/0114).

The second group takes no more messages for the topic, and the topic leaves that group once a consumer group has read
the rest. Meanwhile a client with an old route sends to the second group, and that group's leader is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.gathering import SETTLE_MS
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.groups.leaving_phase import NUMBER, Group, LeavingPhase
from jepsen_like.sim.groups.placed_clients import GROUP, QUEUES, TOPIC
from jepsen_like.sim.machines.machine import ROUTE_AGE_MS
from raftlog.types import FIRST_GROUP
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import Subscribe
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.machine import Machine
    from jepsen_like.sim.options import Options
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

BEGUN_S, ENDED_S = 30.0, 30.0
HELD_S = (ROUTE_AGE_MS + SETTLE_MS) / 1000 + 2.0
"""Virtual seconds for which the topic must stay in the second group while messages in it are unread."""
LEFT_S = 60.0
"""Virtual seconds within which a topic without unread messages must leave the group, although the leader is killed
meanwhile.
"""
READ_P, KILL_P = 0.1, 0.005
"""Probabilities per look: READ_P, that the consumer group reads one more queue to its end; KILL_P, that the leader is
killed, which happens once.
"""


class Gathering(LeavingPhase):
    """The phase that gathers the topic in the first group, and spreads it again."""

    CHECKER = "gathering"

    def __init__(
        self, group: Group, options: Options, loop: SimLoop, first: Callable[[], Machine | None], host: ClientHost
    ) -> None:
        super().__init__(group, options, loop, first, host)
        self._begun_s = 0.0

    def play(self, wait: Callable[..., bool]) -> bool:
        """Plays the phase; returns False if something is wrong."""
        self.sender.start()
        return (
            wait(self._begins, BEGUN_S, "the topic is not gathered", self.CHECKER)
            and wait(self._holds, HELD_S + BEGUN_S, "nobody leads", self.CHECKER)
            and wait(self._has_stopped, ENDED_S, "a client waits for ever")
            and wait(self._leaves, LEFT_S, "the topic does not leave the group, and all of it is read", self.CHECKER)
            and wait(self._spreads, BEGUN_S, "the topic is not spread again", self.CHECKER)
            and self._judge()
        )

    def _tell_leader(self, run: list[Command]) -> None:
        leader = self._leader()
        if leader is not None:
            self._tell(self._group.machines[leader.node_id], run)

    def _queues(self, queues: tuple[int, int]) -> bool:
        """Returns True if all nodes of the second group have these numbers of queues of the topic, to read and to
        write."""
        nodes = self._group.states.running()
        found = [(each.read_queues, each.write_queues) for node in nodes if (each := node.state.topics.get(TOPIC))]
        return len(found) == len(self._group.machines) and set(found) == {queues}

    def _begins(self) -> bool:
        leader = self._leader()
        if leader is not None and self._queues((QUEUES, 0)) and TOPIC in leader.state.groups[GROUP].subscriptions:
            self._begun_s = self._loop.now
            return True
        self._tell_leader([Subscribe(GROUP, [(TOPIC, "TAG", "*", 1)])])
        self._tell_first([CreateTopic({"name": TOPIC, "place": [[NUMBER, QUEUES, 0]]}, if_absent=False)])
        return False

    def _holds(self) -> bool:
        """Watches a topic that has unread messages; returns True at the end of the time for which it must stay."""
        self._look()
        if not self._has_killed and self._rng.random() < KILL_P:
            self._kill()
        return self._loop.now - self._begun_s >= HELD_S

    def _look(self) -> None:
        """Reports a violation if the topic has left the second group while messages in it are unread."""
        for node in self._group.states.running():
            topic = node.state.topics.get(TOPIC)
            if topic is not None and not topic.queues and (left := _unread(node.state, topic.id)):
                who = f"node {node.config.node.id}"
                self._report(
                    self.CHECKER, f"{who}: {TOPIC} has left with {sum(left.values())} messages that are unread"
                )

    def _leaves(self) -> bool:
        """Lets the consumer group read to the end, queue by queue; returns True once the topic has left the second
        group on all nodes.
        """
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
        if not self.sender.refused:
            self._report(self.CHECKER, "no send was refused, though the topic takes none there")
        return super()._judge()

    def _spreads(self) -> bool:
        place = [[FIRST_GROUP, QUEUES, QUEUES], [NUMBER, QUEUES, QUEUES]]
        if not self._queues((QUEUES, QUEUES)):
            self._tell_first([CreateTopic({"name": TOPIC, "place": place}, if_absent=False)])
            return False
        return True


def _unread(state: BrokerState, topic_id: int) -> dict[int, int]:
    """Returns queue -> number of messages that the consumer group has yet to read, for the topic's queues that it has
    not read to their end.
    """
    committed = state.offsets_by_topic(GROUP).get(topic_id, {})
    found = {}
    for queue in range(QUEUES):
        least = max(state.min_offset(topic_id, queue), committed.get(queue, 0))
        if (end := state.max_offset(topic_id, queue)) > least:
            found[queue] = end - least
    return found
