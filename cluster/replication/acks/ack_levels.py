"""Defines the acknowledgement levels, which say what must have happened before a send is answered.

The default, `quorum+fsync`, is the guarantee of docs/guarantees.md. Another level can be set for all topics by
RocketMQ's keys (`flush_disk_type`, `broker_role`), for one topic by its attribute `ack.level`, and for one message by
its property `ACK_LEVEL`. RocketMQ's own `WAIT=false` in a message (Message.setWaitStoreMsgOK) is level `leader`. The
most specific setting wins. A level changes only when a send is *answered*: at every level, commit, apply, visibility
and votes wait for the majority's disks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from cluster.replication.message_head import property_of

if TYPE_CHECKING:
    from cluster.config.service_sections import ModesSection

ATTRIBUTE: Final = "ack.level"
PROPERTY: Final = b"ACK_LEVEL\x01"
WAIT: Final = b"WAIT\x01"
WAIT_FALSE: Final = WAIT + b"false"


class Ack(IntEnum):
    """An acknowledgement level. The default is 0, so that the hot path can test `if send.ack`."""

    QUORUM_FSYNC = 0
    """The message is committed and applied: a majority has it on disk."""
    LEADER = 1
    """The leader has the message: on disk (SYNC_FLUSH), passed to the operating system (ASYNC_FLUSH), or in memory
    (with the transient store pool)."""
    QUORUM = 2
    """A majority has passed the message to its operating systems; no node needs to have synced it."""
    ALL = 3
    """The message is committed, applied, and on the disk of every voter."""
    DEGRADED = 4
    """The default level while the majority is slow: the leader has the message on disk, and was in contact with a
    majority a moment ago (`cluster.replication.acks.degradation`). Only the leader itself chooses this level: no
    message or topic can request it."""


EARLY: Final = frozenset((Ack.LEADER, Ack.QUORUM, Ack.DEGRADED))
"""The levels whose answers need not wait for the commit."""

NAMES: Final[dict[str, Ack]] = {
    "leader": Ack.LEADER,
    "quorum": Ack.QUORUM,
    "quorum+fsync": Ack.QUORUM_FSYNC,
    "all": Ack.ALL,
}


class LevelError(ValueError):
    """Raised for an unknown acknowledgement level. Its text lists the valid ones."""


def default_level(modes: ModesSection) -> Ack:
    """Returns the level of a message whose topic and properties specify none."""
    if modes.broker_role == "ASYNC_MASTER":
        return Ack.LEADER
    return Ack.QUORUM if modes.flush_disk_type == "ASYNC_FLUSH" else Ack.QUORUM_FSYNC


def name_of(level: int) -> str:
    """Returns the level's name in configuration and properties; "leader" for DEGRADED."""
    if level == Ack.DEGRADED:
        level = Ack.LEADER
    return next(name for name, known in NAMES.items() if known == level)


def level_named(name: str, where: str) -> Ack:
    """Returns the level with this name. Raises LevelError if there is none; its text names `where` the name comes
    from."""
    level = NAMES.get(name)
    if level is None:
        raise LevelError(f"{where}={name}: an acknowledgement level is one of {', '.join(NAMES)}")
    return level


def ack_of(properties: bytes, default: int) -> int:
    """Returns the level of a message with these properties; `default` if they specify none. Raises LevelError."""
    if PROPERTY in properties and (value := property_of(properties, PROPERTY)):
        return level_named(value.decode("utf-8", "replace"), "property ACK_LEVEL")
    # Every RocketMQ client writes WAIT=true, so only WAIT=false means something.
    if WAIT_FALSE in properties and property_of(properties, WAIT) == b"false":
        return Ack.LEADER
    return default
