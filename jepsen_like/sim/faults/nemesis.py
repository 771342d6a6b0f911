"""The nemesis: begins each planned fault at its time or in the state that it waits for, undoes it, and at the end heals
everything."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jepsen_like.sim.checks.monitor import Monitor, grants_vote
from jepsen_like.sim.faults.fault_plan import Fault
from jepsen_like.sim.machines.disk import PowerLoss
from jepsen_like.sim.machines.loop import SimLoop
from jepsen_like.sim.machines.machine import Machine
from jepsen_like.sim.machines.network import HostPair, Network
from jepsen_like.sim.options import TRIGGERS
from raftlog.core.raft import Raft
from raftlog.types import NOBODY, NodeId, Role


class FaultInjector:
    """Injects the planned faults into the machines and the network. `applied` counts the faults that took effect, by
    kind."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        machines: dict[NodeId, Machine],
        monitor: Monitor,
        faults: Sequence[Fault],
        clients: Sequence[str],
        further: Mapping[str, Callable[[FaultInjector, Fault, random.Random], None]],
    ) -> None:
        """`clients`: hosts of clients, each of which must always reach some node. `further`: fault kind -> the function
        that begins it, for kinds that this class does not implement."""
        self.loop, self.network, self.machines, self.monitor = loop, network, machines, monitor
        self.clients = list(clients)
        self.applied: Counter[str] = Counter()
        self.over = False
        self._armed: dict[str, Fault] = {}
        self._undo: dict[int, Callable[[], None]] = {}
        self._cuts: dict[int, list[HostPair]] = {}
        self._start_on_some: dict[str, Callable[[Fault, random.Random, Machine], None]] = {
            "kill": self._kill,
            "power": self._power,
            "pause": self._pause,
            "isolate": self._isolate,
            "one-way": self._one_way,
            "slow-link": self._slow_link,
            "reset": self._reset,
            "slow-disk": self._slow_disk,
            "eio": self._eio,
            "enospc": self._enospc,
            "clock": self._clock,
        }
        """Fault kind -> the method that begins it on one node, which `some` chooses. If no node is running, nothing
        happens."""
        self._start: dict[str, Callable[[Fault, random.Random], None]] = {
            "kill-all": self._kill_all,
            "pause-leader": self._pause_leader,
            "halves": self._halves,
            "ring": self._ring,
            "transfer": self._transfer,
            "rot": self._rot,
            "away": self._away,
            "stop": self._terminate,
            **{kind: partial(begin, self) for kind, begin in further.items()},
        }
        monitor.on_turn = self._on_turn
        monitor.on_drained = self._on_drained
        monitor.on_reported = self._on_reported
        self._faults = faults

    # --- the plan ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules every planned fault; the plan's second 0 is now."""
        for fault in self._faults:
            self.loop.call_outside(fault.at_s, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if self.over:
            return
        if fault.kind in TRIGGERS:
            self._armed.setdefault(fault.kind, fault)
            return
        rng = random.Random(fault.seed)
        if fault.kind in self._start:
            self._start[fault.kind](fault, rng)
        elif (machine := self.some(rng)) is not None:
            self._start_on_some[fault.kind](fault, rng, machine)

    # --- for the faults themselves -----------------------------------------------------------------------------------

    def took(self, fault: Fault, what: str, undo: Callable[[], None] | None = None) -> None:
        """Counts and logs that the fault took effect, and schedules `undo` for the end of its duration."""
        self.applied[fault.kind] += 1
        self.monitor.log(f"fault {fault.describe()}: {what}")
        if undo is not None:
            self._undo[fault.number] = undo
            self.loop.call_outside(fault.lasts_s, self._end, fault)

    def _end(self, fault: Fault) -> None:
        undo = self._undo.pop(fault.number, None)
        if undo is not None:
            self.monitor.log(f"fault #{fault.number} {fault.kind} ends")
            undo()

    @property
    def between_append_and_ack(self) -> int:
        """Returns the number of crashes at which an entry was on disk, in full or in part, and no acknowledgement had
        been sent."""
        return self.applied["crash-before-ack"] + self.applied["torn-write"]

    def heal(self) -> None:
        """Undoes every fault: heals the network and the disks, resumes paused machines and starts those that are down.
        No further fault begins."""
        self.over = True
        self._armed.clear()
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()
        self.network.links.slow.clear()
        self.network.heal()
        for machine in self.machines.values():
            machine.held = 0
            machine.disk_factor = machine.apply_factor = 1.0
            machine.fs.fail_next.clear()
            machine.resume()
            machine.start()

    def forget_retired(self) -> None:
        """Removes retired machines from the network. The network then refuses connections to them, so that callers do
        not wait for an answer.
        """
        for machine in self.machines.values():
            if machine.retired:
                self.network.links.down.discard(machine.host)
        self.network.retry()

    # --- who ---------------------------------------------------------------------------------------------------------

    def leader(self) -> Machine | None:
        """Returns the machine of the leader with the highest term; None if no running node leads."""
        leaders = [m for m in self.up() if m.node is not None and _raft(m).role is Role.LEADER]
        return max(leaders, key=lambda m: _raft(m).term, default=None)

    def up(self) -> list[Machine]:
        """Returns the machines whose node is running."""
        return [m for m in self.machines.values() if m.up and hasattr(m.node, "raw")]

    def some(self, rng: random.Random) -> Machine | None:
        """Returns the leader half of the time, otherwise any running machine; None if none is running."""
        leader = self.leader()
        up = self.up()
        if leader is not None and rng.random() < 0.5:
            return leader
        return rng.choice(up) if up else None

    # --- processes ---------------------------------------------------------------------------------------------------

    def _down(self, fault: Fault, machine: Machine, *, power: bool, loss: PowerLoss | None = None) -> None:
        machine.kill(power=power, loss=loss)
        machine.held += 1
        what = f"node {machine.node_id}{' loses power' if power else ' is killed'}"
        self.took(fault, what, machine.release)

    def _kill(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        self._down(fault, machine, power=False)

    def _away(self, fault: Fault, rng: random.Random) -> None:
        followers = [machine for machine in self.up() if machine is not self.leader()]
        if followers:
            self._down(fault, rng.choice(followers), power=rng.random() < 0.5)

    def _power(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        self._down(fault, machine, power=True)

    def _terminate(self, fault: Fault, rng: random.Random) -> None:
        """Sends SIGTERM to a node, most often the leader. When the fault is over, the node is started again if it is
        down."""
        machine = self.leader() if rng.random() < 0.4 else self.some(rng)
        if machine is None:
            return
        self.monitor.sometimes["leader stopped in order"] += machine is self.leader()
        machine.held += 1
        machine.stop()
        self.took(fault, f"node {machine.node_id} is told to stop", machine.release)

    def _kill_all(self, fault: Fault, rng: random.Random) -> None:
        power = rng.random() < 0.7
        victims = list(self.machines.values())
        if rng.random() < 0.5:
            victims = rng.sample(victims, len(victims) // 2 + 1)
        for machine in victims:
            machine.kill(power=power)
            machine.held += 1
        if len(victims) == len(self.machines):
            self.monitor.sometimes["group restarted as a whole"] += 1

        def back() -> None:
            for machine in victims:
                machine.held = max(0, machine.held - 1)
                self.loop.call_outside(rng.uniform(0, 0.2), machine.start)

        names = ", ".join(str(machine.node_id) for machine in victims)
        self.took(fault, f"nodes {names} {'lose power' if power else 'are killed'}", back)

    def _pause_leader(self, fault: Fault, rng: random.Random) -> None:
        leader = self.leader()
        if leader is not None:
            self._pause(fault, rng, leader)

    def _pause(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        term = _raft(machine).term if _raft(machine).role is Role.LEADER else None
        machine.pause()

        def back() -> None:
            if term is not None and max(self.monitor.leaders, default=0) > term:
                self.monitor.sometimes["leader paused and deposed"] += 1
            machine.resume()

        self.took(fault, f"node {machine.node_id} stands still", back)

    # --- network -----------------------------------------------------------------------------------------------------

    def cut(
        self, fault: Fault, edges: list[HostPair], what: str, before_heal: Callable[[], None] | None = None
    ) -> None:
        """Cuts the directed links `edges` for the fault's duration. A link that another fault still cuts is not
        healed."""
        self._cuts[fault.number] = edges
        self.network.cut(edges)

        def back() -> None:
            if before_heal is not None:
                before_heal()
            self._cuts.pop(fault.number, None)
            still = {edge for others in self._cuts.values() for edge in others}
            self.network.heal([edge for edge in edges if edge not in still])

        self.took(fault, what, back)

    def hosts(self) -> list[str]:
        """Returns the IP addresses of all nodes' machines."""
        return [machine.host for machine in self.machines.values()]

    def _halves(self, fault: Fault, rng: random.Random) -> None:
        hosts = self.hosts()
        rng.shuffle(hosts)
        at = rng.randint(1, len(hosts) - 1)
        near, far = hosts[:at], hosts[at:]
        edges = [edge for a in near for b in far for edge in ((a, b), (b, a))]
        edges += self._clients_of(rng, near)
        self.cut(fault, edges, f"{'+'.join(sorted(near))} | {'+'.join(sorted(far))}")

    def _clients_of(self, rng: random.Random, hosts: list[str]) -> list[HostPair]:
        """Draws the clients that cannot reach one side of a partition, each with probability 0.3, and returns the links
        between them and `hosts`, in both directions."""
        blind = [client for client in self.clients if rng.random() < 0.3]
        return [edge for client in blind for host in hosts for edge in ((client, host), (host, client))]

    def _isolate(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        others = [host for host in self.hosts() if host != machine.host]
        edges = [edge for other in others for edge in ((machine.host, other), (other, machine.host))]
        self.cut(fault, edges + self._clients_of(rng, [machine.host]), f"{machine.host} alone")

    def _one_way(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        others = [host for host in self.hosts() if host != machine.host]
        others = rng.sample(others, rng.randint(1, len(others)))
        outgoing = rng.random() < 0.5
        edges = [(machine.host, other) if outgoing else (other, machine.host) for other in others]
        self.cut(fault, edges, ", ".join(f"{a} -x-> {b}" for a, b in edges))

    def _ring(self, fault: Fault, rng: random.Random) -> None:
        """Cuts the network so that every node reaches only its two neighbours in a ring, and no two nodes reach the
        same majority. With three nodes one link is cut.
        """
        hosts = self.hosts()
        rng.shuffle(hosts)
        size = len(hosts)
        apart = [(a, b) for a in range(size) for b in range(size) if (a - b) % size not in (0, 1, size - 1)]
        pairs = apart or [(0, 1), (1, 0)]
        self.cut(fault, [(hosts[a], hosts[b]) for a, b in pairs], f"ring {' '.join(hosts)}")

    def _slow_link(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        extra = rng.choice((0.01, 0.05, 0.2))
        slow = self.network.links.slow
        edges = [(machine.host, other) for other in self.hosts() if other != machine.host]
        edges += [edge[::-1] for edge in edges] if rng.random() < 0.5 else []
        slow.update(dict.fromkeys(edges, extra))

        def back() -> None:
            for edge in edges:
                slow.pop(edge, None)

        self.took(fault, f"{machine.host} {extra * 1000:.0f} ms slower", back)

    def _reset(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        others = rng.choice((self.hosts(), self.clients, [*self.hosts(), *self.clients]))
        self.network.reset({machine.host, *others})
        self.took(fault, f"connections of {machine.host} are reset")

    # --- disks and clocks --------------------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        machine.disk_factor = rng.choice((5.0, 30.0, 100.0))
        self.took(
            fault,
            f"disk of node {machine.node_id} {machine.disk_factor:.0f} times slower",
            lambda: setattr(machine, "disk_factor", 1.0),
        )

    def _eio(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        call = rng.choice(("fdatasync", "fdatasync", "pwritev"))
        machine.fs.fail_next[call] = errno.EIO
        self.took(fault, f"node {machine.node_id}: the next {call} fails")

    def _enospc(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        machine.fs.fill(rng.choice((0, 100, 5000)))
        self.took(fault, f"node {machine.node_id}: the disk is full", lambda: machine.fs.fill(1 << 40))

    def _rot(self, fault: Fault, rng: random.Random) -> None:
        """Flips a bit of an entry on the disk, always on the same machine of a run: damage on a minority can be
        repaired from the other nodes."""
        options = self.machines[NodeId(1)].options
        machine = self.machines[NodeId(1 + options.seed % options.nodes)]
        if not machine.up or not hasattr(machine.node, "raw"):
            return
        assert machine.node is not None
        log = machine.node.storage.directory.log
        first = max(1, log.first_index)
        index = rng.randint(first, max(first, _raft(machine).log.commit_index))
        if index > log.tail.index or index in machine.rotten:
            return
        (entry,) = log.read_entries(index, index + 1, 1)
        if not machine.is_marked(entry, log):
            return
        machine.rot(entry, log)
        self.took(fault, f"node {machine.node_id}: a bit of entry {index} flips on the disk")

    def _clock(self, fault: Fault, rng: random.Random, machine: Machine) -> None:
        jump = rng.choice((-1, 1)) * rng.choice((50, 1000, 30_000, 3_600_000))
        machine.clock.offset_ms += jump
        self.monitor.sometimes["clock jumped on a leader"] += machine is self.leader()
        self.took(fault, f"clock of node {machine.node_id} jumps {jump} ms")

    def _transfer(self, fault: Fault, rng: random.Random) -> None:
        leader = self.leader()
        if leader is None or leader.node is None:
            return
        to = rng.choice([node for node in leader.node.raw.membership.voter_ids if node != leader.node_id] or [NOBODY])
        if leader.hand_over(to):
            self.monitor.sometimes["leadership transferred"] += 1
            self.took(fault, f"node {leader.node_id} is told to hand over to node {to}")

    # --- states ------------------------------------------------------------------------------------------------------

    def _on_turn(self, machine: Machine, raft: Raft) -> None:
        if not self._armed or raft.role is not Role.LEADER:
            return
        log = raft.log
        if "crash-newborn" in self._armed and log.commit_index < raft.term_start_index:
            self._crash(machine, "crash-newborn", "leader died before its no-op committed", 0.5)
        elif "isolate-with-suffix" in self._armed and log.tail.index > log.commit_index >= raft.term_start_index:
            fault = self._armed.pop("isolate-with-suffix")
            self.monitor.sometimes["leader isolated with an uncommitted suffix"] += 1
            self._isolate(fault, random.Random(fault.seed), machine)
        elif "torn-write" in self._armed and log.tail.index > log.persisted_index:
            fault = self._armed.pop("torn-write")
            rng = random.Random(fault.seed)
            machine.fs.cut_power_at(machine.fs.calls + rng.randint(1, 4))
            machine.held += 1
            self.took(
                fault,
                f"node {machine.node_id} will lose power in the middle of a write",
                lambda: self._power_back(machine),
            )

    def _power_back(self, machine: Machine) -> None:
        if machine.up:
            machine.fs.cut_power_at(-1)
        machine.release()

    def _on_drained(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        if lane != "append" or not self._armed or machine.process is None:
            return
        if "crash-before-ack" in self._armed and done.last is not None:
            self._crash(machine, "crash-before-ack", "crash between append and ack", 0.6)
        elif "crash-after-vote" in self._armed and grants_vote(done) and random.Random(self.loop.events).random() < 0.5:
            self._vote_crash(machine)

    def _on_reported(self, machine: Machine, lane: str, batch: Sequence[Any], done: Any) -> None:
        if lane == "flush" and "crash-after-sync" in self._armed and machine.kv.unsynced:
            self.loop.call_outside(0.0, self._sync_crash, machine)
        if lane != "append" or not self._armed:
            return
        if "crash-after-vote" in self._armed and grants_vote(done):
            # The node sends its reply in the turn that this report has woken. Crash after that turn.
            self._after_turn(self._vote_crash, machine)
        elif "crash-after-ack" in self._armed and done.last is not None:
            fault = self._armed.pop("crash-after-ack")
            self._after_turn(self._late_crash, fault, machine)

    def _crash(self, machine: Machine, kind: str, what: str, power: float) -> None:
        """Crashes the machine, because the state that an armed fault of this kind waits for has occurred; `what` is the
        counter that this adds to. With probability `power` the power fails."""
        fault = self._armed.pop(kind)
        self.monitor.sometimes[what] += 1
        self._down(fault, machine, power=random.Random(fault.seed).random() < power)

    def _after_turn(self, act: Callable[..., None], *args: Any) -> None:
        """Calls `act` two rounds of the event loop later, when the turn of the node's driver that was just woken has
        sent its messages."""

        def again() -> None:
            self.loop.call_outside(0.0, act, *args)

        self.loop.call_outside(0.0, again)

    def _vote_crash(self, machine: Machine) -> None:
        if not self.over and machine.up and "crash-after-vote" in self._armed:
            self._crash(machine, "crash-after-vote", "vote granted, then crash", 0.7)

    def _sync_crash(self, machine: Machine) -> None:
        """Cuts the power right after rows were synced, before the file RUN is written: only the synced rows are
        left."""
        if self.over or not machine.up or "crash-after-sync" not in self._armed:
            return
        fault = self._armed.pop("crash-after-sync")
        self.monitor.sometimes["power lost right after a sync of rows"] += 1
        self._down(fault, machine, power=True, loss=PowerLoss("nothing", 1 << 30))

    def _late_crash(self, fault: Fault, machine: Machine) -> None:
        if not self.over and machine.up:
            self._down(fault, machine, power=random.Random(fault.seed).random() < 0.6)


def _raft(machine: Machine) -> Raft:
    assert machine.node is not None
    return machine.node.raw.raft
