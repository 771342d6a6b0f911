"""The end of the second group: it is drained, and retires. Its log is closed while a client, which a quota may slow
down, still sends. Meanwhile its leader is killed (docs/adr/0113)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.flow.quota_limits import SEND_MESSAGES
from jepsen_like.sim.clients.client_machines import ClientHost
from jepsen_like.sim.groups.leaving_phase import NUMBER, Group, LeavingPhase
from jepsen_like.sim.groups.placed_clients import TOPIC
from statemachine.access.quotas import SetQuotas
from statemachine.cluster_wide.broker_groups import (
    AddBrokerGroup,
    BrokerGroup,
    DrainBrokerGroup,
    GroupState,
    RetireBrokerGroup,
)
from statemachine.cluster_wide.closed_log import CloseBrokerGroup

if TYPE_CHECKING:
    from cluster.node.node import Node
    from cluster.replication.outcome import ProposeResult
    from jepsen_like.sim.machines.loop import SimLoop
    from jepsen_like.sim.machines.machine import Machine
    from jepsen_like.sim.options import Options
    from statemachine.broker_state import BrokerState

SENDS_S = 4.0
"""Virtual seconds of the drain in which the client still sends."""
DRAINED_S, RETIRED_S, ENDED_S = 30.0, 120.0, 30.0
"""Virtual seconds: DRAINED_S until the group must be drained, RETIRED_S until it must have retired on all nodes,
ENDED_S for each of the other steps, such as a node of the group that starts again and must end.
"""
CLOSE_P, CANCEL_P, KILL_P, REST_P = 0.3, 0.03, 0.05, 0.3
"""Probabilities per look: CLOSE_P, of an attempt to close the log; CANCEL_P, that the drain begins or ends; KILL_P,
that the leader is killed, which happens once; REST_P, that the client pauses. Without pauses the log would hardly ever
be closed.
"""
QUOTA_P, RATES = 0.5, (3, 30)
"""QUOTA_P: probability of a quota on the client's sends. RATES: its possible values, in messages per second."""
BEHIND = (0, 1, 2, 4, 9)
"""Numbers of entries by which the index that an attempt to close the log names may be behind the applied index."""


class Retirement(LeavingPhase):
    """The phase in which the second group is drained and retires."""

    CHECKER = "retirement"

    def __init__(
        self,
        group: Group,
        options: Options,
        loop: SimLoop,
        first: Callable[[], Machine | None],
        host: ClientHost,
    ) -> None:
        super().__init__(group, options, loop, first, host)
        self._ends_s = 0.0
        self._has_started = False
        self._before: dict[int, BrokerGroup] = {}
        self._asked_at = 0
        self.closes = 0
        """Number of attempts to close the log that were refused, because a message or another drain came between."""
        self._looks: list[int] = []
        """Indexes named by the attempts that may have closed the log: all attempts but the refused ones."""

    # --- the phase ---------------------------------------------------------------------------------------------------

    def play(self, wait: Callable[..., bool]) -> bool:
        """Plays the phase; returns False if something is wrong."""
        if self._options.quotas and self._rng.random() < QUOTA_P:
            limits = {SEND_MESSAGES: self._rng.choice(RATES)}
            self._tell_first([SetQuotas([(f"topic={TOPIC}", limits)], 1, "the operator")])
        self.sender.start()
        self._ends_s = self._loop.now + SENDS_S
        return (
            wait(self._drains, DRAINED_S, "group 2 does not drain", self.CHECKER)
            and wait(self._retires, RETIRED_S, "group 2 does not retire", self.CHECKER)
            and wait(self._has_stopped, ENDED_S, "a client waits for ever")
            and self._judge()
            and wait(self._asks_again, ENDED_S, "the first group has no leader", self.CHECKER)
            and wait(self._is_decided, ENDED_S, "the first group decides nothing", self.CHECKER)
            and wait(self._ends, ENDED_S, "a node of a group that has retired starts again", self.CHECKER)
        )

    def _drains(self) -> bool:
        leader = self._leader()
        if leader is not None and _state_in(leader.state) is GroupState.DRAINING:
            return True
        self._tell_first([DrainBrokerGroup(NUMBER, draining=True)])
        return False

    def _retires(self) -> bool:
        """Takes random steps: begins or cancels the drain, closes the log, kills the leader. Returns True once the
        first group's leader and all nodes of the second group know that the group has retired."""
        now, rng, leader = self._loop.now, self._rng, self._leader()
        self.sender.stopped = self.sender.stopped or now >= self._ends_s
        for node in self._group.states.running():
            if _state_in(node.state) is GroupState.RETIRED and not node.state.closed_log.is_closed:
                self._report(self.CHECKER, f"node {node.config.node.id} has retired, and its log is not closed")
        if leader is not None and not leader.state.closed_log.is_closed:
            if rng.random() < CANCEL_P and now < self._ends_s:
                self._tell_first([DrainBrokerGroup(NUMBER, draining=rng.random() < 0.5)])
            elif _state_in(leader.state) is GroupState.ACTIVE:
                self._tell_first([DrainBrokerGroup(NUMBER, draining=True)])
            closes = rng.random() < CLOSE_P
            if closes:
                self._close(leader)
            self.sender.rests = rng.random() < REST_P and not closes
        if not self._has_killed and rng.random() < KILL_P:
            self._kill()
        first = self._tell_first([])
        nodes = self._group.states.running()
        return (
            first is not None
            and all(_state_in(state) is GroupState.RETIRED for state in (first, *(node.state for node in nodes)))
            and len(nodes) == len([machine for machine in self._group.machines.values() if not machine.has_retired])
        )

    def _close(self, leader: Node) -> None:
        row = leader.state.broker_groups.by_number[NUMBER]
        checked = max(0, leader.state.applied.index - self._rng.choice(BEHIND))
        self._looks.append(checked)

        def told(result: ProposeResult) -> None:
            for each in result.results:
                end = each.value
                if not each.ok:
                    self.closes += 1
                    self._looks.remove(checked)
                elif end.since_ms == row.since_ms and end.last > max(self._looks):
                    # An attempt that finds the log closed gets the end at which another attempt closed it.
                    what = f"the log was closed after a look at entry {checked}, with messages in entry {end.last}"
                    self._report(self.CHECKER, what)

        self._tell(self._group.machines[leader.node_id], [CloseBrokerGroup(row.since_ms, checked, force=True)], told)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _asks_again(self) -> bool:
        """Proposes to the first group all changes that could bring the retired group back; returns True once there was
        a leader to ask.
        """
        state = self._tell_first([])
        if state is None:
            return False
        self._before = dict(state.broker_groups.by_number)
        name = self._before[NUMBER].name
        again = [DrainBrokerGroup(NUMBER, draining) for draining in (False, True)]
        others = [AddBrokerGroup(NUMBER, "another", None), AddBrokerGroup(NUMBER + 1, name, None)]
        self._tell_first([*again, *others, RetireBrokerGroup(NUMBER)])
        self._asked_at = state.applied.index
        return True

    def _is_decided(self) -> bool:
        """Returns True once the first group has decided the changes that `_asks_again` proposed. Reports a violation if
        the retired group came back."""
        state = self._tell_first([])
        if state is None or state.applied.index <= self._asked_at:
            return False
        if dict(state.broker_groups.by_number) != self._before:
            what = f"groups were {self._before}, and are {dict(state.broker_groups.by_number)}"
            self._report(self.CHECKER, f"a group that has retired comes back: {what}")
        return True

    def _ends(self) -> bool:
        """Restarts the node with the highest id, unless it has already ended because its group has retired. Returns
        True once it has ended for that reason."""
        machine = self._group.machines[max(self._group.machines)]
        if not machine.has_retired and not self._has_started:
            self._has_started = True
            machine.kill(power=False)
            machine.start()
        return machine.has_retired


def _state_in(state: BrokerState) -> GroupState:
    return state.broker_groups.by_number[NUMBER].state
