"""The result of one seed of the simulator."""

from __future__ import annotations

from typing import NamedTuple

from jepsen_like.sim.checks.monitor import Violation

ACKED_MIN, KINDS_MIN = 200, 3
"""The acknowledged operations and kinds of faults from which on a run proves something."""


class SimResult(NamedTuple):
    """The result of one seed: its violations, and counts of operations, faults and rare states."""

    seed: int
    violations: tuple[Violation, ...]
    acked: int
    unknown: int
    faults: dict[str, int]
    between_append_and_ack: int
    leader_changes: int
    events: int
    virtual_s: float
    cpu_s: float
    hash: str
    """Hash of all events in order; equal for runs of the same seed."""
    sometimes: dict[str, int]

    @property
    def counts(self) -> bool:
        """True if the run was hard enough to prove something: enough acknowledged operations and kinds of faults, and
        one crash between an append and its acknowledgement."""
        return self.acked >= ACKED_MIN and len(self.faults) >= KINDS_MIN and self.between_append_and_ack > 0
