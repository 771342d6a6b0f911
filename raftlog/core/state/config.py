"""The settings of one Raft member: one validated value, passed in once. Times are in ticks, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.frame import FRAME_LENGTH_MAX
from raftlog.types import NOBODY, NodeId

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The core's configuration. The driver decides how many milliseconds a tick is."""

    node_id: NodeId
    group_id: int
    election_ticks: int = 10
    """The minimum election timeout in ticks. A follower that hears no leader campaigns after a random
    election_ticks..2*election_ticks-1 ticks. For election_ticks after the leader's last message it ignores campaigns.
    A leader that hears from no majority for election_ticks steps down."""
    heartbeat_ticks: int = 2
    inflight_bytes_max: int = 8 * MIB
    """The most bytes sent to one follower and not yet acknowledged."""
    inflight_messages_max: int = 256
    append_bytes_max: int = 1 * MIB
    """The most bytes of entries in one AppendEntries; a larger entry is sent alone."""
    turn_bytes_max: int = 1 << 60
    """The most bytes of entries for all followers together in one turn of the driver (`RawNode.set_clock`); a single
    message may exceed it."""
    cache_bytes_max: int = 32 * MIB
    """The bytes of recent entries kept in memory; older ones are read through the StoredLog. Entries that are not on
    the node's own disk yet are kept whatever their size."""
    apply_bytes_max: int = 8 * MIB
    """The most bytes of committed entries in one Ready; a larger entry is given out alone."""
    applying_bytes_max: int = 32 * MIB
    """The bytes given out for apply and not reported by `applied` yet, above which a Ready contains no committed
    entries."""
    segment_size: int = 1024 * MIB
    """The length in bytes at which the leader starts a new segment file (FLAG_ROLL); GENESIS sets it for the whole
    cluster."""
    pre_vote: bool = True
    check_quorum: bool = True

    def validate(self) -> None:
        """Checks all fields. Raises ValueError, which names the field, its value and the accepted range."""
        if self.node_id <= NOBODY:
            raise ValueError(f"node_id is {self.node_id}: give a positive integer (0 means nobody)")
        if self.heartbeat_ticks < 1:
            raise ValueError(f"heartbeat_ticks is {self.heartbeat_ticks}: give at least 1")
        if self.election_ticks <= self.heartbeat_ticks:
            raise ValueError(
                f"election_ticks is {self.election_ticks}: give more than heartbeat_ticks ({self.heartbeat_ticks}), "
                "5 to 10 times as many"
            )
        for name in (
            "inflight_bytes_max",
            "inflight_messages_max",
            "append_bytes_max",
            "turn_bytes_max",
            "cache_bytes_max",
            "apply_bytes_max",
            "applying_bytes_max",
            "segment_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.append_bytes_max > FRAME_LENGTH_MAX:
            raise ValueError(f"append_bytes_max is {self.append_bytes_max}: give at most {FRAME_LENGTH_MAX}")
