"""Frames WHO_WAITS and WAITS between nodes, checked before they are used (kinds: `cluster.peer.wire`): a question about
the client that waits for a reply, and what one node knows of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cluster.broker.groups.group_members import CLIENT_ID_MAX
from cluster.broker.groups.relay_frame import CORRELATION_MAX, NUMBER_MAX
from cluster.broker.groups.reply_notes import TTL_MAX_MS
from cluster.peer.wire import WireError

USERS_MAX: Final = 64
"""The most users in each list of a WAITS."""


class WhoWaits(NamedTuple):
    """The fields of a WHO_WAITS frame."""

    ask_id: int
    client_id: str
    correlation_id: str
    ttl_ms: int
    """Milliseconds that the requester waits at most: how long ago its request may have been noted."""


class Waits(NamedTuple):
    """What one node knows of a requester."""

    user: int | None
    """The user whose client waits for this reply; None if none is noted."""
    users: tuple[int, ...]
    """Users of whom a producer with this client id is connected to the node."""
    waiting: tuple[int, ...]
    """Those of them whose client of this id waits for any reply that is noted there."""
    lacking: tuple[int, ...]
    """Those of them of whom a note of that age may be lost."""
    is_new: bool
    """True if notes of that age may be lost of anybody: the node has started since."""


def encode_question(asked: WhoWaits) -> list[Any]:
    """Returns the header of a WHO_WAITS."""
    return list(asked)


def decode_question(header: list[Any]) -> WhoWaits:
    """Decodes a WHO_WAITS. Raises WireError if it is not one."""
    match header:
        case [int(ask_id), str(client_id), str(correlation_id), int(ttl_ms)] if (
            0 <= ask_id <= NUMBER_MAX
            and len(client_id) <= CLIENT_ID_MAX
            and len(correlation_id) <= CORRELATION_MAX
            and 0 < ttl_ms <= TTL_MAX_MS
        ):
            return WhoWaits(ask_id, client_id, correlation_id, ttl_ms)
    raise WireError(f"malformed question about a requester: {header!r:.200}")


def encode_answer(ask_id: int, waits: Waits) -> list[Any]:
    """Returns the header of a WAITS."""
    return [ask_id, waits.user, *(list(users) for users in waits[1:4]), waits.is_new]


def decode_answer(header: list[Any]) -> tuple[int, Waits]:
    """Returns the id of the question, and what the node knows. Raises WireError if it is not a WAITS."""
    match header:
        case [int(ask_id), (int() | None) as user, list(users), list(waiting), list(lacking), bool(is_new)] if (
            0 <= ask_id <= NUMBER_MAX and 0 <= (user or 0) <= NUMBER_MAX
        ):
            return ask_id, Waits(user, _checked(users), _checked(waiting), _checked(lacking), is_new)
    raise WireError(f"malformed answer about a requester: {header!r:.200}")


def _checked(users: list[Any]) -> tuple[int, ...]:
    if len(users) <= USERS_MAX and all(type(user) is int and 0 <= user <= NUMBER_MAX for user in users):
        return tuple(users)
    raise WireError(f"malformed users in an answer about a requester: {users!r:.200}")
