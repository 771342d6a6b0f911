"""What the last start found and did, and the damage that the log knows of, as they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from raftlog.storage.damage import DamagedRange


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """Frames of the log that this node cannot read intact; never served, fetched from a peer."""

    first_position: int
    end_position: int
    first_index: int
    last_index: int
    why: str


def damage_views(ranges: Sequence[DamagedRange]) -> list[DamageView]:
    """The damage that a log knows of, as it is shown."""
    return [
        DamageView(
            first_position=one.first_position,
            end_position=one.end_position,
            first_index=one.first_index,
            last_index=one.last_index,
            why=one.why,
        )
        for one in ranges
    ]


class PreviousRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run before this one, as DATA/RUN tells it. Times in milliseconds since the Unix epoch, 0 if never."""

    ended: Literal["orderly", "process_died", "machine_restarted", "unknown"]
    pid: int
    boot_id: str
    """Hexadecimal; another one than this run's means that the machine was restarted since."""
    started_ms: int
    synced_index: int
    """The last entry whose rows it knew to be on disk; -1 if none."""


class CheckpointTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What is on disk by now. Milliseconds since the Unix epoch, 0 if not in this run."""

    log_flushed_ms: int
    queues_flushed_ms: int
    index_flushed_ms: int
    synced_index: int
    """Everything applied up to here is on disk in all three."""
    checkpoint_index: int
    """Applied index of the newest checkpoint; -1 if there is none."""


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the last start found and did, and why that is safe."""

    clean: bool
    """The stop before was orderly: nothing was scanned."""
    bytes_scanned: int
    bytes_zeroed: int = 0
    """Of those: zero-filled room behind the last entry. It is most of it while the log is small."""
    torn_bytes_cut: int
    """Bytes of unacknowledged entries that a crash left incomplete."""
    entries_replayed: int
    """Entries above the durable applied index, applied again so far."""
    stages_ms: dict[str, float]
    """Stage of the start -> milliseconds, in order; "replay" is there when it is over."""
    reasons: list[str]
    """One sentence per thing found or done."""
    replaying: bool = False
    """Entries that the log held at the start are still being applied; rows that are there are served."""
    replay_index: int = -1
    """Everything up to here is applied and served."""
    replay_target: int = -1
    """The last entry of the log at the start."""
    state_found: str = ""
    """The row of the recovery table."""
    state_source: Literal["own", "checkpoint", "peer"] = "own"
    """What the state was made from."""
    state_checkpoint: str = ""
    """The checkpoint's name, if it was one."""
    state_set_aside: str = ""
    """Where the state before lies, below the data directory."""
    previous: PreviousRun | None = None
    checkpoints: CheckpointTimes | None = None
    damage: list[DamageView] = []
    alarms: list[str] = []
    """What the start raised."""
