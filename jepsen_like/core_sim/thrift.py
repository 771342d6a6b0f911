"""`replication.thrifty` in the simulated group: leaders hold appends back, with timers in virtual time. A check
examines what they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from jepsen_like.core_sim.machine import CoreMachine
from jepsen_like.core_sim.violation import PromiseBroken
from jepsen_like.invariants.held_appends import HeldCheck
from raftlog.core.held_appends import HeldAppends, Outside
from raftlog.errors import InvariantViolationError
from raftlog.messages import AppendEntriesReply, Message
from raftlog.types import NodeId

_OUTSIDE = Outside(
    plain=lambda index: True, in_haste=lambda: False, slow=lambda node: False, preferred=lambda: frozenset()
)


class TimedNetwork(Protocol):
    """The part of the world that Thrift uses: sending messages, and scheduling in virtual time."""

    now: int
    seen: Counter[str]

    def at(self, delay: int, event: Callable[..., None], *arguments: Any) -> None:
        """Schedules `event` after `delay` microseconds."""

    def dispatch(self, machine: CoreMachine, message: Message) -> None:
        """Sends the message over the network."""


class _Run(NamedTuple):
    """The held appends of a member since its last start, and their check."""

    starts: int
    appends: HeldAppends
    check: HeldCheck


class Thrift:
    """Holds appends back for the members of a world. If `on` is False, it holds nothing."""

    def __init__(self, world: TimedNetwork, *, on: bool) -> None:
        self._world = world
        self._on = on
        self._runs: dict[NodeId, _Run] = {}
        self._timers: dict[NodeId, float] = {}
        """Member -> the virtual time in milliseconds at which it next looks at what it holds."""

    def _run(self, machine: CoreMachine) -> _Run:
        run = self._runs.get(machine.id)
        if run is None or run.starts != machine.starts:
            run = self._runs[machine.id] = _Run(machine.starts, HeldAppends(machine.raw.raft, _OUTSIDE), HeldCheck())
            self._timers.pop(machine.id, None)
        return run

    @property
    def _now_ms(self) -> float:
        return self._world.now / 1000

    def leave(self, machine: CoreMachine, message: Message) -> Sequence[Message]:
        """Returns the messages to send now that the core has produced `message`: it may be held, and held ones may go
        with it.
        """
        if not self._on:
            return (message,)
        run = self._run(machine)
        leaving = run.appends.leave((message,), self._now_ms)
        self._wait(machine, run)
        return leaving

    def replied(self, machine: CoreMachine, message: Message) -> None:
        """Passes an acknowledgement that reaches the member on to its held appends."""
        if self._on and type(message) is AppendEntriesReply:
            self._run(machine).appends.on_reply(message, self._now_ms)

    def look(self, machine: CoreMachine) -> None:
        """Sends the held messages that are due after an event of the member, and checks those that stay held. Raises
        PromiseBroken.
        """
        if not self._on or not machine.up:
            return
        run = self._run(machine)
        for message in run.appends.look(self._now_ms):
            self._world.dispatch(machine, message)
        self._world.seen["append held back"] += bool(run.appends.held)
        if machine.monitor is not None:
            try:
                run.check.look(run.appends, machine.raw.raft, self._now_ms, self._timers.get(machine.id))
            except InvariantViolationError as error:
                raise PromiseBroken("invariant", str(error)) from error

    def _wait(self, machine: CoreMachine, run: _Run) -> None:
        if not run.appends.held or machine.id in self._timers:
            return
        due_ms = self._timers[machine.id] = run.appends.wake_ms(self._now_ms)
        delay_us = max(1, round(1000 * due_ms) - self._world.now)
        self._world.at(delay_us, self._on_timer, machine, run)

    def _on_timer(self, machine: CoreMachine, run: _Run) -> None:
        if machine.starts != run.starts or not machine.up:
            return
        self._timers.pop(machine.id, None)
        if not machine.paused:
            for message in run.appends.look(self._now_ms):
                self._world.dispatch(machine, message)
        if machine.paused and run.appends.held:  # like a stopped process, whose timer fires when it continues
            self._timers[machine.id] = self._now_ms
            self._world.at(1000, self._on_timer, machine, run)
        self._wait(machine, run)
