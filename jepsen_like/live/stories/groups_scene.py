"""The tools of stories about several groups of brokers: a second group, a load on topics of both, and the judgement at
the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jepsen_like.live.probes.groups_load import PULLERS, GroupsLoad
from jepsen_like.live.stories.story import WELL_S, Scene, StoryEnds
from jepsen_like.live.subjects.further_group import FurtherGroup
from jepsen_like.live.subjects.payload import id_of
from jepsen_like.live.subjects.raftmq_nodes import RaftMQNodes, until_answered
from jepsen_like.live.subjects.subject import is_caught_up, is_healthy, leader_of
from jepsen_like.read_node import read_node
from raftlog.types import FIRST_GROUP
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import group_of, queue_text

if TYPE_CHECKING:
    from raftmq.client import Client

SECOND = 2
SUM_UP_TRIES = 5
RATE = 60
"""Sends per second to each topic."""


class GroupsScene:
    """A second group in addition to the scene's, and the load on both."""

    def __init__(self, scene: Scene, servers: str = "") -> None:
        """`servers`: the addresses that the load knows; "" for those of the first group."""
        self.scene = scene
        self.second = FurtherGroup(scene.subject, SECOND)
        self.topics: list[str] = []
        subject = scene.subject
        rate = RATE if scene.rate is None else scene.rate
        self.load = GroupsLoad(
            servers or subject.servers, subject.client_options, scene.history, scene.rng.randrange(1 << 30), rate
        )
        self.mq: Client = connect(subject.servers, timeout_s=WELL_S, **subject.client_options)

    def nodes_of(self, group: int) -> RaftMQNodes:
        """Returns the nodes of a group."""
        return self.scene.subject if group == FIRST_GROUP else self.second

    def begin(self, *topics: str) -> None:
        """Begins to send to these topics, and to read them."""
        self.mq.admin.create_group(PULLERS)
        self.load.start()
        for topic in topics:
            self.use(topic)
        self.load.read(topics)

    def use(self, topic: str) -> None:
        """Begins to send to a topic, and to pull all its queues."""
        self.topics.append(topic)
        self.load.send_to(topic)
        self.load.pull(topic, self.queues_of(topic))

    def queues_of(self, topic: str) -> list[int]:
        """Returns the numbers of the topic's queues."""
        return [queue.queue_id for queue in self.mq.admin.describe_topic(topic).queues]

    def join(self) -> float:
        """Makes the second group, starts it and adds it to the cluster; returns the seconds that it took until clients
        know it. Raises StoryEnds."""
        begun = time.monotonic()
        self.second.make()
        self.second.start()
        self.insist(f"adding group {SECOND}", self.second.add)
        self.wait_well(SECOND)
        if not until(lambda: self.mq.admin.broker_groups() == [FIRST_GROUP, SECOND], WELL_S, 0.05):
            raise StoryEnds(f"clients do not know group {SECOND} within {WELL_S:.0f} s")
        return time.monotonic() - begun

    def insist(self, what: str, act: Callable[[], None]) -> None:
        """Repeats `act` until it succeeds, because a leader may die during it. `act` must be safe to do twice. Raises
        StoryEnds if it does not succeed in time.
        """
        last = ""

        def done() -> bool:
            nonlocal last
            try:
                act()
            except (RaftMQError, LocalError, OSError) as error:
                last = str(error)
                return False
            return True

        if not until(done, WELL_S, 0.2):
            raise StoryEnds(f"{what}: not done within {WELL_S:.0f} s, the last error: {last}")

    def wait_well(self, group: int) -> float:
        """Returns the seconds until all nodes of the group agree on a leader that accepts writes. Raises StoryEnds."""
        begun, nodes = time.monotonic(), self.nodes_of(group)
        if not until(lambda: is_healthy(nodes.states()), WELL_S, 0.02):
            raise StoryEnds(f"the nodes of group {group} did not agree on a leader within {WELL_S:.0f} s")
        return time.monotonic() - begun

    def leader(self, group: int) -> int:
        """Returns the leader of a group; any node if none leads in time."""
        nodes = self.nodes_of(group)
        leader = until(lambda: leader_of(nodes.states()), WELL_S, 0.05)
        return self.scene.rng.choice(nodes.node_ids) if leader is None else leader

    def kill(self, group: int, nodes: list[int]) -> None:
        """Kills nodes of a group with -9 at the same moment. Raises StoryEnds."""
        there = self.nodes_of(group)
        for blow in [there.aim(node) for node in nodes if there.is_running(node)]:
            blow()
        if not until(lambda: not any(map(there.is_running, nodes)), WELL_S, 0.002):
            raise StoryEnds(f"nodes {nodes} of group {group} could not be killed")
        self.scene.stage.kills += len(nodes)

    def start(self, group: int, nodes: list[int]) -> None:
        """Starts nodes that do not run."""
        for node in nodes:
            (self.scene.subject if group == FIRST_GROUP else self.second).start_node(node)

    @contextlib.contextmanager
    def no_key_moves(self, topics: Iterable[str]) -> Iterator[None]:
        """Demands that during the context no key of these topics gets a message in a new queue."""
        wanted = {*topics}
        before = {place: list(queues) for place, queues in list(self.load.places.items()) if place[0] in wanted}
        yield
        for place, now in list(self.load.places.items()):
            if place[0] in wanted:
                was = before.get(place, now[:1])
                told = [", ".join(map(queue_text, queues)) for queues in (was, now)]
                self.scene.demand(now == was, f"{place[0]}: {place[1]} was in queue {told[0]} and came to {told[1]}")

    def copy_is_whole(self) -> bool:
        """Returns True if each node of the second group has copied the truth (topics, users and so on) up to the
        version of the first group, and no finding says otherwise; False if a node does not answer.
        """
        views = [self.nodes_of(group) for group in (FIRST_GROUP, SECOND)]
        try:
            newest, copied = (
                {nodes.request(node, "GET", "/v1/broker-groups")["version"] for node in nodes.node_ids}
                for nodes in views
            )
            return len(newest) == 1 and newest == copied and not self.has_finding("truth_unconfirmed")
        except OSError:
            return False

    def wait_finding(self, code: str) -> bool:
        """Waits until the second group's leader has that finding; returns False if it has not in time."""
        return until_answered(lambda: self.has_finding(code), WELL_S, 0.2) is True

    def has_finding(self, code: str) -> bool:
        """Returns True if the second group's leader has that finding. Raises OSError."""
        found = self.second.request(self.leader(SECOND), "GET", "/v1/findings")["findings"]
        return any(each["code"] == code for each in found)

    def finish(self, groups: Sequence[int] = (FIRST_GROUP, SECOND)) -> None:
        """Ends the load, and reads all replicas of these groups into the history. If the second group is among them,
        stops its nodes and records the digests of their states. Raises StoryEnds.
        """
        scene = self.scene
        with scene.act("the load ends") as told:
            for wrong in [*self.load.finish(), *self.load.wrong]:
                scene.demand(False, wrong)
            counts = self.load.counts
            told.append(f"{counts.acked:,} acknowledged, {counts.failed} failed, {counts.unknown} unknown")
            scene.measured |= {
                "acknowledged": counts.acked,
                "failed": counts.failed,
                "unknown": counts.unknown,
                "acknowledged by group": {group: len(times) for group, times in sorted(self.load.acks_s.items())},
                "came again": self.load.again,
            }
        with scene.act("read all replicas") as told:
            told.append(f"{self._read_back(groups):,} rows")
        if SECOND in groups:
            with scene.act("states of the second group"), scene.quiet():
                self._sum_up()

    def _sum_up(self) -> None:
        """Stops the second group's nodes and records the digests of their states in the history, where a checker
        compares them. If the leader appended an entry of its own between the stops of two nodes, tries again, up to
        SUM_UP_TRIES times in all.
        """
        for _ in range(SUM_UP_TRIES):
            self._wait_caught_up(SECOND)
            self.scene.demand(self.second.stop_in_order(), f"a node of group {SECOND} did not stop in order")
            digests = self.second.read_digests(self.scene.history)
            if len({digest.applied for digest in digests.values()}) == 1:
                return
            self.second.start()
            self.wait_well(SECOND)

    def _wait_caught_up(self, group: int) -> None:
        if not until(lambda: is_caught_up(self.nodes_of(group).states()), WELL_S, 0.05):
            raise StoryEnds(f"the replicas of group {group} had not applied the same after {WELL_S:.0f} s")

    def read_running(self, group: int, queues: Mapping[str, Sequence[int]]) -> int:
        """Reads these queues of topics from the nodes of a group that run; returns the number of rows."""
        nodes = self.nodes_of(group)
        running = [node for node in nodes.nodes if nodes.is_running(node.id)]
        return sum(
            read_node(self.mq, node, topic, own, self.scene.history, id_of)
            for topic, own in queues.items()
            for node in running
        )

    def _read_back(self, groups: Sequence[int]) -> int:
        for group in groups:
            self._wait_caught_up(group)
        rows = 0
        for topic in self.topics:
            queues = self.queues_of(topic)
            for group in groups:
                own = [queue for queue in queues if group_of(queue) == group]
                for node in self.nodes_of(group).nodes:
                    rows += read_node(self.mq, node, topic, own, self.scene.history, id_of)
        return rows

    def close(self) -> None:
        """Stops the load, the client and the second group."""
        self.load.abort()
        self.mq.close()
        self.second.stop()


@contextlib.contextmanager
def groups_scene(scene: Scene, servers: str = "") -> Iterator[GroupsScene]:
    """A context with a second group and its load. `servers` are the addresses that the load's clients get; "" for those
    of the first group. The group and the load end with the context.
    """
    made = GroupsScene(scene, servers)
    try:
        yield made
    finally:
        made.close()
