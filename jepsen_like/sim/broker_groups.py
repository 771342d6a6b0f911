"""The operator who adds a second group of brokers, drains it, and changes the topics and consumer groups that it copies
(docs/adr/0108, 0113).

`sim/checks/truth_check.py` keeps a copy as that group would, also in runs with real nodes of the group (`sim/groups`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.truth_check import TruthCheck
from jepsen_like.sim.options import Options, stream
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup
from statemachine.cluster_wide.truth_journal import ForgetEnds
from statemachine.consuming.groups import PutGroup
from statemachine.levels import DRAINS_LEVEL, GROUPS_LEVEL
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.truth import JournalNames

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

LOOKS_EVERY_S = 0.1
SLICE_NAMES = 2
"""Number of names that one step of completing the journal adds: so few that a leader may die between two steps."""
NAMES = 3
DRAIN_P = 0.15
"""Probability that the operator begins or ends a drain when it acts, which it does every LOOKS_EVERY_S."""
SECOND = AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3))


class BrokerGroupsOperator:
    """Proposes commands about groups of brokers and about what they copy. Its attribute `check` copies the first
    group's state and compares the copy."""

    def __init__(
        self,
        options: Options,
        leader: Callable[[], Machine | None],
        soon: Callable[[float, Callable[..., None]], object],
        report: Report,
    ) -> None:
        """`soon`: calls a function after that many seconds."""
        self._rng = stream(options.seed, "broker groups")
        self._drains = stream(options.seed, "drained groups") if options.drains else None
        self._leader, self._soon = leader, soon
        self.check = TruthCheck(report)
        self.stopped = False
        self.confirmed: Callable[[], int] = lambda: self.check.copy.truth.copied
        """Function that returns the version up to which the second group has surely copied the journal."""

    def start(self) -> None:
        """Starts the operator's work."""
        self._look()

    def _look(self) -> None:
        if not self.stopped:
            self._act()
            self._soon(LOOKS_EVERY_S, self._look)

    def add(self) -> bool:
        """Takes the next step to add the group and to complete the beginning of the journal; returns True when both are
        done. The caller repeats it until then.
        """
        state = self._state()
        if state is None or not state.truth_journal.is_ready:
            self._act(changes=False)
            return False
        return True

    def finish(self) -> bool:
        """Makes no further changes and continues as `add` does; returns True when the copy has been compared at the
        journal's newest version. The caller repeats it until then.
        """
        self.stopped = True
        state = self._state()
        return self.add() and state is not None and self.check.compared >= state.truth_journal.version

    def _state(self) -> BrokerState | None:
        leader = self._leader()
        return leader.node.state if leader is not None and leader.node is not None else None

    def _act(self, *, changes: bool = True) -> None:
        leader = self._leader()
        if leader is None or leader.node is None or leader.process is None or leader.process.paused:
            return
        node, state = leader.node, leader.node.state
        if state.level < GROUPS_LEVEL:
            return
        run = [*self._changes(state), *self._drain(state)] if changes else []
        if not state.truth_journal.is_kept:
            run += [SECOND] if not changes or self._rng.random() < 0.2 else []
        elif not state.truth_journal.is_ready:
            run.append(JournalNames(SLICE_NAMES))
        elif changes and self._rng.random() < 0.1:
            run.append(ForgetEnds(min(self.check.copy.truth.copied, self.confirmed())))
        if run:
            leader.process.run(lambda: node.serving.services.propose(run, lambda _: None, author="the operator"))

    def _drain(self, state: BrokerState) -> list[Command]:
        """Draws a command that starts or ends a drain of the second group, whether or not a drain is in progress.
        Mostly returns [].
        """
        if self._drains is None or state.level < DRAINS_LEVEL or self._drains.random() >= DRAIN_P:
            return []
        return [DrainBrokerGroup(SECOND.number, self._drains.random() < 0.6)]

    def _changes(self, state: BrokerState) -> list[Command]:
        rng = self._rng
        topic, group = f"placed-{rng.randrange(NAMES)}", f"placed-group-{rng.randrange(NAMES)}"
        fields: dict[str, Any] = {"name": topic, "perm": rng.choice((2, 4, 6))}
        if state.truth_journal.is_kept:
            fields["place"] = [[rng.choice((1, 2)), 1, rng.randint(1, 2)]]
        draws: list[list[Command]] = [
            [CreateTopic(fields, if_absent=False)],
            [CreateTopic(fields, if_absent=False), PutGroup({"name": group}, if_absent=True)],
            [DeleteTopic(topic)],
            [DeleteTopic(topic), CreateTopic(fields, if_absent=False)],
            [PutGroup({"name": group, "retry_max_times": rng.randrange(9)}, if_absent=False)],
            [DeleteGroup(group, clean_offsets=rng.random() < 0.5)],
        ]
        return list(rng.choice(draws))
