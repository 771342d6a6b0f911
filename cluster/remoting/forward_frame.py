"""The header of a forwarded request, checked before it is used (kinds: `cluster.peer.wire`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from cluster.peer.wire import WireError
from cluster.replication.identity import Identity

_NUMBER_MAX = (1 << 63) - 1


class Forwarded(NamedTuple):
    """Fields of FORWARD."""

    forward_id: int
    client: tuple[str, int]
    """The client's own ip and port."""
    listener: str
    identity: Identity | None
    term: int
    """In which the addressee leads."""


def decode_forward(header: list[Any]) -> Forwarded:
    """Raises WireError for what is none."""
    match header:
        case [int(forward_id), str(ip), int(port), str(listener), identity, int(term)] if (
            0 <= forward_id <= _NUMBER_MAX and 0 <= port <= 0xFFFF and 0 <= term <= _NUMBER_MAX
        ):
            return Forwarded(forward_id, (ip, port), listener, _identity(identity), term)
    raise WireError(f"malformed header of a forwarded request: {header!r:.200}")


def _identity(fields: Any) -> Identity | None:
    match fields:
        case None:
            return None
        case [bytes(producer_id), int(sequence), int(low)] if (
            0 < len(producer_id) <= 64 and 0 <= sequence <= _NUMBER_MAX and 0 <= low <= _NUMBER_MAX
        ):
            return Identity(producer_id, sequence, low)
    raise WireError(f"malformed identity of a forwarded send: {fields!r:.200}")
