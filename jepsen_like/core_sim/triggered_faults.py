"""Faults at particular moments: right after a vote, an election, an append. Random times hardly ever hit these.

A trigger fires with the probability drawn for it, at most a few times in a run, and never after faults have stopped.
"""

from __future__ import annotations

import random

from jepsen_like.core_sim.faults import Faults
from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.run_options import TICK_US
from jepsen_like.core_sim.world import MID_APPEND
from raftlog.messages import AppendEntries, AppendEntriesReply, Message, RequestVoteReply
from raftlog.types import Role, SoftState

_SHOTS = 6


class Triggers:
    """Observes the world's events and injects faults at the chosen moments."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.world = world = faults.world
        self.rng = random.Random(f"{world.seed}/triggers")
        self.shots = dict.fromkeys((name for name, _ in world.knobs.triggers), _SHOTS)
        self.chance = dict(world.knobs.triggers)
        names = self.chance.keys()
        if names & {"crash_after_vote", "late_votes", "crash_after_commit"}:
            world.on_send.append(self._on_send)
        if names & {"newborn_crash", "newborn_isolate"}:
            world.on_role.append(self._on_role)
        if names & {"cut_uncommitted", "delay_acks", "crash_mid_append"}:
            world.on_receive.append(self._on_receive)
        world.on_receive.append(self._mid_append_once)

    def _fires(self, name: str) -> bool:
        chance = self.chance.get(name)
        if chance is None or not self.faults.active or not self.shots[name] or self.rng.random() >= chance:
            return False
        self.shots[name] -= 1
        self.faults.kinds.add(name)
        self.world.seen[f"trigger {name}"] += 1
        self.world.tell(f"trigger {name}")
        return True

    def _soon(self, ticks: float) -> int:
        return int(self.rng.random() * ticks * TICK_US)

    def _strike(self, machine: CoreMachine, starts: int, down_us: int) -> None:
        if self.faults.active and machine.up and machine.starts == starts:
            self.faults.bounce(machine, down_us)

    def _bounce_soon(self, machine: CoreMachine, within: float, down: float) -> None:
        self.world.at(self._soon(within), self._strike, machine, machine.starts, self._soon(down))

    # -- occasions

    def _mid_append_once(self, machine: CoreMachine, message: Message) -> None:
        """Crashes a member between an append and its acknowledgement, so that every run has at least one such crash."""
        if self.world.seen[MID_APPEND] or not self.faults.active:
            self.world.on_receive.remove(self._mid_append_once)
        elif self.faults.begun >= 3 and isinstance(message, AppendEntries) and machine.disk.holds_unsynced_entries:
            self.faults.bounce(machine, self._soon(5))

    def _on_send(self, machine: CoreMachine, message: Message) -> None:
        if isinstance(message, RequestVoteReply) and message.granted and not message.pre_vote:
            if self._fires("crash_after_vote"):
                self.world.seen["vote granted, then crash"] += 1
                self._bounce_soon(machine, 1, 2)
            if self._fires("late_votes"):
                # Delivers the same vote a second time, when a later term may have begun.
                self.world.at(self._soon(30), self._vote_again, message)
        elif (
            isinstance(message, AppendEntries)
            and message.entries
            and machine.raw.commit_index > message.commit_index
            and self._fires("crash_after_commit")
        ):
            self._bounce_soon(machine, 0.2, 15)

    def _vote_again(self, message: Message) -> None:
        candidate = self.world.machines[message.to_id]
        if not self.faults.active:
            return
        if candidate.up and not candidate.paused and candidate.raw.role is not Role.LEADER:
            candidate.act(candidate.raw.campaign)
            if candidate.up:
                self.world.post(message, 0)

    def _on_role(self, machine: CoreMachine, soft: SoftState) -> None:
        if soft.role is not Role.LEADER:
            return
        if self._fires("newborn_crash"):
            self._bounce_soon(machine, 1, 25)
        if self._fires("newborn_isolate"):
            self.world.at(self._soon(1), self.faults.isolate, machine, self.faults.lasts())

    def _on_receive(self, machine: CoreMachine, message: Message) -> None:
        if isinstance(message, AppendEntries) and message.entries:
            if self._fires("crash_mid_append"):
                self._bounce_soon(machine, 0.1, 5)
            leader = self.world.machines[message.from_id]
            if leader.up and leader.raw.last_index > leader.raw.commit_index and self._fires("cut_uncommitted"):
                self.world.seen["leader cut off with an uncommitted suffix"] += 1
                self.faults.isolate(leader, self.faults.lasts() * 2)
        elif isinstance(message, AppendEntriesReply) and self._fires("delay_acks"):
            others = [node for node in self.world.machines if node != machine.id]
            self.faults.delay([(node, machine.id) for node in others], self._soon(30), self.faults.lasts())
