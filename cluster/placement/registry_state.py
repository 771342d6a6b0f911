"""Defines the state that a process of the registry reports to the nodes that are connected to it (frame
REGISTRY_STATE)."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from cluster.runtime.peer_frames import WireError
from raftlog.types import GROUPS_MAX

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
GroupNumber = Annotated[int, Meta(ge=1, le=GROUPS_MAX)]


class RegistryState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one process of the registry. Later versions may add fields at the end."""

    ready: bool
    """True if the process answers clients."""
    missing: Annotated[list[GroupNumber], Meta(max_length=GROUPS_MAX)]
    """Numbers of the groups of which no node has registered in time. Routes lack these groups."""
    living: Count
    """The number of nodes that are connected to the process."""
    has_majority: bool
    """True if the last operation with which the process tested its child (a beat) was accepted, which shows that a
    majority of the processes runs."""
    leader: Count
    """The id of the leading process, as the child knows it; 0 if it knows none."""
    operations: Count
    """The number of operations that were accepted since the process started."""
    entries: Count
    """The number of operations in the child's journal."""
    accepted_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    """Milliseconds since the last accepted operation; -1 if none was accepted."""
    child_starts: Count
    """The number of times that the child was started."""


def encode_state(state: RegistryState) -> list[Any]:
    """Returns the header of a frame REGISTRY_STATE."""
    header: list[Any] = msgspec.to_builtins(state)
    return header


def decode_state(header: list[Any]) -> RegistryState:
    """Returns the state in a header. Raises WireError if it is malformed."""
    try:
        return msgspec.convert(header, RegistryState, strict=True)
    except msgspec.ValidationError as error:
        raise WireError(f"no state of a process of the registry: {error}") from error


class RegistryProcess(NamedTuple):
    """A process of the registry, as this node sees it."""

    id: int
    address: str
    """The "host:port" where nodes register."""
    reached: bool
    state: RegistryState | None = None
    """The state that the process reported last; None while it is not reached, or has reported none."""
