"""Plays: faults in one exact order, staged from whatever state a run is in; random faults hardly ever occur in such an
order.

A play steers faults (cuts, crashes, held messages, timeouts) and may read any state to time them; it judges nothing. It
is a generator that yields the conditions it waits for; the condition is evaluated after every event of the world. A
step that does not happen in time ends the play: links are mended, members started, and another attempt follows later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from jepsen_like.core_sim.faults import Faults
from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.network import Link
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.world import CoreWorld
from raftlog.messages import AppendEntries, AppendEntriesReply, Message, RequestVoteReply, TimeoutNow
from raftlog.types import Role

_ATTEMPTS = 4
_PATIENCE_TICKS = 60
_SLOW_DISK_TICKS = 200
_CAMPAIGNS_MAX = 4
"""The most campaigns of a candidate that catches up with its rival's term."""


class Until(NamedTuple):
    """A condition that a play waits for, at most `ticks` ticks. The play's `yield` then returns True if the condition
    holds in time, else False.
    """

    holds: Callable[[], bool]
    ticks: float


Play = Generator[Until, bool, None]


class TooLate(Exception):
    """A step did not happen in time, so the play is over."""


class Plays:
    """Stages the run's play, a few times, while faults are injected."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.world: CoreWorld = faults.world
        self.rng = random.Random(f"{self.world.seed}/plays")
        self.attempts = _ATTEMPTS if self.world.knobs.play else 0
        self._play: Play | None = None
        self._until = Until(lambda: True, 0)
        self._deadline = 0
        self._begin_at = self._pause()
        if self.attempts:
            self.world.watch = self._watch

    def _pause(self) -> int:
        return self.world.now + int((2 + 20 * self.rng.random()) * TICK_US)

    def _watch(self) -> None:
        if not self.faults.active:
            self._end()
            self.world.watch = None
        elif self._play is None:
            if self.world.now >= self._begin_at and self.attempts:
                self._begin()
        elif self._until.holds():
            self._go_on(True)
        elif self.world.now >= self._deadline:
            self._go_on(False)

    def _begin(self) -> None:
        self.attempts -= 1
        name = self.world.knobs.play
        self.world.tell(f"play {name}")
        self.faults.kinds.add(f"play {name}")
        self.faults.held = True
        self.world.network.loss = 0.0
        self._play = getattr(self, f"_{name}")()
        self._go_on(None)

    def _go_on(self, in_time: bool | None) -> None:
        assert self._play is not None
        try:
            self._until = next(self._play) if in_time is None else self._play.send(in_time)
            self._deadline = self.world.now + int(self._until.ticks * TICK_US)
        except (StopIteration, TooLate):
            self._end()

    def _end(self) -> None:
        if self._play is not None:
            self._play.close()
            self._play = None
            self.world.tell("play ends")
        self.world.hold = None
        self.faults.held = False
        self._begin_at = self._pause()
        if self.faults.active:
            for machine in self.world.machines.values():
                self.world.start(machine)

    def _played(self) -> None:
        """Counts that the staged play came to the situation that it is about."""
        self.world.seen[f"play {self.world.knobs.play}"] += 1

    # -- steps

    @contextmanager
    def _cut(self, links: list[Link]) -> Iterator[None]:
        network = self.world.network
        epoch = network.epoch
        network.cut(links)
        try:
            yield
        finally:
            network.mend(links, epoch)

    def _apart(self, ones: list[CoreMachine], others: list[CoreMachine]) -> list[Link]:
        return [link for a in ones for b in others for link in ((a.id, b.id), (b.id, a.id))]

    def _alone(self, machine: CoreMachine) -> list[Link]:
        return self.world.links_of([machine.id])

    def _others(self, *members: CoreMachine) -> list[CoreMachine]:
        found = [machine for machine in self.world.machines.values() if machine not in members]
        self.rng.shuffle(found)
        return found

    def _urge(self, machine: CoreMachine, done: Callable[[], bool]) -> Play:
        """Makes election timeouts of `machine` pass, one after the other, until `done` returns True. Raises TooLate if
        it does not in time.
        """
        for _ in range(_PATIENCE_TICKS // 2):
            if done():
                return
            if machine.up and not machine.paused and machine.raw.role is not Role.LEADER:
                machine.act(machine.raw.campaign)
            yield Until(done, 1 + 2 * self.rng.random())
        if not done():
            raise TooLate

    def _a_leader(self) -> Generator[Until, bool, CoreMachine]:
        """Waits for a leader and returns it. Raises TooLate."""

        def leads() -> bool:
            leader = self.world.leader()
            return leader is not None and not leader.paused

        yield from _in_time(leads, _PATIENCE_TICKS)
        leader = self.world.leader()
        assert leader is not None
        return leader

    # -- the plays

    def _figure_8(self) -> Play:
        """Stages figure 8 of the Raft paper: an old entry reaches a majority in a new term, then a newer log without it
        wins."""
        world = self.world
        first = yield from self._a_leader()
        others = self._others(first)
        with self._cut(self._alone(first)):  # (a) no other member gets the entries that the leader appends now

            def has_more() -> bool:
                return first.disk.tail.index > max(other.disk.tail.index for other in others)

            yield from _in_time(has_more, 10)
            old = first.disk.tail
            world.crash(first)
        second = max(others, key=lambda machine: machine.disk.tail.id)
        for machine in others:
            world.start(machine)
        yield from self._urge(second, lambda: _leads(second))
        with self._cut(self._alone(second)):  # (b) `second` writes its no-op, which no other member receives
            yield from _in_time(lambda: second.disk.tail.term > old.term, 10)
            world.crash(second)
        world.start(first)
        yield from self._urge(first, lambda: _leads(first))
        if first.raw.term <= second.disk.tail.term:
            return
        own_term = first.raw.term

        def brings_own(message: Message) -> bool:
            return isinstance(message, AppendEntries) and any(entry.term == own_term for entry in message.entries)

        world.hold = brings_own  # (c) the old entry gets through, the new leader's own entries do not

        def agreed() -> bool:
            return _leads(first) and first.raw.raft.members.agreed_match(first.raw.persisted_index) >= old.index

        yield from _in_time(agreed, 20)
        yield Until(lambda: False, 6)
        world.crash(first)
        world.hold = None
        world.start(second)  # (d)
        yield from self._urge(second, lambda: _leads(second))
        self._played()
        yield Until(lambda: False, 6)

    def _stale_vote(self) -> Play:
        """Stages a vote that arrives late, in a newer term in which its voter has already elected another leader."""
        world = self.world
        candidate, rival, *_ = self._others()
        held: list[Message] = []

        def hold(message: Message) -> bool:
            if isinstance(message, RequestVoteReply) and message.to_id == candidate.id and not message.pre_vote:
                if message.granted and message.from_id != rival.id:
                    held.append(message)
                return True
            return False

        world.hold = hold
        yield from self._urge(candidate, lambda: bool(held))
        with self._cut(self._alone(candidate)):
            if not candidate.up:
                return
            candidate.act(candidate.raw.campaign)

            def level() -> bool:
                return _leads(rival) and rival.raw.term >= candidate.raw.term

            yield from self._urge(rival, level)
            for _ in range(_CAMPAIGNS_MAX):
                if candidate.up and candidate.raw.term < rival.raw.term:
                    candidate.act(candidate.raw.campaign)
            for message in held:
                world.hand_over(message)
            self._played()
            yield Until(lambda: False, 8)

    def _stale_ack(self) -> Play:
        """Stages a leader that loses entries which others acknowledged and leads again with a shorter log; then the old
        acknowledgements arrive."""
        world = self.world
        leader = yield from self._a_leader()
        others = self._others(leader)
        half = len(world.machines) // 2
        witnesses, rest = others[:half], others[half:]
        held: list[Message] = []
        term = leader.raw.term

        def hold(message: Message) -> bool:
            if isinstance(message, AppendEntriesReply) and message.to_id == leader.id and message.term == term:
                if not message.rejected and message.match_index > leader.disk.tail.index:
                    held.append(message)
                return True
            return False

        world.hold = hold
        usual = world.disk_us[leader.id]
        world.disk_us[leader.id] = _SLOW_DISK_TICKS * TICK_US
        with self._cut(self._apart([leader, *witnesses], rest)):
            try:
                found = yield Until(lambda: len({message.from_id for message in held}) == half, 15)
                yield Until(lambda: False, 6)
            finally:
                world.disk_us[leader.id] = usual
            if not found:
                return
            world.crash(leader)
        with self._cut(self._apart(witnesses, [leader, *rest])):
            world.start(leader)
            yield from self._urge(leader, lambda: _leads(leader))
            top = max(message.match_index for message in held if isinstance(message, AppendEntriesReply))
            yield Until(lambda: _leads(leader) and leader.raw.last_index >= top, 15 * self.rng.random())
            with self._cut(self._apart([leader], rest)):
                for message in held:
                    world.hand_over(message)
                self._played()
                yield Until(lambda: False, 10)
                world.crash(leader)

    def _double_vote(self) -> Play:
        """Stages voters that lose power right after they voted; the next candidate of the same term asks them again."""
        world = self.world
        old = yield from self._a_leader()
        candidate, *voters = self._others(old)
        granted: dict[CoreMachine, None] = {}

        def watch(message: Message) -> bool:
            if isinstance(message, RequestVoteReply) and message.granted and not message.pre_vote:
                voter = world.machines[message.from_id]
                if message.to_id == candidate.id and voter in voters:
                    granted[voter] = None
            return False

        world.hold = watch
        with self._cut(self._alone(old)):
            yield from self._urge(candidate, lambda: bool(granted))
            for voter in granted:
                world.crash(voter)
            yield Until(lambda: _leads(candidate), 3)
            world.crash(old)
        with self._cut(self._alone(candidate)):
            for machine in (*voters, old):
                world.start(machine)
            goal = candidate.raw.term
            self._played()
            with suppress(TooLate):
                yield from self._urge(old, lambda: _leads(old) or (old.up and old.raw.term > goal))
            yield Until(lambda: False, 6)

    def _late_handover(self) -> Play:
        """Stages a request to take over leadership that arrives after the leader gave up on it, at a member that by
        then lacks newer writes."""
        world = self.world
        leader = yield from self._a_leader()
        peers = leader.raw.raft.members.peers
        fit = [machine for machine in self._others(leader) if machine.id in peers and peers[machine.id].fit]
        if not fit:
            return
        target = fit[0]
        term = leader.raw.term
        held: list[Message] = []

        def hold(message: Message) -> bool:
            if message.to_id != target.id:
                return False
            if isinstance(message, TimeoutNow):
                held.append(message)
                return True
            return bool(held) and isinstance(message, AppendEntries)  # heartbeats arrive: the target stays a follower

        world.hold = hold
        leader.act(leader.raw.transfer_leadership, target.id)
        yield from _in_time(lambda: bool(held), 10)

        def went_on() -> bool:
            return _leads(leader) and leader.raw.term == term and leader.raw.commit_index > target.raw.last_index

        if (yield Until(went_on, 60)) and target.up:
            world.hand_over(held[0])
            world.hold = None
            self._played()
            yield Until(lambda: False, 6)

    def _stale_read(self) -> Play:
        """Stages a leader that was cut off and is asked to read after its successor has answered a write."""
        world = self.world
        old = yield from self._a_leader()
        successor, *_ = others = self._others(old)
        with self._cut(self._alone(old)):
            if old.up:
                world.ask_read(old)  # no member will confirm this read's round of heartbeats
            yield from self._urge(successor, lambda: any(_leads(machine) for machine in others))
            known = world.history.known_length
            yield Until(lambda: world.history.known_length > known, 20)
            world.visit(old, old.starts)
            if _leads(old):
                self._played()
            yield Until(lambda: False, 4)
            world.visit(old, old.starts)


def _in_time(holds: Callable[[], bool], ticks: float) -> Play:
    """Waits until `holds` is true, at most `ticks`. Raises TooLate."""
    if not (yield Until(holds, ticks)):
        raise TooLate


def _leads(machine: CoreMachine) -> bool:
    return machine.up and machine.raw.role is Role.LEADER
