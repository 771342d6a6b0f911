"""Encodes and decodes the frames WHO_WAITS and WAITS between nodes, and checks them before they are used (kinds:
`cluster.runtime.peer_frames`). WHO_WAITS asks which client waits for a reply; WAITS says what one node knows of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cluster.broker.groups.group_members import CLIENT_ID_MAX
from cluster.broker.groups.relay_frame import CORRELATION_MAX, NUMBER_MAX
from cluster.broker.groups.reply_notes import TTL_MAX_MS
from cluster.runtime.peer_frames import WireError

USERS_MAX: Final = 64
"""The most users in each list of a WAITS."""


class WhoWaits(NamedTuple):
    """The fields of a WHO_WAITS frame."""

    ask_id: int
    client_id: str
    correlation_id: str
    ttl_ms: int
    """The most milliseconds that the requester waits for its reply. An older note of its request no longer counts."""


class RequesterKnown(NamedTuple):
    """The fields of a WAITS frame: those facts about the requester of a reply that one node knows."""

    user: int | None
    """The user whose client waits for this reply, by the node's notes; None if there is no such note."""
    users: tuple[tuple[int, int], ...]
    """(user, age) of each user of whom a producer with this client id is connected to the node. The age is the number
    of milliseconds since the first of the user's open connections named the client id."""
    waiting: tuple[int, ...]
    """Those of the users whose client of this id waits for any reply, by the node's notes."""
    lacking: tuple[int, ...]
    """Those of the users of whom the node may have lost a note that is not older than `ttl_ms` of the question."""
    age_ms: int
    """Milliseconds since the node began to take notes."""


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


def encode_answer(ask_id: int, waits: RequesterKnown) -> list[Any]:
    """Returns the header of a WAITS."""
    return [ask_id, waits.user, list(map(list, waits.users)), list(waits.waiting), list(waits.lacking), waits.age_ms]


def decode_answer(header: list[Any]) -> tuple[int, RequesterKnown]:
    """Returns the id of the question, and what the node knows. Raises WireError if the header is not that of a
    WAITS."""
    match header:
        case [int(ask_id), (int() | None) as user, list(users), list(waiting), list(lacking), int(age_ms)] if (
            0 <= ask_id <= NUMBER_MAX and 0 <= (user or 0) <= NUMBER_MAX and 0 <= age_ms <= NUMBER_MAX
        ):
            return ask_id, RequesterKnown(user, _checked_ages(users), _checked(waiting), _checked(lacking), age_ms)
    raise WireError(f"malformed answer about a requester: {header!r:.200}")


def _checked_ages(users: list[Any]) -> tuple[tuple[int, int], ...]:
    if len(users) <= USERS_MAX and all(type(row) is list and len(row) == 2 for row in users):
        ids, ages = _checked([row[0] for row in users]), _checked([row[1] for row in users])
        return tuple(zip(ids, ages, strict=True))
    raise WireError(f"malformed users in an answer about a requester: {users!r:.200}")


def _checked(users: list[Any]) -> tuple[int, ...]:
    if len(users) <= USERS_MAX and all(type(user) is int and 0 <= user <= NUMBER_MAX for user in users):
        return tuple(users)
    raise WireError(f"malformed users in an answer about a requester: {users!r:.200}")
