"""The families of rows, all commands that they apply, and how these are read from entries.

A new family is one line in `FAMILIES`. A new command is its class and the method of a family that `applies` it.
"""

from __future__ import annotations

from typing import Final

from raftlog.types import EntryType
from statemachine.access.users import Access
from statemachine.cluster_level import ClusterLevel
from statemachine.commands import CommandReader, Found
from statemachine.consume_queue import ConsumeQueues
from statemachine.consuming.consumer_offsets import ConsumerOffsets
from statemachine.consuming.groups import Groups
from statemachine.consuming.offset_resets import OffsetResets
from statemachine.consuming.queue_locks import QueueLocks
from statemachine.dedup import Dedup
from statemachine.delivery.half_messages import HalfMessages
from statemachine.delivery.staged_writes import StagedWrites
from statemachine.delivery.timers import Timers
from statemachine.family import Family
from statemachine.members import Members
from statemachine.message_index import MessageIndex
from statemachine.removal_slices import RemovalSlices
from statemachine.removals import Removals
from statemachine.settings import Settings
from statemachine.tier import TierSegments
from statemachine.topics import Topics
from statemachine.trim import TrimState

FAMILIES: Final[tuple[type[Family], ...]] = (
    Topics,
    Removals,
    RemovalSlices,
    Groups,
    ConsumerOffsets,
    QueueLocks,
    OffsetResets,
    ClusterLevel,
    Dedup,
    MessageIndex,
    Timers,
    HalfMessages,
    StagedWrites,
    TierSegments,
    Settings,
    Access,
    Members,
    TrimState,
    ConsumeQueues,
)
"""All families, in the order in which they publish: a deleted topic disappears before its rows are hidden, and queues
grow last."""

_READER: Final = CommandReader([kind for family in FAMILIES for kind in family.COMMANDS])
COMMANDS: Final = _READER.kinds
"""The classes of all commands by their names."""
unpack: Final = _READER.unpack
unpack_change: Final = _READER.unpack_change


def in_entry(kind: int, payload: bytes) -> list[Found]:
    """Returns the commands of a COMMAND or CHANGE entry; [] for another kind. Raises ValueError."""
    if kind == EntryType.CHANGE:
        return unpack_change(payload)[1]
    return unpack(payload) if kind == EntryType.COMMAND else []
