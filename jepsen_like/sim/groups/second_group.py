"""A second group of brokers: three full nodes with their own machines, faults and clients, which copy the truth of the
first group over the simulated network (docs/adr/0108)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from jepsen_like.checker_log import check_log
from jepsen_like.sim.callbacks import Wait
from jepsen_like.sim.checks.monitor import Monitor
from jepsen_like.sim.checks.trimmed_offsets import above, floors
from jepsen_like.sim.checks.truth_check import CHECKER, told
from jepsen_like.sim.clients.client_machines import ClientHost, id_of, read_queue
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.single_request import ask, dial
from jepsen_like.sim.faults.fault_plan import plan
from jepsen_like.sim.faults.leader_faults import LEADER_FAULTS
from jepsen_like.sim.faults.link_faults import LINK_FAULTS
from jepsen_like.sim.faults.nemesis import FaultInjector
from jepsen_like.sim.faults.stall_faults import STALL_FAULTS
from jepsen_like.sim.group_states import GroupStates
from jepsen_like.sim.groups import placed_writers
from jepsen_like.sim.groups.gathering import Gathering
from jepsen_like.sim.groups.map_check import CopiesCheck, MapCheck, differing
from jepsen_like.sim.groups.placed_clients import (
    GROUP,
    QUEUES,
    SECOND_TOPIC,
    TOPIC,
    PlacedClient,
    PlacedProducer,
    PlacedReader,
    TruthChanger,
    route_of,
)
from jepsen_like.sim.groups.placed_writers import PlacedWriter
from jepsen_like.sim.groups.retirement import Retirement
from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.machines.machine import BROKER_PORT, NAMESRV_PORT, Machine, name_of
from jepsen_like.sim.registry.sim_registry import SimRegistry
from raftlog.errors import InvariantViolationError
from raftlog.types import FIRST_GROUP, NodeId
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.consuming.groups import PutGroup
from statemachine.topics.topics import CreateTopic

if TYPE_CHECKING:
    from jepsen_like.sim.broker_groups import BrokerGroupsOperator
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.network import Network
    from jepsen_like.sim.options import Options

NUMBER = FIRST_GROUP + 1
NODES = 3
SEED_STEP = 1 << 40
"""Number that is added to a run's seed to draw the second group's machines and faults."""
LEADER_S, COPIED_S, ROUTES_S, READ_S, SETTLED_S = 60.0, 60.0, 60.0, 150.0, 60.0
"""Virtual seconds when nothing is broken: LEADER_S until the group has a leader, COPIED_S until its copy is that of the
first group, ROUTES_S until every route names both leaders, READ_S until all replicas are read, SETTLED_S until every
write to both groups is decided and copied."""


class FirstGroup(Protocol):
    """The attributes of the simulated world that the second group uses."""

    options: Options
    loop: SimLoop
    network: Network
    monitor: Monitor
    machines: dict[NodeId, Machine]
    states: GroupStates
    broker_groups: BrokerGroupsOperator | None

    def nemesis_leader(self) -> Machine | None:
        """Returns the machine of the first group's leader; None if no running node leads."""


class GroupMonitor(Monitor):
    """The monitor of a further group. Its violations count for the run, and name the group that they are about."""

    def report(self, checker: str, what: str) -> None:
        super().report(checker, f"group {NUMBER}: {what}")


def options_of(options: Options) -> Options:
    """Returns the options of the second group's machines and faults: those of the first group with a seed of its own.
    The second group has no tier, because its objects would need another check.
    """
    return options._replace(
        seed=options.seed + SEED_STEP,
        nodes=NODES,
        second=0,
        tier=0,
        tier_bytes=0,
        tier_read=0,
        tier_page=0,
        tier_seal_ms=0,
    )


class SecondGroup:
    """The second group, with its machines, faults and checks. `clients` are the clients that use both groups."""

    def __init__(self, world: FirstGroup, add_host: Callable[[], ClientHost], *, planned: bool) -> None:
        """`add_host` adds a machine for one more client and returns it. `planned`: the group has its own planned
        faults."""
        self._world = world
        self.options = options = options_of(world.options)
        ids = [NodeId(i) for i in range(1, NODES + 1)]
        self.monitor = GroupMonitor(world.loop, ids, black_box=world.monitor.black_box)
        self.monitor.violations = world.monitor.violations
        self.monitor.log = lambda line: world.monitor.log(f"group {NUMBER}: {line}")
        self.machines: dict[NodeId, Machine] = {}
        for node_id in ids:
            machine = Machine(node_id, options, world.loop, world.network, self.monitor, group=NUMBER)
            self.monitor.add(machine)
            self.machines[node_id] = machine
        self.states = GroupStates(self.machines)
        self._groups = {FIRST_GROUP: world.machines, NUMBER: self.machines}
        report = world.monitor.report
        self.maps = MapCheck(report, {FIRST_GROUP: world.monitor.leaders, NUMBER: self.monitor.leaders})
        self._by_process: dict[Process, Machine] = {}
        further = {**LINK_FAULTS, **LEADER_FAULTS, **STALL_FAULTS}
        self.recorders = {group: Recorder(world.loop) for group in self._groups}
        self.producers = [
            PlacedProducer(group, add_host(), self.recorders[group], report, self.hosts) for group in self._groups
        ]
        self.readers = [PlacedReader(group, add_host(), report, self.hosts) for group in self._groups]
        self.changer = TruthChanger(
            add_host(), report, self.hosts, lambda: {machine.host: machine for machine in self.machines.values()}
        )
        self.writer = PlacedWriter(add_host(), report, self.hosts) if world.options.group_writes else None
        more = [] if self.writer is None else [self.writer]
        self.clients: list[PlacedClient] = [*self.producers, *self.readers, self.changer, *more]
        self._auditor = add_host()
        self.registry = SimRegistry(world, self._groups, TOPIC) if world.options.registry else None
        for client in self.clients:
            client.registry = () if self.registry is None else self.registry.hosts
            client.has_led = self._has_led
        self.retirement: Retirement | None = None
        self.gathering: Gathering | None = None
        if world.options.gathers:
            self.gathering = Gathering(self, options, world.loop, world.nemesis_leader, add_host())
        if world.options.retires:
            self.retirement = Retirement(self, options, world.loop, world.nemesis_leader, add_host())
        faults = plan(options) if planned else ()
        client_hosts = [client.host.process.host for client in self.clients]
        self.nemesis = FaultInjector(
            world.loop, world.network, self.machines, self.monitor, faults, client_hosts, further
        )
        self._why = ""
        """Description of what is wrong with the first wrong route of the last look; "" if none is."""

    def hosts(self) -> dict[int, list[str]]:
        """Returns number of a group -> the hosts of its nodes, including removed ones."""
        return {group: [machine.host for machine in machines.values()] for group, machines in self._groups.items()}

    def _has_led(self, group: int, host: str) -> bool:
        """Returns True if the node at that host has led the group."""
        monitor = self.monitor if group == NUMBER else self._world.monitor
        return any(machine.host == host and node in monitor.followed for node, machine in self._groups[group].items())

    def hashes(self) -> tuple[int, ...]:
        """Returns the hashes of what happened in this group, and to the clients of both."""
        return (self.monitor.hash, *(recorder.hash for recorder in self.recorders.values()))

    def watch(self) -> None:
        """Checks the nodes of both groups after each event, from now on."""
        loop, first, own = self._world.loop, self._world.monitor, self.monitor

        def after_event(process: Process) -> None:
            first.after_event(process)
            own.after_event(process)
            machine = self._machine_of(process)
            if machine is not None:
                self.maps.look(machine)
            elif self.registry is not None:
                self.registry.look(process)

        def long_turn(process: Process, callback: object, units: int) -> None:
            first.long_turn(process, callback, units)
            own.long_turn(process, callback, units)

        loop.after_event, loop.on_long_turn = after_event, long_turn
        operator = self._world.broker_groups
        assert operator is not None
        operator.confirmed = self._confirmed
        own.truth = CopiesCheck(own.report, operator.check)

    def _machine_of(self, process: Process) -> Machine | None:
        """Returns the machine on which a node's process runs; None for any other process, and for one that has
        ended and been replaced."""
        found = self._by_process.get(process)
        if found is None and process.name.startswith("node"):
            for machines in self._groups.values():
                for machine in machines.values():
                    if machine.process is process:
                        found = self._by_process[process] = machine
        return found if found is not None and found.process is process else None

    def _confirmed(self) -> int:
        """Returns the version of the truth that the second group has surely copied; 0 if none of its nodes runs."""
        return max((node.state.truth.copied for node in self.states.running()), default=0)

    # --- the beginning -----------------------------------------------------------------------------------------------

    def begin(self, wait: Wait) -> None:
        """Adds the group, starts its nodes and makes the topics that both hold."""
        operator = self._world.broker_groups
        assert operator is not None
        self.watch()
        if not wait(operator.add, LEADER_S, "a second group cannot be added", CHECKER):
            return
        for machine in self.machines.values():
            machine.start()
        if self.registry is not None:
            self.registry.start()
        if wait(self.states.healthy, LEADER_S, "nobody leads a fresh second group") and wait(
            self._made, LEADER_S, "the topics of both groups are not made", CHECKER
        ):
            wait(self._copied, COPIED_S, "the second group does not copy the truth", CHECKER)

    def _made(self) -> bool:
        """Makes the topics and the consumer group; returns True once they are there."""
        leader = self._world.nemesis_leader()
        if leader is None or leader.node is None or leader.process is None or leader.process.paused:
            return False
        node = leader.node
        written = () if self.writer is None else (placed_writers.TOPIC,)
        if {TOPIC, SECOND_TOPIC, *written} <= node.state.topics.keys() and GROUP in node.state.groups:
            return True
        both = [[group, QUEUES, QUEUES] for group in self._groups]
        of_writer = [[group, placed_writers.QUEUES, placed_writers.QUEUES] for group in self._groups]
        run = [
            CreateTopic({"name": TOPIC, "perm": 6, "place": both}, if_absent=False),
            CreateTopic({"name": SECOND_TOPIC, "perm": 6, "place": [[NUMBER, 1, 1]]}, if_absent=False),
            PutGroup({"name": GROUP}, if_absent=True),
            *(CreateTopic({"name": name, "perm": 6, "place": of_writer}, if_absent=False) for name in written),
        ]
        leader.process.run(lambda: node.serving.services.propose(run, lambda _: None, author="the operator"))
        return False

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self, wait: Wait) -> bool:
        """Checks the end of the run, when no client changes anything any more. Returns False if something is wrong."""
        return (
            wait(self._settled, SETTLED_S, "a write to both groups is not settled", placed_writers.CHECKER)
            and wait(self.states.equal, LEADER_S, "group 2: replicas do not become equal")
            and wait(self._copied, COPIED_S, "the truth of group 2 is not that of group 1", CHECKER)
            and self._has_made()
            and self._judge_routes(wait)
            and (self.registry is None or (self.registry.rebuilt(wait) and self._judge_routes(wait)))
            and all(self._judge_log(group, wait) for group in self._groups)
            and self._judge_writes()
            and self._judge_insides()
            and (self.gathering is None or self.gathering.play(wait))
            and (self.retirement is None or self.retirement.play(wait))
            and (self.registry is None or self.retirement is None or self.registry.stays_gone(NUMBER, wait))
        )

    def _copied(self) -> bool:
        """Returns True if every node of the second group has the truth that the first group's leader has."""
        leader = self._world.nemesis_leader()
        nodes = self.states.running()
        if leader is None or leader.node is None or len(nodes) < NODES:
            return False
        wanted = told(leader.node.state)
        return not any(differing(wanted, told(node.state)) for node in nodes)

    def _settled(self) -> bool:
        """Returns True if no node has a write that waits for a decision, or whose rows are still being copied or
        removed. A write that no driver commits any more stays open until it expires."""
        if self.writer is None:
            return True
        nodes = [*self._world.states.running(), *self.states.running()]
        return not any(
            node.state.prepared_writes.prepared or node.state.prepared_writes.decisions or node.state.writes.draining
            for node in nodes
        )

    def _has_made(self) -> bool:
        """Checks that every topic whose creation was acknowledged at the second group is on each node of the first one.
        Returns False if the run has a violation."""
        for machine in self._world.states.members():
            assert machine.node is not None
            for name in [name for name in self.changer.made if name not in machine.node.state.topics][:1]:
                self._world.monitor.report(
                    CHECKER, f"topic {name} is acknowledged at group 2, and not on node {machine.node_id} of group 1"
                )
        return not self._world.monitor.violations

    def _judge_routes(self, wait: Wait) -> bool:
        done: list[bool] = []

        async def look() -> None:
            for what, host, port in self._name_servers():
                self._why = await self._wrong_route(host, port) or ""
                if self._why:
                    self._why = f"{what}: {self._why}"
                    return
            done.append(True)

        task = self._auditor.spawn(look)

        def right() -> bool:
            nonlocal task
            if task.done() and not done:
                task = self._auditor.spawn(look)
            return bool(done)

        if not wait(right, ROUTES_S, "routes do not become right", "routes"):
            self._world.monitor.report("routes", self._why)
        return not self._world.monitor.violations

    def _name_servers(self) -> list[tuple[str, str, int]]:
        """Returns (description, host, port) of everything that answers route requests: the nodes of both groups, and
        the registry.
        """
        nodes = [
            (f"node {machine.node_id} of group {group}", machine.host, BROKER_PORT)
            for group, machines in self._groups.items()
            for machine in machines.values()
            if not machine.retired
        ]
        hosts = () if self.registry is None else self.registry.hosts
        return nodes + [(f"the registry at {host}", host, NAMESRV_PORT) for host in hosts]

    async def _wrong_route(self, host: str, port: int) -> str | None:
        """Returns what is wrong with the route that this host and port answer; None if nothing is."""
        link = await dial(self._auditor, host, f"auditor at {host}", self._world.monitor.report, port=port)
        if link is None:
            return "it does not answer"
        answer = await ask(self._auditor, link, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        link.transport.abort()
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return "it has no route"
        route = route_of(answer.body)
        for group, machines in self._groups.items():
            living = {f"{machine.host}:{BROKER_PORT}" for machine in machines.values() if not machine.retired}
            leaders = [
                m.host for m in machines.values() if m.readable and m.node and m.node.serving.services.writes_open()
            ]
            addresses = route.get(name_of(group), {})
            if set(addresses.values()) != living:
                return f"group {group} is at {sorted(living)}, and it says {addresses}"
            if [addresses.get("0")] != [f"{host}:{BROKER_PORT}" for host in leaders]:
                return f"group {group} is led by {leaders}, and it says {addresses}"
            further = {name: each for name, each in route.items() if name.startswith(f"{name_of(group)}-")}
            own = {name: each for name, each in further.items() if name.removeprefix(name_of(group))[1:].isdigit()}
            for name, each in own.items():
                if not set(each.values()) <= living:
                    return f"group {group} is at {sorted(living)}, and {name} leads to {each}"
        return None

    def _judge_log(self, group: int, wait: Wait) -> bool:
        """Reads TOPIC from each replica of this group, and judges the history of the group's clients with the log
        checker. Returns False if the replicas cannot be read, or if the run has a violation."""
        recorder, machines = self.recorders[group], self._groups[group]
        living = [machine for machine in machines.values() if not machine.retired]
        done: list[bool] = []

        async def read() -> None:
            client = self._auditor.client()
            for machine in living:
                for queue in range(QUEUES):
                    value = {"node": machine.node_id, "topic": TOPIC, "queue_id": queue, "offset": 0}
                    op = recorder.invoke("read", value)
                    messages, _ = await read_queue(client, TOPIC, queue, f"{machine.host}:{BROKER_PORT}")
                    rows = [[message.queue_offset, id_of(message.body)] for message in messages]
                    recorder.end(op, "ok", {"messages": rows, "end": True})
            await client.close()
            done.append(True)

        self._auditor.spawn(read)
        if not wait(lambda: done, READ_S, f"the replicas of group {group} cannot be read"):
            return False
        ops = [op for op in recorder.ops if op.f in ("send", "repeat", "read")]
        verdict = check_log(above(ops, floors(living, [TOPIC])))
        report = self._world.monitor.report
        for anomaly in verdict.anomalies[:5]:
            report("log", f"group {group}: {anomaly.kind}: {anomaly.message_id}: {anomaly.what}")
        for queue in verdict.incomplete[:1]:
            report("log", f"group {group}: {queue} was not read to its end")
        return not self._world.monitor.violations

    def _judge_writes(self) -> bool:
        """Checks the rows of writes to both groups, on one node of each: all nodes of a group are equal. Returns False
        if the run has a violation."""
        if self.writer is not None:
            of_first, of_second = self._world.states.members()[0], self.states.members()[0]
            rows, trimmed = placed_writers.rows_of((of_first, of_second))
            for what in list(self.writer.judge.wrong(rows, trimmed=trimmed))[:5]:
                self._world.monitor.report(placed_writers.CHECKER, what)
        return not self._world.monitor.violations

    def _judge_insides(self) -> bool:
        """Checks the Raft state, digests and rows of the second group's nodes, when nothing changes any more. Returns
        False if the run has a violation."""
        try:
            self.monitor.check_all()
        except InvariantViolationError as error:
            self.monitor.report("invariant", str(error))
        for machine in self.machines.values():
            self.monitor.same_sums(machine)
            self.monitor.recount(machine)
        return not self._world.monitor.violations
