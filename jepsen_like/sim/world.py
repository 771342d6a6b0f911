"""One run of the simulator: machines, clients and a nemesis on one loop. First come the faults, then the heal, phases
with stalls alone and with hostile clients alone, and the judgement."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from zlib import crc32

from cluster.broker.groups.group_members import EXPIRY_MS, SCAN_MS
from cluster.remoting.connection import reply_path
from jepsen_like.sim.attack_phase import ANSWERS_S, Calm, Prober
from jepsen_like.sim.broker_groups import BrokerGroupsOperator
from jepsen_like.sim.checks.monitor import Monitor
from jepsen_like.sim.checks.quota_check import QuotaCheck
from jepsen_like.sim.checks.refused_sends import Refusals
from jepsen_like.sim.checks.tier_check import TierCheck
from jepsen_like.sim.checks.trimmed_offsets import Floors, floors
from jepsen_like.sim.clients.client_machines import (
    OWN_ID,
    TOPIC,
    Client,
    ClientHost,
    Foreign,
    ForeignProducer,
    OwnProducer,
    id_of,
)
from jepsen_like.sim.clients.delayed_messages import Delayed
from jepsen_like.sim.clients.deleted_topics import DeletedTopics
from jepsen_like.sim.clients.failing_consumers import Failures
from jepsen_like.sim.clients.history_recorder import Recorder
from jepsen_like.sim.clients.key_searchers import Seeker
from jepsen_like.sim.clients.members_apart import MembersApart
from jepsen_like.sim.clients.offset_commits import OffsetCommits
from jepsen_like.sim.clients.parked_pulls import SUSPEND_MS, Waits
from jepsen_like.sim.clients.readers import CatalogueClient, GroupReader, OffsetRegister
from jepsen_like.sim.clients.recreated_topics import RecreatedTopics
from jepsen_like.sim.clients.repeated_sends import Repeater
from jepsen_like.sim.clients.reset_clients import Resets
from jepsen_like.sim.clients.resized_topics import ResizedTopics
from jepsen_like.sim.clients.staged_writers import Writers
from jepsen_like.sim.clients.surges import TOPICS as SURGE_TOPICS
from jepsen_like.sim.clients.surges import Surges
from jepsen_like.sim.clients.transaction_producers import Transactors
from jepsen_like.sim.faults.fault_plan import Fault, plan
from jepsen_like.sim.faults.leader_faults import LEADER_FAULTS
from jepsen_like.sim.faults.link_faults import LINK_FAULTS
from jepsen_like.sim.faults.nemesis import FaultInjector
from jepsen_like.sim.faults.stall_faults import STALL_FAULTS, Stalls
from jepsen_like.sim.group_states import GroupReach, GroupStates
from jepsen_like.sim.groups.group_faults import group_faults
from jepsen_like.sim.groups.second_group import SecondGroup
from jepsen_like.sim.hostile.garbage_client import GarbageClient
from jepsen_like.sim.hostile.hostile_clients import Hostile
from jepsen_like.sim.judge import Judge, levels
from jepsen_like.sim.locks.ordered_consumers import Ordered
from jepsen_like.sim.machines.end_of_run import end_run
from jepsen_like.sim.machines.loop import EventBudgetError, SimLoop, StuckError
from jepsen_like.sim.machines.machine import LISTENERS, Machine
from jepsen_like.sim.machines.network import Address, EdgeConditions, Network
from jepsen_like.sim.machines.tier_store import CALM, QUICK, STORMY, SimStore
from jepsen_like.sim.machines.turn_bounds import TURN_BOUND
from jepsen_like.sim.operator import Operator, Task, tasks
from jepsen_like.sim.options import Options, draw, stream
from jepsen_like.sim.quotas import QuotaOperator
from jepsen_like.sim.result import SimResult
from jepsen_like.sim.upgrades import Upgrades
from jepsen_like.sim.users.access_check import AccessCheck
from jepsen_like.sim.users.attackers import OWN, Attackers
from jepsen_like.sim.users.audit_check import small_audit
from jepsen_like.sim.users.first_users import attempt, reveal, steps
from jepsen_like.sim.users.guessers import Guessers
from jepsen_like.sim.users.leaks import Leaks
from jepsen_like.sim.users.mark_check import MarkCheck
from jepsen_like.sim.users.registrations import Registrations
from jepsen_like.sim.users.requesters import Requesters
from jepsen_like.sim.users.revocation import Revocation
from jepsen_like.sim.users.shared_check import LOOK_S, SharedCheck
from jepsen_like.sim.users.token_owners import TokenOwners
from jepsen_like.sim.users.user_clients import UserStories
from raftlog.types import NodeId
from statemachine.levels import OWNERS_LEVEL

CLOSE_MS = 1_000
"""Largest error of log time, in milliseconds, at which log time still counts as right. It covers the error of clocks
that no fault has changed, and what a vote in flight may add.
"""
FIRST_LEADER_S = 30.0
MALFORMED_S = 5.0
"""Time in seconds within which a node closes connections with malformed bytes: at once if they are no frame, after
`limits.stalled_ms` if a frame stays unfinished."""
PROGRESS_S = 30.0
"""Virtual time in seconds after the heal within which every node must lead or follow, and writes must be accepted."""
LEVELS_S = 2 * PROGRESS_S
"""Virtual time in seconds within which an upgrade must be finished. A leader counts what a node announced on a
connection that lost its other end in a power failure, until that was silent for `ha.client_heartbeat_timeout_ms`."""
MEMBERS_S = 60.0
"""Virtual time in seconds after the heal within which the operator's changes of members must be done: new members have
joined, and removed ones are gone."""
REMOVED_S = 60.0
"""Virtual time in seconds after the heal within which all rows of deleted topics and groups must be removed."""
TIER_S = 480.0
"""Virtual time in seconds after the heal within which every sealed segment must be verified in the tier. A pause after
a failure lasts up to 30 s. If the tier keeps few bytes, it removes what it gives up in slices of a few rows, and their
entries are sealed in turn: after a heavy load that took more than 130 s (seed 5100187, with users)."""
FINISH_S = 150.0
"""Virtual time in seconds after the heal within which every client must have what it waits for. The auditor reads every
replica: with one message per batch and slow disks that took 95 s (seed 5100215, with users)."""
READER_S = FINISH_S + (EXPIRY_MS + SCAN_MS) / 1000
"""Virtual time in seconds within which the consumer group must have every message. The group may wait longer than other
clients (FINISH_S): if a middlebox forgot the connection over which a former member unregistered, the node learns that
only from the member's silence, and keeps the member's queues for it until then."""
EXTRA_PHASES = 3
"""Number of further fault phases, without new planned faults, for which the load may go on until enough is acknowledged
and a node has crashed between an append and its acknowledgement."""
STALLS = 8
"""Number of stalls after the heal, in seeds that have stalls."""


class World:
    """One run with all its machines, clients, checks and the nemesis. `run` returns the result."""

    def __init__(
        self,
        options: Options,
        faults: Sequence[Fault],
        trace: Callable[[str], None] | None = None,
        *,
        black_box: bool = False,
    ) -> None:
        """`black_box`: the run is judged only by what clients see (`monitor.SEEN_BY_CLIENTS`)."""
        reply_path._opaque = 0  # the one counter that lives as long as the interpreter
        self.options = options
        self.faults = tuple(faults)
        self.loop = SimLoop(options.event_budget)
        self.network = Network(
            self.loop, EdgeConditions(stream(options.seed, "network"), options.latency_s, options.split)
        )
        ids = [NodeId(i) for i in range(1, options.nodes + 1)]
        self.network.socket_buffer = options.socket_bytes
        self.monitor = Monitor(self.loop, ids, black_box=black_box)
        self.monitor.refusals = self._refusals = Refusals(OWN_ID)
        self._removed: Floors = {}
        self.monitor.on_ending = self._note_floors
        if trace is not None:
            self.monitor.log = lambda line: trace(f"{self.loop.now:10.4f} s {self.loop.events:7} {line}")
        self.loop.after_event = self.monitor.after_event
        self.loop.turn_bound, self.loop.on_long_turn = TURN_BOUND, self.monitor.long_turn
        self.store: SimStore | None = None
        if options.tier:
            self.store = SimStore(self.loop, stream(options.seed, "store"), STORMY)
            self.monitor.tier = TierCheck(
                self.store, self.monitor.report, copies=not options.tier_bytes, seal_ms=options.tier_seal_ms
            )
        self.machines: dict[NodeId, Machine] = {}
        self.states = GroupStates(self.machines)
        self.reach = GroupReach(self.network, self.states)
        for node_id in ids:
            self._add_machine(node_id)
        self.recorder = Recorder(self.loop)
        self.hosts: list[ClientHost] = []
        self._add_clients()
        silent = [one.host for one in (self.vandal, self.hostile) if one is not None]  # no link fault is aimed at them
        hosts = [host.process.host for host in self.hosts if host not in silent]
        further = {**LINK_FAULTS, **LEADER_FAULTS, **STALL_FAULTS}
        if self.second is not None:
            further |= group_faults([machine.host for machine in self.second.machines.values()])
        self.nemesis = FaultInjector(self.loop, self.network, self.machines, self.monitor, self.faults, hosts, further)
        self.operator = Operator(
            options, self.machines, self.monitor, self.nemesis.leader, self._add_machine, self._tasks()
        )

    def _tasks(self) -> Sequence[Task]:
        return tasks(self.options)

    def _add_machine(self, node_id: NodeId) -> Machine:
        machine = Machine(node_id, self.options, self.loop, self.network, self.monitor)
        machine.open_store = lambda _: self.store
        self.monitor.add(machine)
        self.machines[node_id] = machine
        return machine

    def _add_host(self) -> ClientHost:
        """Adds a machine for one more client and returns it."""
        self.hosts.append(ClientHost(len(self.hosts) + 1, self.options, self.loop, self.network))
        return self.hosts[-1]

    def _add_clients(self) -> None:
        options, report, recorder = self.options, self.monitor.report, self.recorder
        by_host = {machine.host: machine for machine in self.machines.values()}
        host = self._add_host
        self.producers = [OwnProducer(n, host(), recorder) for n in range(options.producers)]
        self.foreign = [ForeignProducer(n, host(), recorder, by_host) for n in range(options.foreign)]
        self.reader = GroupReader(host(), recorder, report, self._floor)
        self.register = OffsetRegister(host(), recorder, report)
        self.catalogue = CatalogueClient(host(), recorder)
        self.auditor = host()
        self.vandal = GarbageClient(host())
        self.judge = Judge(self)
        self.hostile: Hostile | None = Hostile(host(), report) if options.hostile else None
        self.prober: Prober | None = Prober(host(), recorder, report, self.states.taken) if options.hostile else None
        self.tides = [
            OffsetCommits(f"tide-{n}", host(), recorder, report, self.states.reign_of) for n in range(options.tides)
        ]
        self.remakes = RecreatedTopics(host(), recorder, report) if options.remakes else None
        self.waits = Waits(host(), report) if options.waits else None
        self.seeker = Seeker(host(), recorder, report, self._floor) if options.seekers else None
        self.repeater = Repeater(host(), recorder, report) if options.repeats else None
        ordered = Ordered(host(), report, self._floor, self.clocks_are_close, self._ends) if options.ordered else None
        self.ordered: Ordered | None = ordered
        self.transactors = Transactors(host(), report, self.states.open_transactions) if options.transactions else None
        self.delayed = Delayed(host(), report) if options.delayed else None
        self.failures = Failures(host(), report, self.states.end_of, self.states.timers) if options.failures else None
        self.resets = Resets(host(), report, self.states.end_of, self.states.resets_of) if options.resets else None
        self.legacies = DeletedTopics(host(), report, self.states.open_transactions) if options.legacies else None
        self.writers = Writers(host(), report, self.states.draining) if options.writes else None
        self.resized = ResizedTopics(host(), report, self.states.end_of, self._floor_of) if options.resized else None
        self.users: UserStories | None = None
        self.requesters: Requesters | None = None
        self.attackers: Attackers | None = None
        self.marks: MarkCheck | None = None
        self.revocation: Revocation | None = None
        self.registrations: Registrations | None = None
        self.guessers: Guessers | None = None
        self.token_owners: TokenOwners | None = None
        self.shared: SharedCheck | None = None
        self.upgrades: Upgrades | None = None
        if options.levels:
            now = lambda: self.loop.now  # noqa: E731
            soon = self.loop.call_outside
            self.upgrades = Upgrades(options, self.machines, self.nemesis_leader, soon, now, report)
            self.monitor.levels = self.upgrades.check
        if options.users:
            check = AccessCheck(report, lambda: self.loop.now, self.monitor.leaders.get, reveal)
            self.monitor.users = check
            self._watch_marks(check)
            self.users = UserStories(host(), report, check)
            self.revocation = Revocation(host(), report, check, lambda: [machine.host for machine in self.members()])
            self.requesters = requesters = Requesters(host(), report, self.reach.is_linked, self._is_shared)
            leaks = Leaks(self.members, self._brought, OWN)
            self.attackers = Attackers(host(), report, leaks, requesters.client_ids, self._has_owners)
            self.registrations = Registrations(host(), report, self.users.users.signer)
            self.guessers = Guessers(host(), report, self.reach.is_calm)
            self.token_owners = TokenOwners(host(), self.nemesis_leader, self.users.users.new_secret)
            self._watch_shared(check)
        self.apart = MembersApart(host(), report, self.states.first_of) if options.apart else None
        self.broker_groups: BrokerGroupsOperator | None = None
        if options.groups:
            later = self.loop.call_outside
            self.broker_groups = BrokerGroupsOperator(options, self.nemesis_leader, later, report)
            self.monitor.truth = self.broker_groups.check
        self.quotas: QuotaOperator | None = None
        if options.quotas:
            rate = QuotaCheck(TOPIC, recorder.ops, self.monitor.leaders, lambda: self.loop.now, report)
            self.quotas = QuotaOperator(options, self.nemesis_leader, self.loop.call_outside, rate)
        self.surges: Surges | None = None
        if options.surges:
            self.surges = Surges(
                host(), host(), report, self.members, self.states.reign, self._queued, self.states.crowded, self._others
            )

        self.second: SecondGroup | None = None
        if options.second:
            self.second = SecondGroup(self, self._add_host, planned=bool(self.faults))

    def _watch_shared(self, check: AccessCheck) -> None:
        """Checks what users share, and notes whether the nodes reach each other, every LOOK_S seconds from now until
        the end.
        """
        ports = set(LISTENERS.values())

        def clients() -> set[Address]:
            """Returns the addresses of clients to which some node still has a connection. A node that has stopped
            reading a connection does not see that the client closed it.
            """
            return {end.other for end in self.network.endpoints if end.own[1] in ports}

        shared = self.shared = SharedCheck(
            self.monitor.report, lambda: self.loop.now, self.members, check.model, clients, self.reach.is_calm
        )

        def look() -> None:
            shared.look()
            if self.marks is not None:
                self.marks.look()
                self.marks.judge_doubts()
            self.loop.call_outside(LOOK_S, look)

        self.loop.call_outside(LOOK_S, look)

    def _is_shared(self, client_id: str) -> bool:
        """Returns True if producers of several users have this client id, and a node was lost or restarted. Then none
        of these producers may get the reply within its time to live, which is longer than a run (seed 780000116).
        """
        found = [node.serving.broker.members.producer_users(client_id).keys() for node in self.states.running()]
        return len(set().union(*found)) > 1 and any(len(each.nodes) != 1 for each in self.machines.values())

    def _has_owners(self) -> bool:
        """Returns True if every node has applied OWNERS_LEVEL, the feature level from which on stored things have an
        owner.
        """
        nodes = self.states.running()
        return len(nodes) == len(self.members()) and all(node.state.level >= OWNERS_LEVEL for node in nodes)

    def _brought(self) -> list[tuple[bytes, int]]:
        """Returns the producer ids that clients of the load bring with their sends, each with its next sequence."""
        clients = (*self.producers, *(() if self.repeater is None else (self.repeater,)))
        return [session for session in (client.session for client in clients) if session is not None]

    def _watch_marks(self, check: AccessCheck) -> None:
        """Searches every byte that nodes send to clients for marks that the client's user may not read."""
        self.marks = marks = MarkCheck(self.monitor.report, lambda: self.loop.now, check, self.reach.is_linked)
        clients = set(LISTENERS.values())
        self.network.watch = lambda client, node: marks.watch(client, node) if node[1] in clients else None

    def nemesis_leader(self) -> Machine | None:
        return self.nemesis.leader()

    def clocks_are_close(self) -> bool:
        """Returns True if log time was about right whenever a leader's term began."""
        return self.monitor.log_time_off_ms <= CLOSE_MS

    def _ends(self) -> dict[int, int]:
        """Returns queue -> offset after its last message that any node has applied, for the main topic."""
        return {queue: self.states.end_of(TOPIC, queue) for queue in range(self.options.queues)}

    def _floor(self, queue: int) -> int:
        return self._floor_of(TOPIC, queue)

    def _floor_of(self, topic: str, queue: int) -> int:
        """Returns the highest first offset that the queue has had on any node so far. A node that removed messages and
        told a client so may be gone by now, so earlier values count, too (seed 790000218).
        """
        self._note_floors()
        return self._removed.get((topic, queue), 0)

    def _note_floors(self) -> None:
        for place, first in self.floors().items():
            self._removed[place] = max(first, self._removed.get(place, 0))

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> SimResult:
        """Runs to the end, or to the first violation, and returns the result."""
        began = time.process_time()
        logging.disable(logging.CRITICAL)
        collects = gc.isenabled()
        gc.disable()
        try:
            with ExitStack() as while_it_runs:
                if self.shared is not None:
                    while_it_runs.enter_context(self.shared.hears_lines())
                    while_it_runs.enter_context(small_audit())
                self.phases()
        except EventBudgetError as error:
            self.monitor.report("event-budget", str(error))
        except StuckError as error:
            self.monitor.report("stuck", str(error))
        finally:
            verdict_events, verdict_now, digest = self.loop.events, self.loop.now, self._hash()
            for client in self._clients():
                client.stopped = True
            second = () if self.second is None else self.second.machines.values()
            machines = [*self.machines.values(), *second]
            registry = () if self.second is None or self.second.registry is None else self.second.registry.processes()
            end_run(self.loop, self.network, machines, [*(host.process for host in self.hosts), *registry])
            logging.disable(logging.NOTSET)
            if collects:
                gc.enable()
        return self._verdict(verdict_events, verdict_now, digest, time.process_time() - began)

    def phases(self) -> None:
        for machine in self.machines.values():
            machine.start()
        for phase in (self._begin, self._faults, self._heal, self._stall, self._attack, self._finish):
            phase()
            if self.monitor.violations:
                return

    def _begin(self) -> None:
        if self._wait(self.states.writable, FIRST_LEADER_S, "nobody leads a fresh group"):
            if self.users is not None:
                self._make_users()
            self.judge.create_topics()
        if self.second is not None and not self.monitor.violations:
            self.second.begin(self._wait)

    def _make_users(self) -> None:
        """Creates the first users. Each change is asked for again until the log has it."""
        if self.registrations is not None:
            self.registrations.come_early()
        for step in steps():
            done: list[bool] = []
            while not done and not self.monitor.violations:
                for machine in self.members():
                    if machine.node is not None and hasattr(machine.node, "serving"):
                        attempt(machine, step, done)
                self._pass_time(0.2)

    def _faults(self) -> None:
        for client in self._clients():
            client.start()
        self.nemesis.start()
        self.operator.start()
        if self.upgrades is not None:
            self.upgrades.start()
        if self.broker_groups is not None:
            self.broker_groups.start()
        if self.quotas is not None:
            self.quotas.start()
        if self.second is not None:
            self.second.nemesis.start()
            if self.second.registry is not None:
                self.second.registry.faults.start()
        self._pass_time(self.options.fault_phase_s)
        end = self.loop.now + EXTRA_PHASES * self.options.fault_phase_s
        while not self._enough() and self.loop.now < end and not self.monitor.violations:
            self._pass_time(0.25)

    def _enough(self) -> bool:
        return self.recorder.acked >= self.options.acked_min and self.nemesis.between_append_and_ack > 0

    def _heal(self) -> None:
        self.monitor.log("heal")
        self.nemesis.heal()
        if self.second is not None:
            self.second.nemesis.heal()
            if self.second.registry is not None:
                self.second.registry.faults.end()
        if self.store is not None:
            self.store.weather = CALM
        if self.upgrades is not None:
            self.upgrades.healed = True
        if self.quotas is not None:
            self._wait(self.quotas.finish, PROGRESS_S, "the quotas cannot be taken away")
        if self._wait(lambda: self.operator.done, MEMBERS_S, "the members are not those that the operator wants"):
            self.nemesis.forget_retired()
            self._wait(self.states.healthy, PROGRESS_S, "no progress after everything was healed")
        if self.upgrades is not None:
            self._wait(self.upgrades.finish, LEVELS_S, "the upgrade cannot be finished", "levels")
            self._wait(self.states.healthy, PROGRESS_S, "no progress after the upgrade")
        if self.broker_groups is not None:
            self._wait(self.broker_groups.finish, PROGRESS_S, "a second group cannot be added", "truth")
        if self.second is not None:
            self._wait(self.second.states.healthy, PROGRESS_S, "group 2: no progress after everything was healed")

    def _stall(self) -> None:
        """Runs the stall phase, in which stalls are the only faults."""
        if any(self.options.stalls):
            self._pass_time(2 * self.options.election_ticks * self.options.tick_ms / 1000)
            if self._wait(self.states.healthy, PROGRESS_S, "no progress after everything was healed"):
                Stalls(self).run(STALLS)
                self._wait(self.states.healthy, PROGRESS_S, "no progress after the last stall")

    def _attack(self) -> None:
        """Runs the phase after the heal in which only hostile clients disturb the cluster."""
        if self.requesters is not None and self._wait(self.states.healthy, PROGRESS_S, "no progress after the heal"):
            self.requesters.calm = True
            assert self.guessers is not None
            self.guessers.calm = True
        if self.hostile is not None:
            # The last fault may have begun an election that is not over yet.
            self._pass_time(2 * self.options.election_ticks * self.options.tick_ms / 1000)
            self._wait(self.states.healthy, PROGRESS_S, "no progress after everything was healed")
            calm = Calm(self)
            calm.attack()
            calm.settle()
        if self.waits is not None:
            self._pulls_answered(self.waits)
        self._revoked()
        self._surged()

    def _surged(self) -> None:
        """Runs the surges after the heal, in which clients send more than the log takes, in seeds that have them."""
        surges = self.surges
        if surges is None:
            return
        surges.stopped = True
        self._wait(lambda: surges.done, FINISH_S, "clients wait for ever")
        if self._wait(self._heard, PROGRESS_S, "no progress after everything was healed"):
            surges.play()
            self._wait(lambda: surges.done, FINISH_S, "clients wait for ever")

    def _revoked(self) -> None:
        """Takes a right away from a user whose pulls are parked, if there are users."""
        revocation = self.revocation
        if revocation is not None and self._wait(self._heard, PROGRESS_S, "no progress after everything was healed"):
            revocation.start()
            self._wait(lambda: revocation.done, FINISH_S, "clients wait for ever")

    def _pulls_answered(self, waits: Waits) -> None:
        waits.stopped = True
        self._wait(lambda: waits.done, FINISH_S, "clients wait for ever")
        what, limit_s = "a pull that may wait no longer has no answer", ANSWERS_S + max(SUSPEND_MS) / 1000
        self._wait(lambda: not waits.unanswered(), limit_s, what, "answers")

    def _finish(self) -> None:
        """Waits until all clients are done, and judges the replicas. It judges what is stored before it waits for the
        consumer groups, because a group would wait forever for a lost message.
        """
        clients = self._clients()
        others = [client for client in clients if client not in (self.reader, self.apart)]
        for client in clients:
            client.stopped = client is not self.reader
        if not self._wait(lambda: all(c.done for c in others), FINISH_S, "clients wait for ever"):
            return
        if not self._wait(self.vandal.is_out, MALFORMED_S, "malformed bytes do not close their connection", "protocol"):
            return
        if not self._wait(self._nothing_waits, PROGRESS_S, "messages that are due are not delivered"):
            return
        if not self._wait(self._nothing_goes, REMOVED_S, "rows of what was deleted are not removed", "removals"):
            return
        if not self._wait(self._tiered, TIER_S, "sealed segments do not reach the tier", "tier"):
            return
        if self.store is not None:
            self.store.weather = QUICK  # evicted messages are read back one by one
        if not self._wait(self.states.equal, PROGRESS_S, "replicas do not become equal") or not self.judge.stored():
            return
        if self.second is not None and not self.second.finish(self._wait):
            return
        if self.surges is not None:
            self.surges.judge()
        if self.monitor.tier is not None:
            self.monitor.tier.judge_end(self.states.running())
        apart = self.apart
        if apart is not None and not self._wait(
            lambda: apart.done, READER_S, "a queue of a wanted topic is read by nobody", "apart"
        ):
            return
        if not self._wait(self.judge.reader_has_all, READER_S, "a consumer does not get what was acknowledged"):
            return
        self.reader.stopped = True
        self._wait(lambda: self.reader.done, FINISH_S, "the consumer does not end")
        if self._wait(self.states.equal, PROGRESS_S, "replicas do not become equal"):
            self.judge.replicas()
        if self.users is not None:
            self.users.check.judge_all()
        if self.marks is not None:
            self.marks.judge_doubts()
        if not self.monitor.violations:
            Calm(self).given_back()

    def refused(self) -> set[str]:
        """Returns the ids of messages of RaftMQ's own producers that a node refused for now, or gave up."""
        heard = {message_id for producer in self.producers for message_id in producer.refused}
        return heard | self._refusals.ids

    def retried(self) -> list[Foreign]:
        """Returns the messages that foreign clients sent again until they were answered."""
        return [foreign for producer in self.foreign for foreign in producer.retried]

    def _clients(self) -> list[Client]:
        some = (self.hostile, self.remakes, self.waits, self.seeker, self.repeater, self.ordered, self.transactors)
        later = self.delayed, self.failures, self.resets, self.legacies, self.writers, self.users, self.requesters
        of_users = self.attackers, self.registrations, self.guessers, self.token_owners
        more: list[Client] = [
            one for one in (*some, *later, *of_users, self.resized, self.apart, self.surges) if one is not None
        ]
        others: list[Client] = [self.reader, self.register, self.catalogue, self.vandal]
        second = [] if self.second is None else self.second.clients
        return [*self.producers, *self.foreign, *others, *more, *self.tides, *second]

    def pass_time(self, seconds: float) -> None:
        """Lets this many seconds of virtual time pass; for the phases that other modules run."""
        self._pass_time(seconds)

    # --- time --------------------------------------------------------------------------------------------------------

    def _pass_time(self, seconds: float) -> None:
        if seconds > 0 and not self.monitor.violations:
            self.loop.call_outside(seconds, self.loop.stop)
            self.loop.run_forever()
            for what, error in self.loop.errors[:3]:
                self.monitor.report("callback", f"{what}: {type(error).__name__}: {error}")

    def _wait(self, reached: Callable[[], object], limit_s: float, otherwise: str, checker: str = "liveness") -> bool:
        """Lets time pass until `reached` returns something true, and returns True. After `limit_s` seconds reports the
        violation `otherwise` and returns False. Returns False at once if the run has a violation."""
        end = self.loop.now + limit_s
        while not self.monitor.violations:
            if reached():
                return True
            if self.loop.now >= end:
                self.monitor.report(checker, f"{otherwise} ({limit_s:.0f} s)")
                break
            self._pass_time(0.05)
        return False

    def wait_for(self, reached: Callable[[], object], what: str) -> bool:
        """Lets virtual time pass until `reached` returns something true. After FINISH_S seconds reports the violation
        `what` and returns False. For the judge and for phases that other modules run.
        """
        return self._wait(reached, FINISH_S, what)

    # --- states ------------------------------------------------------------------------------------------------------

    def floors(self) -> Floors:
        """Returns the offsets below which retention may have removed messages from the topics of the load."""
        resized = [] if self.resized is None else [self.resized.topic]
        return floors(self.machines.values(), [*levels(self.options), *resized])

    def members(self) -> list[Machine]:
        """Returns the machines whose nodes are members of the Raft group, or will be once all changes are done."""
        return self.states.members()

    def _queued(self) -> set[str]:
        """Returns the ids of the surges' messages that wait in the leader's queue. Messages of other clients are left
        out, because they may have no id.
        """
        return {id_of(send.body) for send in self.states.waiting_sends() if send.slot.name in SURGE_TOPICS}

    def _others(self) -> int:
        """Returns the number of sends in the leader's queue that are not of surges."""
        return sum(send.slot.name not in SURGE_TOPICS for send in self.states.waiting_sends())

    def _nothing_waits(self) -> bool:
        return not self.states.timers()

    def _nothing_goes(self) -> bool:
        return not any(node.state.removing for node in self.states.running())

    def _tiered(self) -> bool:
        return self.monitor.tier is None or self.monitor.tier.is_complete(self.states.running())

    def _heard(self) -> bool:
        """Returns True if all nodes are healthy and hear each other. A follower whose answers go into a dead connection
        gets no entries until it notices that (ha.housekeeping_interval_ms), so it learns of no change until then (seed
        850000063).
        """
        return self.states.healthy() and not self.reach.is_deaf()

    def _hash(self) -> str:
        parts = (self.network.hash, self.monitor.hash, self.recorder.hash, self.loop.events, f"{self.loop.now:.9f}")
        more = () if self.second is None else self.second.hashes()
        return f"{crc32(repr((*parts, *more)).encode()):08x}{self.network.hash:08x}"

    def _verdict(self, events: int, now: float, digest: str, cpu_s: float) -> SimResult:
        monitor, recorder = self.monitor, self.recorder
        return SimResult(
            seed=self.options.seed,
            violations=tuple(monitor.violations),
            acked=recorder.acked,
            unknown=sum(count for name, count in recorder.counts.items() if name.endswith(" info")),
            faults=dict(sorted((self.nemesis.applied + Counter(self.operator.applied)).items())),
            between_append_and_ack=self.nemesis.between_append_and_ack,
            leader_changes=max(0, len(monitor.leaders) - 1),
            events=events,
            virtual_s=round(now, 3),
            cpu_s=round(cpu_s, 3),
            hash=digest,
            sometimes=dict(monitor.sometimes),
        )


def run_seed(
    seed: int,
    *,
    faults: Sequence[Fault] | None = None,
    trace: Callable[[str], None] | None = None,
    black_box: bool = False,
) -> SimResult:
    """Runs one seed and returns its result. `faults` replaces the seed's plan (for shrinking); `trace` is called with
    each line of the run's log."""
    options = draw(seed)
    verdict = World(options, plan(options) if faults is None else faults, trace, black_box=black_box).run()
    gc.collect()  # a world is one large cycle
    return verdict
