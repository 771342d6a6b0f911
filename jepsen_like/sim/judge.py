"""The final judgement of a run: reads every replica to its end and compares it with the answers that the clients
got."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from jepsen_like.checker_log import check_log
from jepsen_like.checkers.weak_acks import cleared
from jepsen_like.history import Op
from jepsen_like.sim.checks.index_check import not_found
from jepsen_like.sim.checks.send_order import overtaken
from jepsen_like.sim.checks.trimmed_offsets import above, is_below
from jepsen_like.sim.clients import (
    delayed_messages,
    deleted_topics,
    failing_consumers,
    members_apart,
    reset_clients,
    staged_writers,
)
from jepsen_like.sim.clients.client_machines import (
    BRISK_TOPIC,
    FOREIGN_TOPIC,
    FULL,
    OWN_ID,
    TOPIC,
    Foreign,
    brisk_level,
    id_of,
    read_queue,
)
from jepsen_like.sim.clients.readers import REGISTER_GROUP
from jepsen_like.sim.clients.recreated_topics import GROUP as REMAKES_GROUP
from jepsen_like.sim.clients.transaction_producers import visible
from jepsen_like.sim.machines.machine import BROKER_PORT
from jepsen_like.sim.options import Options
from jepsen_like.sim.users import attackers, requesters, user_clients
from raftlog.errors import InvariantViolationError
from raftmq.client.client import AsyncClient
from raftmq.client.consuming.pull import PullStatus
from statemachine.rows import keys
from statemachine.rows.kv import LOCKS

if TYPE_CHECKING:
    from jepsen_like.sim.checks.monitor import Monitor
    from jepsen_like.sim.checks.trimmed_offsets import Floors
    from jepsen_like.sim.clients.client_machines import ClientHost
    from jepsen_like.sim.clients.delayed_messages import Delayed
    from jepsen_like.sim.clients.deleted_topics import DeletedTopics
    from jepsen_like.sim.clients.failing_consumers import Failures
    from jepsen_like.sim.clients.history_recorder import Recorder
    from jepsen_like.sim.clients.readers import CatalogueClient, GroupReader
    from jepsen_like.sim.clients.recreated_topics import RecreatedTopics
    from jepsen_like.sim.clients.reset_clients import Resets
    from jepsen_like.sim.clients.resized_topics import ResizedTopics
    from jepsen_like.sim.clients.staged_writers import Writers
    from jepsen_like.sim.clients.transaction_producers import Transactors
    from jepsen_like.sim.machines.machine import Machine


class JudgedWorld(Protocol):
    """The attributes of the simulated world (`jepsen_like.sim.world`) that the judge uses."""

    options: Options
    monitor: Monitor
    recorder: Recorder
    auditor: ClientHost
    reader: GroupReader
    catalogue: CatalogueClient
    remakes: RecreatedTopics | None
    transactors: Transactors | None
    delayed: Delayed | None
    failures: Failures | None
    resets: Resets | None
    resized: ResizedTopics | None
    legacies: DeletedTopics | None
    writers: Writers | None

    def clocks_are_close(self) -> bool:
        """Returns True if log time cannot have jumped during the run."""

    def refused(self) -> set[str]:
        """Returns the ids of messages of RaftMQ's own producers that a node refused for now, or gave up."""

    def retried(self) -> list[Foreign]:
        """Returns the messages that foreign clients sent again until they were answered."""

    def floors(self) -> Floors:
        """Returns the offsets below which retention may have removed messages from the topics of the load."""

    def members(self) -> list[Machine]:
        """Returns the machines whose nodes are members of the Raft group, or will be once all changes are done."""

    def wait_for(self, reached: Callable[[], object], what: str) -> bool:
        """Lets time pass until `reached` returns something true; reports a violation with `what` if that takes too
        long."""


class Judge:
    """Checks a run at its end and reports violations to the monitor."""

    def __init__(self, world: JudgedWorld) -> None:
        self._world = world
        self._foreign: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        """Node -> (queue, offset, id) of every message in the foreign topic."""
        self._orders: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        """Node -> (queue, offset, id) of every message of RaftMQ's own producers."""
        self._vanished: frozenset[str] = frozenset()
        """Ids of messages that were acknowledged at a weaker level and are lost, which that level allows."""

    # --- the beginning -----------------------------------------------------------------------------------------------

    def create_topics(self) -> None:
        """Creates the topics and groups that the load uses, through RaftMQ's client."""

        async def create(client: AsyncClient) -> None:
            for topic, level in levels(self._world.options).items():
                attributes = {"ack.level": level} if level else None
                await client.admin.create_topic(topic, queues=self._world.options.queues, attributes=attributes)
            for topic, queues in own_topics(self._world.options).items():
                await client.admin.create_topic(topic, queues=queues)
            await client.admin.create_group(REGISTER_GROUP)
            if self._world.remakes is not None:
                await client.admin.create_group(REMAKES_GROUP)
            if self._world.options.users:
                await client.admin.create_group(user_clients.GROUP)
                await client.admin.create_group(attackers.GROUP)
            if self._world.resets is not None:
                await client.admin.create_group(reset_clients.GROUP)

        self._run(create, "the topics are not created")

    def _run(self, work: Callable[[AsyncClient], Awaitable[None]], otherwise: str) -> None:
        auditor = self._world.auditor
        done: list[bool] = []

        async def run() -> None:
            client = auditor.client()
            try:
                await work(client)
            except Exception as error:  # noqa: BLE001 - a healed cluster refuses nothing
                self._world.monitor.report("liveness", f"{otherwise}: {error}")
            done.append(True)
            await client.close()

        auditor.spawn(run)
        self._world.wait_for(lambda: done, otherwise)

    # --- the end -----------------------------------------------------------------------------------------------------

    def reader_has_all(self) -> bool:
        """Returns True when the consumer group has got every message that was acknowledged, except trimmed ones and
        those whose loss their level allows."""
        ids, floor = self._world.reader.ids, self._world.floors()
        ops = self._world.recorder.ops
        due = [op for op in ops if op.type == "ok" and op.f == "send" and op.value["topic"] == TOPIC]
        return all(op.value["id"] in ids or is_below(op, floor) or op.value["id"] in self._vanished for op in due)

    def stored(self) -> bool:
        """Reads every replica and judges its content, when no client writes any more. Returns False if a violation was
        found."""
        violations = self._world.monitor.violations
        self._run(self._read_all, "the replicas cannot be read")
        if not violations:
            self._check_log()
            self._check_order()
            self._check_foreign()
            self._check_catalogue()
            self._check_index()
        return not violations

    async def _read_all(self, client: AsyncClient) -> None:
        addresses = [f"{machine.host}:{BROKER_PORT}" for machine in self._world.members()]
        for judge in (self._world.remakes, self._world.delayed, self._world.resized):
            if judge is not None:
                await judge.judge(client, addresses)
        for machine in self._world.members():
            for queue in range(self._world.options.queues):
                address = f"{machine.host}:{BROKER_PORT}"
                for topic in judged_topics(self._world.options):
                    await self._read(client, machine.node_id, address, topic, queue)
                self._foreign[machine.node_id] += await self._ids(client, FOREIGN_TOPIC, queue, address)

    async def _read(self, client: AsyncClient, node: int, address: str, topic: str, queue: int) -> None:
        recorder, offset = self._world.recorder, 0
        while True:
            op = recorder.invoke("read", {"node": node, "topic": topic, "queue_id": queue, "offset": offset})
            pulled = await client.pull(topic, queue, offset, 256, node=address)
            rows = [[message.queue_offset, id_of(message.body)] for message in pulled.messages]
            ended = pulled.status is PullStatus.END or (not rows and pulled.next_offset <= offset)
            recorder.end(op, "ok", {"messages": rows, "end": ended})
            if topic == TOPIC:
                own = [m for m in pulled.messages if OWN_ID.match(m.body)]
                self._orders[node] += [(queue, m.queue_offset, id_of(m.body)) for m in own]
            if ended:
                return
            offset = pulled.next_offset

    async def _ids(self, client: AsyncClient, topic: str, queue: int, address: str) -> list[tuple[int, int, str]]:
        messages, _ = await read_queue(client, topic, queue, address)
        return [(queue, message.queue_offset, id_of(message.body)) for message in messages]

    def _check_log(self) -> None:
        monitor = self._world.monitor
        ops = [op for op in self._world.recorder.ops if op.f in ("send", "repeat", "read")]
        floor = self._world.floors()
        monitor.sometimes["log trimmed"] += any(floor.values())
        verdict = check_log(self._without_lost(above(ops, floor)))
        monitor.sometimes["unknown send found stored"] += verdict.unknown_stored
        for anomaly in verdict.anomalies[:5]:
            monitor.report("log", f"{anomaly.kind}: {anomaly.message_id}: {anomaly.what}")
        for queue in verdict.incomplete[:1]:
            monitor.report("log", f"{queue} was not read to its end")

    def _check_order(self) -> None:
        monitor = self._world.monitor
        refused = self._world.refused()
        monitor.sometimes["send refused for now"] += len(refused)
        for node, stored in self._orders.items():
            for what in islice(overtaken(stored, refused), 3):
                monitor.report("send order", f"on node {node}, {what}")

    def _without_lost(self, ops: list[Op]) -> list[Op]:
        """Returns the history without the messages that were acknowledged at a weaker level and whose loss that level
        allows. No consumer may have read such a message: a message becomes visible when it is committed, and then it
        stays."""
        world = self._world
        ids = {
            name: topic.id
            for machine in world.members()
            if machine.node is not None
            for name, topic in machine.node.state.topics.items()
        }

        def may_vanish(sent: Op, acked: Op) -> bool:
            queue = ids[acked.value["topic"]], acked.value["queue_id"]
            excuses, offset = world.monitor.excuses, acked.value["queue_offset"]
            return excuses.allow(sent.value["level"], queue, offset, sent.time_ns / 1e9, world.options)

        left, self._vanished = cleared(ops, may_vanish)
        weak = [op for op in world.recorder.ops if op.f == "send" and op.type == "ok" and "level" in op.value]
        world.monitor.sometimes["weak acknowledgement"] += len(weak)
        world.monitor.sometimes["weakly acknowledged message lost"] += len(self._vanished)
        for message_id in sorted(self._vanished & world.reader.ids)[:1]:
            world.monitor.report("consumer", f"{message_id} was read and is gone: visible before it was committed")
        return left

    def _check_foreign(self) -> None:
        """Checks the number of copies of each message that a foreign client sent again (docs/adr/0011)."""
        monitor, floor = self._world.monitor, self._world.floors()
        whole = not any(lowest for (topic, _), lowest in floor.items() if topic == FOREIGN_TOPIC)
        left = {
            node: Counter(id for queue, offset, id in rows if offset >= floor.get((FOREIGN_TOPIC, queue), 0))
            for node, rows in self._foreign.items()
        }
        places = {node: set(rows) for node, rows in self._foreign.items()}
        for foreign in self._world.retried():
            self._check_place(foreign, places)
            least, most = bounds(foreign)
            least = least if whole else 0
            for node, copies in left.items():
                found = copies[foreign.message_id]
                if not least <= found <= most:
                    ends = [attempt.ended for attempt in foreign.attempts]
                    what = f"{foreign.message_id} stands {found} times on node {node}"
                    monitor.report("foreign", f"{what}, {least} to {most} are right after {ends}")
            if most == 1 and sum(a.ended == "unknown" for a in foreign.attempts) and least == 1:
                monitor.sometimes["retry answered by an earlier copy"] += 1
        if len({tuple(sorted(copies.items())) for copies in left.values()}) > 1:
            monitor.report("foreign", "replicas hold different messages in the foreign topic")

    def _check_place(self, foreign: Foreign, places: dict[int, set[tuple[int, int, str]]]) -> None:
        """Checks that a message is where the answer to its last attempt said."""
        if foreign.place is None or foreign.place[1] < self._world.floors().get((FOREIGN_TOPIC, foreign.place[0]), 0):
            return
        for node, rows in places.items():
            if (*foreign.place, foreign.message_id) not in rows:
                where = f"at {foreign.place[1]} in queue {foreign.place[0]}"
                self._world.monitor.report(
                    "foreign", f"{foreign.message_id} was acknowledged {where}; not on node {node}"
                )

    def _check_catalogue(self) -> None:
        for name, exists in self._world.catalogue.exists.items():
            for machine in self._world.members():
                assert machine.node is not None
                state = machine.node.state
                there = name in (state.topics if name[0] == "t" else state.groups)
                if exists is not None and there != exists:
                    what = f"{name} {'exists' if there else 'does not exist'} on node {machine.node_id}, "
                    self._world.monitor.report("catalogue", what + "the last acknowledged change says the opposite")

    def replicas(self) -> None:
        """Checks the rows and logs inside all nodes, when nothing changes any more."""
        monitor = self._world.monitor
        try:
            monitor.check_all()
        except InvariantViolationError as error:
            monitor.report("invariant", str(error))
        for machine in self._world.members():
            monitor.count_mended(machine)
            monitor.same_sums(machine)
            for what in islice(stray_locks(machine), 1):
                monitor.report("locks", f"node {machine.node_id}: {what}")
            for checker, found in self._waited(machine):
                for what in islice(found, 3):
                    monitor.report(checker, f"node {machine.node_id}: {what}")
            monitor.recount(machine)

    def _waited(self, machine: Machine) -> Iterator[tuple[str, Iterator[str]]]:
        """Yields (name of a checker, lines about what is wrong on this machine). These checkers look at messages that
        were in no queue at first, such as half and staged ones.
        """
        world = self._world
        if world.transactors is not None:
            copies, trimmed = visible(machine)
            yield "transactions", world.transactors.judge.wrong(copies, trimmed=trimmed)
        if world.failures is not None:
            retried, trimmed = failing_consumers.copies_on(machine)
            exact = world.clocks_are_close()
            yield "failures", world.failures.judge.wrong(retried, trimmed=trimmed, exact=exact)
        if world.legacies is not None:
            yield "legacies", deleted_topics.found_wrong(machine, world.legacies.made)
        if world.writers is not None:
            rows, trimmed = staged_writers.visible(machine)
            yield staged_writers.CHECKER, world.writers.judge.wrong(rows, trimmed=trimmed)

    def _check_index(self) -> None:
        """Checks the message index on one replica: equal digests show that the others have the same rows."""
        machines = self._world.members()
        machine = machines[self._world.options.seed % len(machines)]
        assert machine.node is not None
        log = machine.node.storage.directory.log

        def is_damaged(position: int, size: int) -> bool:
            return log.report_damage(position, size) is not None

        for what in islice(not_found(machine.node.state, log.read_at, is_damaged), 3):
            self._world.monitor.report("index", f"node {machine.node_id}: {what}")


def stray_locks(machine: Machine) -> Iterator[str]:
    """Yields a line for each queue lock that is left of a deleted group or topic."""
    assert machine.node is not None
    state = machine.node.state
    for key, _ in machine.kv.scan(LOCKS, keys.FIRST, keys.LAST):
        group, topic_id, queue_id = keys.parse_offset_key(key)
        if group not in state.groups or topic_id not in state.topics_by_id:
            yield f"a lock of group {group}, topic {topic_id}, queue {queue_id} is left, which are deleted"


def levels(options: Options) -> dict[str, str]:
    """Returns topic of the load -> the acknowledgement level with which the topic is created; "" if with none, because
    the nodes' own level then is the full promise.
    """
    own = FULL if options.flush_async else ""
    return {TOPIC: own, FOREIGN_TOPIC: own, **({BRISK_TOPIC: brisk_level(options)} if options.weak else {})}


def own_topics(options: Options) -> dict[str, int]:
    """Returns topic -> number of queues, for the topics that only single clients of the load use."""
    clients = (
        (options.delayed, delayed_messages.LATER_TOPIC, delayed_messages.QUEUES),
        (options.failures, failing_consumers.TOPIC, failing_consumers.QUEUES),
        (options.resets, reset_clients.TOPIC, reset_clients.QUEUES),
        (options.writes, staged_writers.TOPIC, staged_writers.QUEUES),
        *[(options.apart, topic, queues) for topic, queues in members_apart.TOPICS.items()],
        *[(options.users, topic, user_clients.QUEUES) for topic in (*user_clients.TOPICS, user_clients.CALM_TOPIC)],
        *[(options.users, topic, 1) for topic in (attackers.TOPIC, requesters.TOPIC)],
    )
    return {topic: queues for chosen, topic, queues in clients if chosen}


def judged_topics(options: Options) -> tuple[str, ...]:
    """Returns the topics whose messages all appear in the history, so that the log checker can judge them."""
    return tuple(topic for topic in levels(options) if topic != FOREIGN_TOPIC)


def bounds(foreign: Foreign) -> tuple[int, int]:
    """Returns (least, most) number of copies that the message may have. A node that answered [UNKNOWN] recognizes a
    retry as long as its process lives, so attempts at that one process make at most one copy.
    """
    ends = [attempt.ended for attempt in foreign.attempts]
    least = 1 if "ok" in ends else 0
    most = sum(end != "no" for end in ends)
    here = {(attempt.node, attempt.incarnation) for attempt in foreign.attempts if attempt.ended != "no"}
    if "silence" not in ends and len(here) == 1:
        most = min(most, 1)
    return least, most
