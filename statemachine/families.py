"""The one list of the families of rows. To add a family, add one line to `FAMILIES`. If callers are to read it by an
attribute of the state, and not by `state[Family]`, add its class of reads to `StateReads`.
"""

from __future__ import annotations

from typing import Final

from statemachine.access.learnt_limits import Learnt, LearntReads
from statemachine.access.quotas import QuotaReads, Quotas
from statemachine.access.revocations import RevocationReads, Revocations
from statemachine.access.users import Access, AccessReads
from statemachine.cluster_wide.broker_groups import BrokerGroups
from statemachine.cluster_wide.closed_log import ClosedLog, ClosedLogReads
from statemachine.cluster_wide.cluster_level import ClusterLevel, LevelReads
from statemachine.cluster_wide.members import MemberReads, Members
from statemachine.cluster_wide.settings import SettingReads, Settings
from statemachine.cluster_wide.truth_journal import TruthJournal
from statemachine.consume_queue import ConsumeQueues
from statemachine.consuming.consumer_offsets import ConsumerOffsets, OffsetReads
from statemachine.consuming.groups import GroupReads, Groups
from statemachine.consuming.offset_resets import OffsetResets, ResetReads
from statemachine.consuming.queue_locks import LockReads, QueueLocks
from statemachine.dedup import Dedup, DedupReads
from statemachine.delivery.half_messages import HalfMessages, HalfReads
from statemachine.delivery.prepared_writes import PreparedReads, PreparedWrites
from statemachine.delivery.staged_writes import StagedWrites, WriteReads
from statemachine.delivery.timers import TimerReads, Timers
from statemachine.family import Family
from statemachine.message_index import IndexReads, MessageIndex
from statemachine.message_rows import MessageRows
from statemachine.queue_view import QueueReads
from statemachine.removal_slices import RemovalSlices
from statemachine.removals import RemovalReads, Removals
from statemachine.tier import TierReads, TierSegments
from statemachine.topics.topics import TopicReads, Topics
from statemachine.trim import TrimReads, TrimState
from statemachine.trimming import Trimming
from statemachine.truth import Truth, TruthReads

FAMILIES: Final[tuple[type[Family], ...]] = (
    Topics,
    Removals,
    RemovalSlices,
    Trimming,
    MessageRows,
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
    PreparedWrites,
    TierSegments,
    Settings,
    Quotas,
    Learnt,
    Access,
    Revocations,
    Members,
    TrimState,
    BrokerGroups,
    ClosedLog,
    TruthJournal,
    Truth,
    ConsumeQueues,
)
"""All families, in the order in which they publish. A deleted topic thus disappears before its rows are hidden, and
queues grow last. The journal of the truth publishes after all families whose names it records."""

LATER_ROWS: Final = tuple(rows for family in FAMILIES for rows in family.LATER_ROWS)
"""The rows of all families that may exist only from a level above the baseline on."""


class StateReads(
    TopicReads,
    QueueReads,
    IndexReads,
    DedupReads,
    GroupReads,
    OffsetReads,
    LockReads,
    ResetReads,
    TimerReads,
    HalfReads,
    WriteReads,
    PreparedReads,
    TrimReads,
    TierReads,
    RemovalReads,
    SettingReads,
    QuotaReads,
    LearntReads,
    AccessReads,
    RevocationReads,
    MemberReads,
    LevelReads,
    TruthReads,
    ClosedLogReads,
):
    """All reads of a state, callable on any thread."""
