"""The possible conclusions of a run, and the exit code of each."""

from __future__ import annotations

from enum import Enum

from raftmq_wire.errors import ExitCode


class Conclusion(Enum):
    """The four conclusions of a run. Only `VALID` passes."""

    VALID = "valid"
    """Every checker confirmed its promises, every fault was seen to happen, and the cluster recovered."""
    INVALID = "invalid"
    """A promise was broken; the proofs are in the output."""
    UNKNOWN = "unknown"
    """Nothing is proved either way: a fault had no effect, a replica could not be read, or a checker gave up."""
    UNSUPPORTED = "unsupported"
    """The scenario waits for a feature, or this machine cannot do what it needs; nothing was run."""

    @property
    def exit_code(self) -> int:
        """The exit code: valid 0, invalid 1, unknown 3, unsupported 6. (2 is a wrong command line, 5 a refusal before
        the start.)"""
        return _CODES[self]


UNSUPPORTED_CODE = 6
GATE_CODE = 7
"""Exit code of a valid run that shows less than a full run must show (jepsen_like/live/nemeses/coverage_gates.py)."""
_CODES = {
    Conclusion.VALID: int(ExitCode.OK),
    Conclusion.INVALID: int(ExitCode.FAILED),
    Conclusion.UNKNOWN: int(ExitCode.UNKNOWN),
    Conclusion.UNSUPPORTED: UNSUPPORTED_CODE,
}
