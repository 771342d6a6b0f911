"""The operator who sets quotas and takes them away while clients send (docs/adr/0115).

The operator also imports learnt limits (docs/adr/0117), which decide whose sends are refused first in an overload. A
send that waits for a quota is judged like every other send, whether it is then stored, refused, or passed on to the
next leader. `jepsen_like.sim.checks.quota_check` checks the rate. All quotas and limits are gone before the run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cluster.flow.quota_limits import SEND_MESSAGES
from cluster.replication.outcome import Outcome
from jepsen_like.sim.clients.client_machines import TOPIC
from jepsen_like.sim.options import Options, stream
from raftmq_wire.learnt_file import DAY
from statemachine.access.learnt_limits import (
    SWEPT_MAX,
    LearntHead,
    LearntMode,
    PutLearnt,
    SetLearnt,
    SweepLearnt,
    import_of,
)
from statemachine.access.quotas import SetQuotas
from statemachine.levels import QUOTAS_LEVEL

if TYPE_CHECKING:
    from cluster.replication.outcome import ProposeResult
    from jepsen_like.sim.checks.quota_check import QuotaCheck
    from jepsen_like.sim.machines.machine import Machine
    from statemachine.broker_state import BrokerState
    from statemachine.commands import Command

LOOKS_EVERY_S: Final = 0.5
CHANGES_P: Final = (0.1, 0.4)
CHECKED: Final = f"topic={TOPIC}"
IMPORTS_P: Final = 0.15
RATES: Final = (1, 5, 200)
MODES: Final = (LearntMode.ON, LearntMode.ON, LearntMode.SHADOW)
SUBJECTS: Final = (*[CHECKED] * 4, "topic=*", "address=*", "user=*", f"user=*,topic={TOPIC}")
LIMITS: Final = (
    {"send_messages": 1},
    {"send_messages": 5},
    {"send_messages": 30},
    {"send_messages": 200},
    {"send_bytes": 2_000},
    {"send_bytes": 30_000, "send_messages": 60},
    {"pull_messages": 20},
    {"pull_bytes": 5_000, "send_messages": 100},
    None,
)
NO_RATE_P: Final = 0.2
"""Probability that a drawn quota has a limit that is not a rate, if its subject may have such a limit."""
OF_CLIENTS: Final = ({"requests": 1}, {"requests": 4, "send_messages": 100})
OF_TOPICS: Final = ({"backlog_bytes": 3_000}, {"backlog_bytes": 60_000, "send_bytes": 30_000})


class QuotaOperator:
    """Sets, changes and removes quotas and learnt limits at random times. `stopped` is True once the end of the run
    removes them.
    """

    def __init__(
        self,
        options: Options,
        leader: Callable[[], Machine | None],
        soon: Callable[[float, Callable[..., None]], object],
        check: QuotaCheck,
    ) -> None:
        """`soon`: calls a function after that many seconds. `check`: judges the quota of the subject CHECKED."""
        self._rng = stream(options.seed, "quotas")
        self._learns = stream(options.seed, "learnt limits")
        self._more = stream(options.seed, "quotas that are no rates")
        self._leader, self._soon, self.check = leader, soon, check
        self._changes_p = self._rng.choice(CHANGES_P)
        self._asked = 0
        """Number of changes to the quota of CHECKED that were proposed so far."""
        self.stopped = False
        self._has_heard = False
        """True once a change proposed after the stop is committed: no change proposed before it can come any more."""

    def start(self) -> None:
        """Starts the operator's work."""
        if not self.stopped:
            if self._rng.random() < self._changes_p:
                subject, limits = self._rng.choice(SUBJECTS), self._rng.choice(LIMITS)
                more = OF_TOPICS if subject.startswith("topic=") else OF_CLIENTS if "topic=" not in subject else ()
                if more and self._more.random() < NO_RATE_P:
                    limits = self._more.choice(more)
                self.set(subject, limits)
            if self._learns.random() < IMPORTS_P:
                self._import()
            self._soon(LOOKS_EVERY_S, self.start)

    def finish(self) -> bool:
        """Proposes to remove all quotas and learnt limits; returns True when there are none. The caller repeats it
        until then.
        """
        self.stopped = True
        state = self._state()
        if state is None:
            return False
        left = list(state.quotas.by_subject)
        if left or not self._has_heard:
            self.check.end()
            self._asked += 1
            gone = [(subject, None) for subject in left or [CHECKED]]
            self._propose(SetQuotas(gone, 1, "the operator"), self._hear)
        if state.learnt.has_rows:
            self._propose(SetLearnt(None))
            self._propose(SweepLearnt(SWEPT_MAX))
        return self._has_heard and not left and not state.learnt.has_rows

    def _hear(self, result: ProposeResult) -> None:
        self._has_heard |= result.outcome is Outcome.OK

    def _import(self) -> None:
        """Proposes one randomly chosen step of importing learnt limits, or of removing them. Steps of several imports
        are mixed in any order.
        """
        state, rng = self._state(), self._learns
        if state is None or state.level < QUOTAS_LEVEL:
            return
        rate = rng.choice(RATES)
        digest = f"{rate:064x}"[::-1]
        head = LearntHead(digest, 2, rng.choice(MODES), 1, 1, 1, 1 << 50, rng.randrange(9), "the operator")
        number = import_of(digest)
        hours = [rate] * DAY
        step = rng.randrange(6)
        if step <= 1:
            self._propose(PutLearnt(number, [(topic, hours, hours) for topic in (TOPIC, "another")[step:]]))
        elif step <= 3:
            self._propose(PutLearnt(number, [(TOPIC, hours, hours), ("another", hours, hours)]))
            self._propose(SetLearnt(head.row()))
        elif step == 4:
            self._propose(SweepLearnt(1))
        else:
            self._propose(SetLearnt(rng.choice([None, head.row()])))

    def _state(self) -> BrokerState | None:
        leader = self._leader()
        return leader.node.state if leader is not None and leader.node is not None else None

    def set(self, subject: str, limits: dict[str, int] | None) -> None:
        """Proposes limits for a subject; None takes its quota away. Does nothing if there is no leader, or the cluster
        does not have the level that knows quotas."""
        state = self._state()
        if state is not None and state.level >= QUOTAS_LEVEL:
            self._propose(SetQuotas([(subject, limits)], 1, "the operator"), self._judged(subject, limits))

    def _judged(self, subject: str, limits: dict[str, int] | None) -> Callable[[ProposeResult], None]:
        """Returns the function to call with the result of a change of this subject's quota. For CHECKED, ends the
        present check; the function then begins the check of the new rate, if the limits have one, the change succeeded,
        and no later change was proposed.
        """
        rate = 0 if limits is None else limits.get(SEND_MESSAGES, 0)
        if subject != CHECKED:
            return lambda _: None
        self.check.end()
        self._asked += 1
        asked = self._asked

        def changed(result: ProposeResult) -> None:
            if rate and asked == self._asked and result.outcome is Outcome.OK:
                self.check.begin(rate)

        return changed

    def _propose(self, command: Command, done: Callable[[ProposeResult], None] = lambda _: None) -> None:
        leader = self._leader()
        if leader is not None and leader.node is not None and leader.process is not None and not leader.process.paused:
            node = leader.node
            leader.process.run(lambda: node.serving.services.propose([command], done, author="the operator"))
