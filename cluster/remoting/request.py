"""Defines the interface through which a handler sees a request of the remoting protocol and its connection.

Everything below runs on the node's event loop. Callbacks are called on it, at most once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import Party
from cluster.broker.services import Client
from cluster.runtime.request_limits import INT64_MAX, NUMBER_DIGITS_MAX, TEXT_MAX
from raftmq_wire.codec import AlikeHeads
from raftmq_wire.codes import RequestCode, ResponseCode
from statemachine.broker_state import BrokerState

logger = logging.getLogger(__name__)


class Connection(Client, Protocol):
    """A client's TCP connection, or its stand-in when another node forwards for it."""

    @property
    def forwarded(self) -> bool:
        """True if another node holds the client's connection and forwarded the request."""

    @property
    def age_s(self) -> float:
        """Seconds since the client connected; infinite if another node holds the connection."""

    listener: str
    """Name of the listener through which the client connected; routes answer with this listener's addresses."""

    def write(self, data: bytes) -> None:
        """Queues bytes, which one write per turn of the loop hands to the transport. Drops them if the connection is
        closed."""


class Request(Protocol):
    """One client request. A handler answers it at most once, now or later; oneway replies are dropped."""

    code: int
    opaque: int
    flag: int
    body: bytes
    user: int
    """Id of the user who signed the request; 0: it is not signed, or the signature was not checked."""
    judged: int
    """The version of users and rules by which the request was judged; 0: it was not."""

    @property
    def version(self) -> int:
        """The version of the client's protocol (MQVersion's ordinal)."""

    @property
    def language(self) -> str:
        """The language that the client reports."""

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields. Raises CodecError if they are not an object of values."""

    @property
    def ext_json(self) -> bytes:
        """The ext fields as they were received: JSON that was not checked."""

    @property
    def connection(self) -> Connection:
        """The connection through which the request came, and through which its answer goes back."""

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answers the request. The header of the answer has the encoding of the request's header."""

    def reply_shared(self, answer: SharedAnswer) -> None:
        """Answers with `answer`, which several requests share."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if there is memory for an answer of about `size` bytes now. Otherwise returns False, and calls
        `again` once when there is memory, unless the client has disconnected by then. Until then nothing more is read
        from the client's connection."""

    def when_answered(self, ended: Callable[[Request], None]) -> None:
        """Calls `ended` with the request at its first answer, even if it is oneway. Never calls it if there is no
        answer."""

    def hold(self) -> None:
        """Marks the request as waiting for an event, as a long poll does, so that it does not count as slow."""

    def drop(self) -> None:
        """Drops the request's ext fields and body, because only its answer is still needed."""

    def promise(self, size: int) -> None:
        """Reserves memory for an answer that is made later, until the answer is sent. A `size` of 0 releases the
        memory."""


Handler = Callable[[Request], None]
Handlers = dict[int, Handler]
"""Request code -> its handler (`cluster.runtime.service_lifecycle.Part.codes`)."""


def party_of(request: Request) -> Party:
    """Returns the sender of a request, user id and address, in the form in which its rights are judged."""
    return Party(request.user, request.connection.peer_address[0])


class SharedAnswer:
    """An answer that several requests get. Its parts are the arguments of `Request.reply`."""

    __slots__ = ("body", "code", "ext", "heads", "remark")

    def __init__(self, code: int, remark: str | None, ext: dict[str, str], body: bytes) -> None:
        self.code = code
        self.remark = remark
        self.ext = ext
        self.body = body
        self.heads = AlikeHeads(code, len(body), ext=ext, remark=remark)
        """Heads of its frames, encoded in JSON."""


NoteChange = Callable[[str, str], None]
"""Takes the changed object ("topic orders") and a description of the change; see EventLog.note_change."""


def author_of(request: Request, state: BrokerState) -> str:
    """Returns the author of a change, as it is stored with the change: the user who signed the request, and the
    client's address."""
    address, user = request.connection.peer_address[0], state.access.by_id.get(request.user)
    return address if user is None else f"user {user.name} at {address}"


def asked_by(request: Request, says: str) -> str:
    """Returns the text `says`, followed by the address of the client that sent the request, even if another node
    forwarded it."""
    host, port = request.connection.peer_address
    return f"{says}, asked for over remoting by {f'[{host}]' if ':' in host else host}:{port}"


_DIGITS_OF_64_BITS = 18
"""The most digits of a number that always fits into 64 bits."""


def text(request: Request, name: str, letters_max: int = TEXT_MAX) -> str:
    """Returns a text field. Raises Refused (INVALID) if the field is missing or empty, or has more than `letters_max`
    characters."""
    value = request.ext.get(name)
    if not value:
        raise Refused(Reason.INVALID, f"request {code_name(request.code)} needs field {name}")
    if len(value) > letters_max:
        remark = f"field {name} has {len(value)} characters, {letters_max} are allowed"
        raise Refused(Reason.INVALID, remark)
    return value


def integer(request: Request, name: str, default: int | None = None) -> int:
    """Returns an integer field, or `default` if the field is absent or empty. Raises Refused (INVALID) if there is no
    default then, or if the value is no integer of 64 bits."""
    value = request.ext.get(name)
    if not value and default is not None:
        return default
    try:
        number = int(value or "") if len(value or "") <= NUMBER_DIGITS_MAX else None
    except ValueError:
        remark = f"request {code_name(request.code)} needs field {name} as an integer, not {value!r}"
        raise Refused(Reason.INVALID, remark) from None
    if number is None or not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise Refused(Reason.INVALID, f"field {name} does not fit 64 bits")
    return number


def integers(request: Request, *names: str) -> list[int]:
    """Returns several integer fields, which must all exist. Raises Refused (INVALID) as `integer` does."""
    try:
        texts = [request.ext[name] for name in names]
        numbers = list(map(int, texts))
    except (KeyError, ValueError):
        pass
    else:
        if max(map(len, texts)) <= _DIGITS_OF_64_BITS:
            return numbers
    return [integer(request, name) for name in names]


def integer_in(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    """Returns an integer field, or `default` if the field is absent. Raises Refused (INVALID) as `integer` does, or if
    the number is not in low..high."""
    number = integer(request, name, default)
    if not low <= number <= high:
        raise Refused(Reason.INVALID, f"field {name} is {number}; allowed are {low} to {high}")
    return number


def code_name(code: int) -> str:
    """Returns the code of a request with its name, for people."""
    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)


def handle_late(handler: Handler, request: Request) -> None:
    """Calls a handler later than the router would, for example after a wait. No other code would then answer if the
    handler failed. So this function logs the error and answers 1 (SYSTEM_ERROR)."""
    try:
        handler(request)
    except Exception as error:
        logger.exception("request code %d failed", request.code)
        request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
