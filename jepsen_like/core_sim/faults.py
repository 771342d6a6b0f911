"""Random faults: each has a beginning, a duration and an end. Their kinds are drawn per run."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.network import Link
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.world import MID_APPEND, CoreWorld
from raftlog.types import NodeId, Role

LATE_TICKS = 36
"""The most ticks that a message is in flight; the trigger `delay_acks` delays messages longest. When this many ticks
have passed since the heal, no message from before it can arrive.
"""


class Faults:
    """Draws and injects faults from the run's mix until `stop` is called."""

    def __init__(self, world: CoreWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed}/faults")
        self.active = True
        self.held = False
        """True while a play (faults in one exact order, staged_faults.py) is staged. No other fault begins then."""
        self.begun = 0
        self.kinds: set[str] = set()
        self._queue = list(world.knobs.faults)  # first each kind once, then any kind
        self.rng.shuffle(self._queue)
        world.at(self._gap(), self._next)

    def _gap(self) -> int:
        return int((0.3 + self.rng.random()) * self.world.knobs.fault_gap_us)

    def _next(self) -> None:
        if not self.active:
            return
        if self.held:
            self.world.at(self._gap(), self._next)
            return
        kinds = self.world.knobs.faults
        kind = self._queue.pop() if self._queue else kinds[int(self.rng.random() * len(kinds))]
        self.begun += 1
        self.kinds.add(kind)
        self.world.tell(f"fault {kind}")
        getattr(self, f"_{kind}")()
        self.world.at(self._gap(), self._next)

    # -- choosing

    def victim(self) -> CoreMachine:
        """Returns a member to attack: the leader with a probability of one half, else any member."""
        leader = self.world.leader()
        if leader is not None and self.rng.random() < 0.5:
            return leader
        return self._anyone()

    def _anyone(self) -> CoreMachine:
        members = list(self.world.machines.values())
        return members[int(self.rng.random() * len(members))]

    def lasts(self) -> int:
        """Draws the duration of a fault in microseconds, from a fifth of an election timeout to three of them."""
        ticks = int(self.world.knobs.raft["election_ticks"])
        return int((0.2 + 3 * self.rng.random() ** 2) * ticks * TICK_US)

    # -- members

    def bounce(self, machine: CoreMachine, down_us: int) -> None:
        """Crashes the member, which restarts after `down_us`."""
        self.world.crash(machine)
        self.world.at(down_us, self._come_back, machine, machine.starts)

    def _come_back(self, machine: CoreMachine, starts: int) -> None:
        # If something else has restarted the member since the crash, that crash is over; a newer crash must not end
        # here.
        if machine.starts == starts:
            self.world.start(machine)

    def _crash(self) -> None:
        self.bounce(self.victim(), self.lasts())

    def _power_failure(self) -> None:
        """Crashes a majority of the members, or all of them, at the same moment."""
        members = list(self.world.machines.values())
        self.rng.shuffle(members)
        count = self.rng.choice([len(members) // 2 + 1, len(members)])
        for machine in members[:count]:
            self.bounce(machine, self.lasts() // 2)

    def _pause(self) -> None:
        machine = self.victim()
        self.world.pause(machine)
        self.world.at(self.lasts(), self.world.resume, machine)

    # -- network

    def cut(self, links: list[Link], lasts: int) -> None:
        """Cuts `links` for `lasts` microseconds. A cut that was planned before the heal and comes after it does
        nothing."""
        if not self.active:
            return
        if any(m.disk.holds_unsynced_entries for m in self.world.up()):
            self.world.seen[MID_APPEND] += 1
        self.world.network.cut(links)
        self.world.at(lasts, self.world.network.mend, links, self.world.network.epoch)

    def isolate(self, machine: CoreMachine, lasts: int) -> None:
        """Cuts all links of `machine`, in both directions."""
        self.cut(self.world.links_of([machine.id]), lasts)
        for _ in range(3):  # if the isolated leader is deposed meanwhile, it must not answer these reads
            self.world.at(int(self.rng.random() * lasts), self.world.visit, machine, machine.starts)

    def _isolate(self) -> None:
        self.isolate(self.victim(), self.lasts())

    def _halves(self) -> None:
        nodes = list(self.world.machines)
        self.rng.shuffle(nodes)
        self.cut(self.world.links_of(nodes[: len(nodes) // 2]), self.lasts())

    def _one_way(self) -> None:
        """Cuts some links in one direction only: a member receives from the others but does not reach them, or the
        reverse."""
        node = self.victim().id
        links: list[Link] = [(node, other) for other in self.world.machines if other != node]
        if self.rng.random() < 0.5:
            links = [(b, a) for a, b in links]
        if self.rng.random() < 0.3:
            links = links[:1]
        self.cut(links, self.lasts())

    def _for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        self.world.at(self.lasts(), end)

    def _loss(self) -> None:
        share = self.rng.choice([0.02, 0.1, 0.3])
        self._for_a_while(lambda: self._set_loss(share), lambda: self._set_loss(0.0))

    def _set_loss(self, share: float) -> None:
        self.world.network.loss = share if self.active else 0.0

    def _duplicate(self) -> None:
        self._for_a_while(lambda: self._set_duplicate(0.2), lambda: self._set_duplicate(0.0))

    def _set_duplicate(self, share: float) -> None:
        self.world.network.duplicate = share if self.active else 0.0

    def _slow_link(self) -> None:
        node = self.victim().id
        late = int(self.rng.random() * 6 * TICK_US)
        inward = self.rng.random() < 0.5
        links = [(other, node) if inward else (node, other) for other in self.world.machines if other != node]
        self.delay(links, late, self.lasts())

    def delay(self, links: list[Link], late_us: int, lasts: int) -> None:
        """Delays messages on `links` by `late_us`, for `lasts` microseconds."""
        slow = self.world.network.slow
        for link in links:
            slow[link] = late_us
            self.world.at(lasts, self._quick, link)

    def _quick(self, link: Link) -> None:
        self.world.network.slow.pop(link, None)

    # -- disk, clock, orders

    def _slow_disk(self) -> None:
        machine = self.victim()
        self._set_disk(machine, self.world.knobs.disk_us * 20)
        self.world.at(self.lasts(), self._set_disk, machine, self.world.knobs.disk_us)

    def _set_disk(self, machine: CoreMachine, disk_us: int) -> None:
        self.world.disk_us[machine.id] = disk_us

    def _clock(self) -> None:
        """Sets one member's wall clock wrong. It is always the same member in a run, so that the clocks of a majority
        stay right.
        """
        node = NodeId(1 + self.world.seed % self.world.knobs.nodes)
        self.world.clock_offset_ms[node] = self.rng.choice([0, -3_600_000, 3_600_000, 20_000])

    def _transfer(self) -> None:
        leader = self.world.leader()
        if leader is not None and not leader.paused:
            target = self._anyone().id
            with suppress(ValueError):  # the target has reported that it cannot lead
                leader.act(leader.raw.transfer_leadership, target)
            self.world.seen["transfers asked"] += 1

    def _campaign(self) -> None:
        """Makes a member's election timeout pass at an unexpected moment."""
        machine = self._anyone()
        if machine.up and not machine.paused and machine.raw.role is not Role.LEADER:
            machine.act(machine.raw.campaign)

    def _closed(self) -> None:
        """Reports to a member that its connection to the leader broke, although the leader lives."""
        machine = self._anyone()
        if machine.up and not machine.paused and machine.raw.leader_id:
            machine.act(machine.raw.peer_closed, machine.raw.leader_id)

    def stop(self) -> None:
        """Begins no more faults, and repairs everything that is broken."""
        self.active = False
        world = self.world
        world.quiet_from = world.now + LATE_TICKS * TICK_US
        world.tell("heal")
        world.network.heal()
        world.network.fifo = True
        for node, machine in world.machines.items():
            world.disk_us[node] = world.knobs.disk_us
            world.clock_offset_ms[node] = 0
            world.resume(machine)
            world.start(machine)
