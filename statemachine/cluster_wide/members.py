"""The members of the cluster according to the log, and the membership event that an operator has acknowledged."""

from __future__ import annotations

from raftlog import membership as memberships
from raftlog.membership import Membership
from raftlog.types import Entry, EntryType
from statemachine.commands import Command, CommandResult, NumberFrom1, done, not_found
from statemachine.family import Family, Reads, applies, family_of, takes
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage


class Acknowledge(Command, tag="acknowledge", frozen=True):
    """Acknowledges the MEMBERSHIP entry at that index for an operator, which ends its alarm."""

    index: NumberFrom1


class Members(Family):
    """The newest MEMBERSHIP entry that was applied. Readers see an immutable value, which is replaced when it
    changes."""

    ROWS = ((META, meta_keys.MEMBERSHIP_KEY), (META, meta_keys.ACKNOWLEDGED_KEY))

    def __init__(self, kv: KV) -> None:
        row = kv.get(META, meta_keys.MEMBERSHIP_KEY)
        self._membership = None if row is None else unpack_row(row)
        row = kv.get(META, meta_keys.ACKNOWLEDGED_KEY)
        self._acknowledged: int = 0 if row is None else keys.U64.unpack(row)[0]
        self.publish()

    @takes(EntryType.MEMBERSHIP)
    def set(self, stage: Stage, entry: Entry) -> None:
        """Stores the members of a MEMBERSHIP entry. Raises FrameError if this version cannot read it."""
        self._membership = memberships.decode(entry)
        stage.put(META, meta_keys.MEMBERSHIP_KEY, keys.U64.pack(entry.index) + entry.payload)

    @applies(Acknowledge)
    def acknowledge(self, stage: Stage, command: Acknowledge) -> CommandResult:
        """Records that an operator acknowledged the newest membership event. The result's value is its index. The
        result is `not_found` if another index was acknowledged."""
        index = command.index
        if self._membership is None or self._membership.index != index:
            return not_found(f"no event at index {index}")
        self._acknowledged = index
        stage.put(META, meta_keys.ACKNOWLEDGED_KEY, keys.U64.pack(index))
        return done(index)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.membership = self._membership
        self.acknowledged = self._acknowledged


class MemberReads(Reads):
    """Read access to what a state holds about the members."""

    _members = family_of(Members)

    @property
    def membership(self) -> Membership | None:
        """The newest MEMBERSHIP entry that was applied; None as long as the members are those of GENESIS, the first
        entry."""
        return self._members.membership

    @property
    def acknowledged(self) -> int:
        """Index of the newest MEMBERSHIP event that an operator acknowledged; 0 for none."""
        return self._members.acknowledged


def unpack_row(row: bytes) -> Membership:
    """Unpacks the value of the `membership` row."""
    return memberships.decode_payload(row[keys.U64.size :], keys.U64.unpack_from(row)[0])
