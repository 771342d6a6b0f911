"""The state that a process of the registry tells the nodes that are connected to it (frame REGISTRY_STATE)."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from cluster.runtime.peer_frames import WireError
from raftlog.types import GROUPS_MAX

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
GroupNumber = Annotated[int, Meta(ge=1, le=GROUPS_MAX)]


class RegistryState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one process. It may gain fields at its end."""

    ready: bool
    """True if it answers clients."""
    missing: Annotated[list[GroupNumber], Meta(max_length=GROUPS_MAX)]
    """Groups of which no node has registered, although the time for it is over: routes lack them."""
    living: Count
    """Nodes that are connected to it."""
    has_majority: bool
    """True if the last operation that its child was asked for was accepted: a majority of the processes runs."""
    leader: Count
    """The process that leads, as its child knows it; 0 if it knows none."""
    operations: Count
    """Operations that were accepted since its start."""
    entries: Count
    """Operations in the journal of its child."""
    accepted_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
    """Milliseconds since an operation was accepted; -1 if none was."""
    child_starts: Count
    """Times that its child was started."""


def encode_state(state: RegistryState) -> list[Any]:
    """Returns the header of a frame REGISTRY_STATE."""
    header: list[Any] = msgspec.to_builtins(state)
    return header


def decode_state(header: list[Any]) -> RegistryState:
    """Returns the state in a header. Raises WireError."""
    try:
        return msgspec.convert(header, RegistryState, strict=True)
    except msgspec.ValidationError as error:
        raise WireError(f"no state of a process of the registry: {error}") from error


class RegistryProcess(NamedTuple):
    """A process of the registry, as this node reaches it."""

    id: int
    address: str
    """The "host:port" where nodes register."""
    reached: bool
    state: RegistryState | None = None
    """The state that it told last; None while it is not reached."""
