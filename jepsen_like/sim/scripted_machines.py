"""A simulated world whose machines, disks and network do what the lines of a script say: `jepsen_like.sim.scripted`
adds the clients."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cluster.node.node import Node
from cluster.tier.scrub.scrubber import ScrubOptions
from jepsen_like.script import Interpreter, ScriptError, node_of
from jepsen_like.sim.checks.tier_check import FOLDER
from jepsen_like.sim.clients.client_machines import TOPIC
from jepsen_like.sim.groups.second_group import NUMBER
from jepsen_like.sim.machines.disk import PowerLoss, loss_of
from jepsen_like.sim.machines.machine import BROKER_PORT, Machine
from jepsen_like.sim.machines.network import Endpoint, HostPair
from jepsen_like.sim.machines.tier_store import AWAY, STORMY
from jepsen_like.sim.operator import Task
from jepsen_like.sim.options import Options
from jepsen_like.sim.world import MEMBERS_S, World
from raftlog.core.election import has_quorum_contact
from raftlog.types import FLAG_ROLL, NodeId, Role
from raftmq.client.consuming.pull import PullResult
from raftmq.client.errors import Failed, RaftMQError

OPERATION_S = 6.0
SCRUB_S, SCRUBS_MAX = 60.0, 10
"""Longest time of a scrub in seconds, and most attempts at one: a store with faults may end a scrub early."""
LEAD_S = 10.0


class MachineStage(World, Interpreter):
    """A simulated world in which machines, disks and network fail only by command."""

    flags = frozenset(("later", "anew"))
    misread = (TypeError, KeyError, ValueError)

    def __init__(
        self, options: Options, *, black_box: bool = False, trace: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(options, (), trace, black_box=black_box)
        self._crashes: dict[tuple[NodeId, str], None] = {}
        self.monitor.on_drained = self._drained
        self.monitor.on_reported = self._reported

    def _machine(self, name: str) -> Machine:
        node, _, group = name.partition("@")
        if not group:
            return self.machines[node_of(node)]
        if self.second is None or int(group) != NUMBER:
            raise ValueError("`nodes` says second=1 groups=1, and nodes of the second group are N@2")
        return self.second.machines[node_of(node)]

    def _until(self, reached: Callable[[], object], limit_s: float) -> bool:
        end = self.loop.now + limit_s
        while not reached() and self.loop.now < end and not self.monitor.violations:
            self._pass_time(0.005)
        return bool(reached())

    # --- nodes -------------------------------------------------------------------------------------------------------

    def do_lead(self, name: str) -> None:
        machine = self._machine(name)
        nemesis = self.nemesis if self.second is None or machine.group != NUMBER else self.second.nemesis
        end = self.loop.now + LEAD_S
        while not self._leads(machine) and self.loop.now < end and not self.monitor.violations:
            leader = nemesis.leader()
            if leader is not None and leader is not machine:
                leader.hand_over(machine.node_id)  # the successor may not be ready to lead yet
            self._until(lambda: self._leads(machine), 0.5)
        if not self._leads(machine):
            self.monitor.report("liveness", f"node {name} does not lead {LEAD_S:.0f} s after it was told to")

    @staticmethod
    def _leads(machine: Machine) -> bool:
        node = machine.node
        return node is not None and node.raw.role is Role.LEADER and node.serving.proposals.open

    def do_clock(self, name: str, off_ms: str) -> None:
        self._machine(name).clock.offset_ms = int(off_ms)

    def do_join(self, name: str, *, later: str = "") -> None:
        self._change("join", name, later)

    def do_leave(self, name: str, *, later: str = "") -> None:
        self._change("leave", name, later)

    def do_lose(self, name: str, *, later: str = "") -> None:
        self._change("lose", name, later)

    def _change(self, kind: str, name: str, later: str) -> None:
        self.operator.add(Task(kind, node_of(name)))
        if not later and not self._until(lambda: self.operator.done, MEMBERS_S):
            self.monitor.report("liveness", f"{kind} {name} is not done after {MEMBERS_S:.0f} s")

    def do_copying(self, name: str, stage: str) -> None:
        machine = self._machine(name)

        def reached() -> bool:
            node = machine.node
            return node is not None and hasattr(node, "integrity") and node.integrity.installs.view().stage == stage

        if not self._until(reached, MEMBERS_S):
            self.monitor.report("liveness", f"node {name} does not copy its {stage} within {MEMBERS_S:.0f} s")

    def do_oldest(self, name: str) -> None:
        machine, lowest = self._machine(name), self.floors().get((TOPIC, 0), 0)
        found: list[PullResult] = []

        async def pull() -> None:
            client = self.auditor.client()
            found.append(await client.pull(TOPIC, 0, lowest, 4, node=f"{machine.host}:{BROKER_PORT}"))
            await client.close()

        self.auditor.spawn(pull)
        if self.wait_for(lambda: found, "a pull is not answered"):
            offsets = [message.queue_offset for message in found[0].messages]
            if offsets[:1] != [lowest]:
                self.monitor.report(
                    "consumer", f"offset {lowest} is there, node {name} gave {offsets or found[0].status}"
                )

    def do_pull(self, name: str) -> None:
        address = f"{self._machine(name).host}:{BROKER_PORT}"
        ended: list[RaftMQError | None] = []

        async def pull(at: int) -> None:
            client = self.auditor.client()
            try:
                while (found := await client.pull(TOPIC, 0, at, node=address)).messages:
                    at = found.next_offset
            except RaftMQError as error:
                ended.append(error)
            else:
                ended.append(None)
            await client.close()

        self.auditor.spawn(partial(pull, self.floors().get((TOPIC, 0), 0)))
        if self.wait_for(lambda: ended, "a pull is not answered"):
            (error,) = ended
            if type(error) is Failed and not error.code:  # the node answered SUCCESS, and the client cannot use it
                self.monitor.report("consumer", str(error))

    def do_wait(self, seconds: str) -> None:
        self._pass_time(float(seconds))

    def do_kill(self, *names: str) -> None:
        for name in names:
            self._down(self._machine(name), None, power=False)

    def do_stop(self, *names: str) -> None:
        for name in names:
            self._machine(name).stop()

    def do_power(self, *names: str, left: str = "nothing", rows: str = "1000000") -> None:
        for name in names:
            self._down(self._machine(name), loss_of(left, rows), power=True)

    def _down(self, machine: Machine, loss: PowerLoss | None, *, power: bool) -> None:
        machine.held = 1
        machine.kill(power=power, loss=loss)

    def do_power_in(self, name: str, call: str, *, left: str = "nothing", rows: str = "1000000") -> None:
        machine = self._machine(name)
        machine.loss = loss_of(left, rows)
        machine.held = 1
        machine.fs.cut_power_in = call

    def do_lying(self, *names: str) -> None:
        for name in names:
            self._machine(name).fs.syncs_lie = True

    def do_crash(self, name: str, moment: str) -> None:
        if moment not in ("before-ack", "after-ack", "after-roll"):
            raise ValueError(moment)
        self._crashes[node_of(name), moment] = None

    def _drained(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        if lane == "append" and done.last is not None and self._due(machine, "before-ack"):
            self._down(machine, loss_of("nothing", "1000000"), power=True)

    def _reported(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        if lane != "append" or done.last is None:
            return
        rolls = any(entry.flags & FLAG_ROLL for job in batch for entry in job.entries)
        if self._due(machine, "after-ack") or (rolls and self._due(machine, "after-roll")):
            # the node sends the answer in the turn that this report has woken
            self._soon(partial(self._soon, partial(self._down, machine, loss_of("nothing", "1000000"), power=True)))

    def _due(self, machine: Machine, moment: str) -> bool:
        key = (machine.node_id, moment)
        due = key in self._crashes
        self._crashes.pop(key, None)
        return due

    def _soon(self, act: Callable[[], None]) -> None:
        self.loop.call_outside(0.0, act)

    def do_start(self, *names: str) -> None:
        for name in names:
            machine = self._machine(name)
            machine.held = 0
            machine.start()

    def do_pause(self, name: str) -> None:
        self._machine(name).pause()

    def do_resume(self, name: str) -> None:
        self._machine(name).resume()

    def do_stall(self, name: str, before: str = "", *, seconds: str = "0") -> None:
        machine = self._machine(name)
        if before and not self._until(lambda: _is_about_to(before, machine), OPERATION_S):
            raise ScriptError(f"node {name} is not about to {before}")
        if float(seconds):
            machine.stall(float(seconds))
        else:
            assert machine.process is not None
            self.loop.stall(machine.process)

    def do_go_on(self, name: str) -> None:
        process = self._machine(name).process
        assert process is not None
        self.loop.end_stall(process)
        self._pass_time(0.001)

    # --- disks and network -------------------------------------------------------------------------------------------

    def do_fail(self, name: str, call: str, code: str) -> None:
        self._machine(name).fs.fail_next[call] = getattr(errno, code)

    def do_fill(self, name: str, size: str) -> None:
        self._machine(name).fs.fill(int(size))

    def do_rot(self, name: str, index: str) -> None:
        machine = self._machine(name)
        log = machine.nodes[-1].storage.directory.log
        machine.rot(log.read_entries(int(index), int(index) + 1, 1)[0], log)

    def do_spoil(self, name: str) -> None:
        self._machine(name).spoil()

    def do_slow(self, name: str, factor: str) -> None:
        self._machine(name).disk_factor = float(factor)

    def do_slow_apply(self, name: str, factor: str) -> None:
        self._machine(name).apply_factor = float(factor)

    def do_store(self, what: str, folder: str = "", number: str = "0") -> None:
        assert self.store is not None, "tier=1"
        if what == "flip":
            row = self._leading().state.tier.rows[int(number)]
            (name, *_) = [part.name for part in row.parts if part.name.startswith(f"{folder}/")]
            self.store.flip(f"{FOLDER}/{name}")
        elif what == "repair":
            self._repair()
        else:
            self.store.weather = {"away": AWAY, "back": STORMY}[what]

    def _leading(self) -> Node:
        return next(m.node for m in self.machines.values() if m.node is not None and m.node.serving.proposals.open)

    def _repair(self) -> None:
        node = self._leading()
        scrubs, machine = node.keeping.tier_scrubs, self.machines[NodeId(node.node_id)]
        assert scrubs is not None
        assert machine.process is not None
        for _ in range(SCRUBS_MAX):
            self.loop.call_outside(0.0, machine.process.run, scrubs.begin, ScrubOptions(repairs=True))
            self._pass_time(0.01)
            if self._until(lambda: not scrubs.view.running, SCRUB_S) and not scrubs.view.failure:
                return
        raise ScriptError(f"the scrub does not end: {scrubs.view.failure}")

    def _host(self, name: str) -> str:
        return self._machine(name).host

    def do_cut(self, what: str) -> None:
        if "->" in what:
            a, b = what.split("->")
            edges: list[HostPair] = [(self._host(a), self._host(b))]
        else:
            own = self._host(what)
            group = self.machines if self.second is None or "@" not in what else self.second.machines
            others = [m.host for m in group.values() if m.host != own]
            edges = [edge for other in others for edge in ((own, other), (other, own))]
        self.network.cut(edges)

    def do_half_open(self, a: str, b: str = "") -> None:
        if "->" not in a:
            self.network.forget(self.network.dialled(self._host(a), self._host(b)))
            return
        dialler, _, peer = a.partition("->")
        node = self._machine(dialler).node
        assert node is not None
        links = [
            link for (to, channel), link in node.peers.transport.links.items() if to == int(peer) and b in ("", channel)
        ]
        ends = [link.transport for link in links]
        self.network.forget([end for end in ends if isinstance(end, Endpoint)])

    def do_reset(self, a: str, b: str) -> None:
        self.network.reset({self._host(a), self._host(b)})

    def do_heal(self) -> None:
        self.network.heal()


def _is_about_to(what: str, machine: Machine) -> bool:
    """Returns True if the node's next tick makes it campaign or resign (`what`), unless it receives a message
    before."""
    assert machine.node is not None
    raft = machine.node.raw.raft
    if what == "campaign":
        return raft.role is not Role.LEADER and raft.election_elapsed == raft.election_timeout - 1
    if what == "resign":
        last = raft.election_elapsed == raft.config.election_ticks - 1
        return raft.role is Role.LEADER and last and not has_quorum_contact(raft)
    raise ValueError(what)
