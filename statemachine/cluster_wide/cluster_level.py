"""The level of the cluster: which commands, rows and entries its log may have (docs/adr/0094)."""

from __future__ import annotations

from typing import Annotated, Self

from msgspec import Meta

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE, why_above
from statemachine.commands import Command, CommandResult, done
from statemachine.family import Families, Family, Reads, applies, family_of
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.row_format import check_level
from statemachine.rows.write_batch import Stage


class Finalize(Command, tag="finalize", frozen=True):
    """Raises the level of the cluster from this entry on. The level never goes down."""

    level: Annotated[int, Meta(ge=BASELINE, le=keys.U32_MAX)]


class ClusterLevel(Family):
    """The level of the cluster, a row of `meta`. Any thread may read `level`."""

    ROWS = ((META, meta_keys.LEVEL_KEY),)

    def __init__(self, kv: KV, known: int) -> None:
        """`known`: the highest level that this version knows. Raises KVError if the stored level is above it."""
        self.level = self._staged = check_level(kv, known)
        self._known = known
        self.changed: bool = False

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes the family of a state; raises KVError as its constructor does."""
        return cls(families.kv, families.known_level)

    def staged(self) -> int:
        """Returns the level, with the changes of the batch being applied."""
        return self._staged

    @applies(Finalize)
    def finalize(self, stage: Stage, command: Finalize) -> CommandResult:
        """Raises the level; a level that the cluster has already changes nothing. The result's value is the level
        afterwards. Raises InvariantViolationError, which stops the node, if this version does not know the level."""
        level = command.level
        if level > self._known:
            raise InvariantViolationError("\n".join(why_above("the log", level, self._known)))
        if level > self._staged:
            self._staged, self.changed = level, True
            stage.put(META, meta_keys.LEVEL_KEY, keys.U32.pack(level))
        return done(self._staged)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.level, self.changed = self._staged, False


class LevelReads(Reads):
    """Read access to the cluster's level in a state."""

    _level = family_of(ClusterLevel)

    @property
    def level(self) -> int:
        """The level of the cluster: its log may contain commands up to this level (`Command.LEVEL`)."""
        return self._level.level
