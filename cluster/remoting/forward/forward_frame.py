"""Decodes the header of a FORWARD frame, which carries a client's request to the leader
(`cluster.runtime.peer_frames.Kind`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from cluster.replication.send_identity import Identity
from cluster.runtime.peer_frames import WireError

_NUMBER_MAX = (1 << 63) - 1


class Forwarded(NamedTuple):
    """The fields of a FORWARD frame."""

    forward_id: int
    client: tuple[str, int]
    """The client's own ip and port."""
    listener: str
    identity: Identity | None
    term: int
    """The term in which the receiving node leads, as far as the sender knows."""
    user: int
    """Id of the user who signed the request; 0 if no user signed it."""


def header_bytes(frame: bytes, at: int = 0) -> bytes:
    """Returns the header of a request or answer of the protocol, without its first length field, that begins at `at`:
    u8 kind of the header, u24 its length, the header, the body."""
    return frame[at + 4 : at + 4 + int.from_bytes(frame[at + 1 : at + 4], "big")]


def decode_forward(header: list[Any]) -> Forwarded:
    """Decodes the header of a FORWARD frame. Raises WireError if it is malformed."""
    match header:
        case [int(forward_id), str(ip), int(port), str(listener), identity, int(term), int(user)] if (
            0 <= forward_id <= _NUMBER_MAX
            and 0 <= port <= 0xFFFF
            and 0 <= term <= _NUMBER_MAX
            and 0 <= user <= _NUMBER_MAX
        ):
            return Forwarded(forward_id, (ip, port), listener, _identity(identity), term, user)
    raise WireError(f"malformed header of a forwarded request: {len(header)} fields")


def _identity(fields: Any) -> Identity | None:
    match fields:
        case None:
            return None
        case [bytes(producer_id), int(sequence), int(low)] if (
            0 < len(producer_id) <= 64 and 0 <= sequence <= _NUMBER_MAX and 0 <= low <= _NUMBER_MAX
        ):
            return Identity(producer_id, sequence, low)
    raise WireError("malformed identity of a forwarded send")
