"""The operator who sets quotas and takes them away while clients send (docs/adr/0115).

Nothing is checked here: what is held and then sent, refused, or passed on to the next leader, is judged like every
other send. All quotas are gone before the run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jepsen_like.sim.clients.client_machines import TOPIC
from jepsen_like.sim.options import Options, stream
from statemachine.access.quotas import SetQuotas
from statemachine.levels import QUOTAS_LEVEL

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine
    from statemachine.broker_state import BrokerState

LOOKS_EVERY_S: Final = 0.5
CHANGES_P: Final = 0.4
SUBJECTS: Final = (f"topic={TOPIC}", "topic=*", "address=*", "user=*", f"user=*,topic={TOPIC}")
LIMITS: Final = (
    {"send_messages": 1},
    {"send_messages": 5},
    {"send_messages": 30},
    {"send_messages": 200},
    {"send_bytes": 2_000},
    {"send_bytes": 30_000, "send_messages": 60},
    None,
)
OF_CLIENTS: Final = ({"requests": 1}, {"requests": 4, "send_messages": 100})
OF_TOPICS: Final = ({"backlog_bytes": 3_000}, {"backlog_bytes": 60_000, "send_bytes": 30_000})


class QuotaOperator:
    """The operator."""

    def __init__(
        self,
        options: Options,
        leader: Callable[[], Machine | None],
        soon: Callable[[float, Callable[..., None]], object],
    ) -> None:
        """`soon`: calls a function after that many seconds."""
        self._rng = stream(options.seed, "quotas")
        self._leader, self._soon = leader, soon
        self.stopped = False

    def start(self) -> None:
        """Starts the operator's work."""
        if not self.stopped:
            if self._rng.random() < CHANGES_P:
                subject = self._rng.choice(SUBJECTS)
                more = OF_TOPICS if subject.startswith("topic=") else OF_CLIENTS if "topic=" not in subject else ()
                self.set(subject, self._rng.choice((*LIMITS, *more)))
            self._soon(LOOKS_EVERY_S, self.start)

    def finish(self) -> bool:
        """Takes all quotas away; returns True when there is none. Called again and again."""
        self.stopped = True
        state = self._state()
        if state is None:
            return False
        if left := list(state.quotas.by_subject):
            self._propose(SetQuotas([(subject, None) for subject in left], 1, "the operator"))
        return not left

    def _state(self) -> BrokerState | None:
        leader = self._leader()
        return leader.node.state if leader is not None and leader.node is not None else None

    def set(self, subject: str, limits: dict[str, int] | None) -> None:
        """Sets a quota, or takes it away, if there is a leader."""
        state = self._state()
        if state is not None and state.level >= QUOTAS_LEVEL:
            self._propose(SetQuotas([(subject, limits)], 1, "the operator"))

    def _propose(self, command: SetQuotas) -> None:
        leader = self._leader()
        if leader is not None and leader.node is not None and leader.process is not None and not leader.process.paused:
            node = leader.node
            leader.process.run(lambda: node.services.propose([command], lambda _: None, author="the operator"))
