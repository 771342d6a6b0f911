"""Defines the cases in which opening may find the state (RocksDB) relative to its log, each with the action and the
reason why the action is safe.

docs/disk-format.md shows them as a table. Every row has a test in tests/cluster/state/test_state_table.py.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from statemachine.broker_state import NOTHING_APPLIED, AppliedMark


class OpeningAction(Enum):
    """The action that opening takes in a case."""

    USE = "used as it is"
    REPLAY = "the log above it is applied again"
    REPLAY_OR_RESTORE = "the log above it is applied again, from a newer checkpoint if there is a sound one"
    RESTORE = "set aside to trash/, replaced by the newest sound checkpoint, the log above that is applied again"
    RESTORE_FROM_PEER = (
        "set aside to trash/ with the checkpoints that may share its fault, replaced by a peer's checkpoint, or, if no "
        "peer provides one, by an own one that other nodes agreed with; the log above that is applied again"
    )
    REFUSE = "refused, nothing is changed: raftmq rebuild DIR --plan"


class StateCase(Enum):
    """The rows of the table, in its order: (the case, the action, why the action is safe)."""

    NEWER = (
        "the state has applied entries above the end of the log",
        OpeningAction.REFUSE,
        "the log lost durable entries, or log or state was put back from another point in time: an operator decides",
    )
    LOG_EMPTY = (
        "the state has rows, but the log contains only GENESIS",
        OpeningAction.REFUSE,
        "the log of this node is gone; the rows are the only trace of its content, so they stay where they are",
    )
    WRONG_ROWS = (
        "STATE_SUSPECT: the state contains wrong rows",
        OpeningAction.RESTORE_FROM_PEER,
        "a CRC proves bytes, not rows: a peer's rows must add up to its sums, and the node's own rows count only up to "
        "the last entry at which other nodes had the same sums",
    )
    SUSPECT = (
        "STATE_SUSPECT: the last run found damage in the state",
        OpeningAction.RESTORE,
        "every file of the checkpoint has the CRC recorded when it was made, and its last entry is in this log",
    )
    CORRUPT = (
        "the state does not open, or cannot be read",
        OpeningAction.RESTORE,
        "every file of the checkpoint has the CRC recorded when it was made, and its last entry is in this log",
    )
    MISSING = (
        "there is a log but no state",
        OpeningAction.RESTORE,
        "every file of the checkpoint has the CRC recorded when it was made, and its last entry is in this log",
    )
    INSTALLED = (
        "a snapshot has replaced the log, which now begins above what the state has applied",
        OpeningAction.RESTORE,
        "the checkpoint was fetched with the log: every file has the CRC of the manifest, the rows add up to the sums, "
        "and its last entry is in this log",
    )
    OLDER_THAN_LOG = (
        "the state ends before the oldest entry that is still in the log",
        OpeningAction.RESTORE,
        "this node no longer has the entries in between, so only a newer checkpoint joins the log without a gap",
    )
    OTHER_LOG = (
        "the last applied entry is not the one that the log has at that index",
        OpeningAction.REFUSE,
        "the rows come from another log, or this log was put back from elsewhere: an operator decides which counts",
    )
    LOST_ROWS = (
        "the state has applied less than RUN recorded as synced",
        OpeningAction.REPLAY_OR_RESTORE,
        "rows and applied index are written in the same batches and RocksDB drops only a suffix of them, so this is a "
        "complete earlier state; what it lost is in the log",
    )
    NEW = (
        "no state, and the log contains only GENESIS",
        OpeningAction.USE,
        "nothing was ever applied",
    )
    BEHIND = (
        "the last applied entry is in the log, and entries follow it",
        OpeningAction.REPLAY,
        "rows and applied index are written in the same batches, so exactly the entries above it are missing",
    )
    FITS = (
        "the last applied entry is the last of the log",
        OpeningAction.USE,
        "nothing is missing",
    )

    @property
    def what(self) -> str:
        """The case in words."""
        return self.value[0]

    @property
    def done(self) -> OpeningAction:
        """The action that opening takes in this case."""
        return self.value[1]

    @property
    def why(self) -> str:
        """The reason why the action is safe."""
        return self.value[2]


ALARMING = frozenset(
    {
        StateCase.WRONG_ROWS,
        StateCase.SUSPECT,
        StateCase.CORRUPT,
        StateCase.MISSING,
        StateCase.OLDER_THAN_LOG,
        StateCase.LOST_ROWS,
    }
)
"""Cases for which the node raises an alarm although it goes on."""


class OpeningFacts(NamedTuple):
    """The findings on which the choice of a case depends."""

    log_first: int
    """Index of the oldest entry in the log."""
    log_last: int
    synced: int = -1
    """The applied index that RUN knows to be synced. If it is above `log_last`, the log has lost entries, and the
    node's vote is withheld."""
    suspect: bool = False
    wrong_rows: bool = False
    """True if the state is suspect for another reason than damaged bytes."""
    exists: bool = True
    damaged: bool = False
    """True if the state does not open or cannot be read. `mark` and `of_this_log` then have their defaults, as if no
    state existed."""
    mark: AppliedMark = NOTHING_APPLIED
    installed: bool = False
    """True if this opening has replaced the log by that of a snapshot."""
    of_this_log: bool | None = None
    """True if the log has the state's last entry at its index; None if the log cannot tell (trimmed, damaged, none
    applied)."""


def classify(facts: OpeningFacts) -> StateCase:
    """Returns the case of the table that fits the facts."""
    known = facts.exists and not facts.damaged
    applied = facts.mark.index if known else -1
    if applied > facts.log_last:
        return StateCase.NEWER if facts.log_last > 0 else StateCase.LOG_EMPTY
    if facts.suspect:
        return StateCase.WRONG_ROWS if facts.wrong_rows else StateCase.SUSPECT
    if facts.damaged:
        return StateCase.CORRUPT
    if not facts.exists:
        return StateCase.NEW if facts.log_last <= 0 and facts.synced <= 0 else StateCase.MISSING
    if applied + 1 < facts.log_first:
        return StateCase.INSTALLED if facts.installed else StateCase.OLDER_THAN_LOG
    if facts.of_this_log is False:
        return StateCase.OTHER_LOG
    if applied < min(facts.synced, facts.log_last):
        return StateCase.LOST_ROWS
    return StateCase.FITS if applied == facts.log_last else StateCase.BEHIND
