"""Encodes and decodes the frames RELAY and RELAY_REPLY between nodes, and checks them before they are used (kinds:
`cluster.runtime.peer_frames`).

RELAY carries a request for a client to the node that may hold the client's connection; RELAY_REPLY carries its outcome.
A RELAY has a longer form that says which client may get the request. Nodes of a cluster below OWNERS_LEVEL send the
short form, because older nodes do not know the longer one.

Values that may be long are in the payload, because the length of a header has 16 bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from cluster.broker.groups.group_members import CLIENT_ID_MAX, Role
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.runtime.peer_frames import WireError
from statemachine.access.rules import Action, Kind, Need

NUMBER_MAX = (1 << 63) - 1
GROUP_MAX = 255
NAME_MAX = 512
"""The most characters of the name of a topic, group or cluster."""
CORRELATION_MAX = 256
"""The most characters of a correlation id."""
TIMEOUT_MS_MAX = 60_000
CODE_MAX = (1 << 31) - 1


class RelayStatus(IntEnum):
    """The outcome of a relayed request. Values are on the wire."""

    ABSENT = 0
    """No such client is connected to the node that replies; nothing was sent to a client."""
    BUSY = 1
    """The node that replies has too many unanswered requests to its clients; nothing was sent to a client."""
    HANDED_OVER = 2
    """The request was written to the client's connection. For a oneway request this is the last reply; otherwise
    another one follows."""
    ANSWERED = 3
    LOST = 4
    """The client disconnected before it answered, or its answer is too long."""


_ROLES = frozenset(str(role) for role in Role)
_STATUSES = frozenset(int(status) for status in RelayStatus)


class Relayed(NamedTuple):
    """The fields of a RELAY frame."""

    relay_id: int
    role: Role
    group: str | None
    """The group of the client; None for any group."""
    client_id: str | None
    """The client's id; None for any client of the group."""
    timeout_ms: int
    """Milliseconds after which the asking node gives up."""
    request: ClientRequest
    user: int | None = None
    """The user whose client it must be; None for any user's."""
    need: Need | None = None
    """The right that the client's user must have; None if there is none."""
    correlation_id: str | None = None
    """The id under which the client asked for the reply that is relayed (`cluster.broker.groups.reply_notes`)."""

    @property
    def is_open(self) -> bool:
        """True if any client with this group and client id may get the request."""
        return self.user is None and self.need is None and self.correlation_id is None


def names_fit(group: str | None, client_id: str | None) -> bool:
    """Returns True if the group and client id are short enough for a RELAY. No client can have longer ones."""
    return len(group or "") <= GROUP_MAX and len(client_id or "") <= CLIENT_ID_MAX


def encode_relay(relayed: Relayed) -> tuple[list[Any], bytes]:
    """Returns the header and the payload of a RELAY."""
    request = relayed.request
    header = [relayed.relay_id, str(relayed.role), relayed.group, relayed.client_id, relayed.timeout_ms]
    if not relayed.is_open:
        need = relayed.need
        packed = None if need is None else [int(need.kind), need.name, [int(action) for action in need.actions]]
        header += [relayed.user, packed, relayed.correlation_id]
    return header, msgpack.packb([request.code, request.oneway, request.ext, request.body], use_bin_type=True)


def decode_relay(header: list[Any], payload: bytes) -> Relayed:
    """Returns the fields of a RELAY of either form. Raises WireError if it is malformed."""
    match header:
        case [
            int(relay_id),
            str(role),
            (str() | None) as group,
            (str() | None) as client_id,
            int(timeout_ms),
            *limits,
        ] if (
            0 <= relay_id <= NUMBER_MAX
            and role in _ROLES
            and names_fit(group, client_id)
            and 0 < timeout_ms <= TIMEOUT_MS_MAX
        ):
            code, oneway, ext, body = _unpacked(payload, 4)
            if type(code) is int and 0 <= code <= CODE_MAX and type(oneway) is bool:
                request = ClientRequest(code, _checked_ext(ext), _checked_body(body), oneway)
                return Relayed(relay_id, Role(role), group, client_id, timeout_ms, request, *_checked_limits(limits))
    raise WireError(f"malformed relayed request: {header!r:.200}")


def _checked_limits(limits: list[Any]) -> tuple[int | None, Need | None, str | None]:
    """Returns (user, need, correlation id) of the longer form; three times None for the shorter one. Raises WireError
    if they are malformed."""
    match limits:
        case []:
            return None, None, None
        case [(int() | None) as user, need, (str() | None) as correlation_id] if (
            0 <= (user or 0) <= NUMBER_MAX and len(correlation_id or "") <= CORRELATION_MAX
        ):
            return user, _checked_need(need), correlation_id
    raise WireError(f"malformed limits of a relayed request: {limits!r:.200}")


def _checked_need(need: Any) -> Need | None:
    match need:
        case None:
            return None
        case [int(kind), str(name), list(actions)] if (
            len(name) <= NAME_MAX and len(actions) <= len(Action) and all(type(action) is int for action in actions)
        ):
            try:
                return Need(Kind(kind), name, tuple(map(Action, actions)))
            except ValueError:
                pass
    raise WireError(f"malformed right of a relayed request: {need!r:.200}")


def encode_reply(relay_id: int, status: RelayStatus, answer: ClientAnswer | None) -> tuple[list[Any], bytes]:
    """Returns the header and the payload of a RELAY_REPLY. `answer` is used with the status ANSWERED only."""
    return [relay_id, int(status)], b"" if answer is None else msgpack.packb(list(answer), use_bin_type=True)


def decode_reply(header: list[Any], payload: bytes) -> tuple[int, RelayStatus, ClientAnswer | None]:
    """Returns (id of the relayed request, status, answer of the client). The answer is None unless the status is
    ANSWERED. Raises WireError if the frame is malformed."""
    match header:
        case [int(relay_id), int(status)] if 0 <= relay_id <= NUMBER_MAX and status in _STATUSES:
            if status != RelayStatus.ANSWERED:
                return relay_id, RelayStatus(status), None
            code, remark, ext, body = _unpacked(payload, 4)
            if type(code) is int and -CODE_MAX <= code <= CODE_MAX and type(remark) is str:
                answer = ClientAnswer(code, remark, _checked_ext(ext), _checked_body(body))
                return relay_id, RelayStatus.ANSWERED, answer
    raise WireError(f"malformed answer to a relayed request: {header!r:.200}")


def _unpacked(payload: bytes, fields: int) -> list[Any]:
    try:
        found = msgpack.unpackb(payload, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"malformed payload of a relayed request: {error}") from error
    if type(found) is not list or len(found) != fields:
        raise WireError(f"the payload of a relayed request is no array of {fields} fields")
    return found


def _checked_ext(ext: Any) -> dict[str, str]:
    if type(ext) is dict and all(type(key) is str and type(value) is str for key, value in ext.items()):
        return ext
    raise WireError("a relayed request's fields are no map of texts")


def _checked_body(body: Any) -> bytes:
    if type(body) is bytes:
        return body
    raise WireError("a relayed request's body is no bytes")
