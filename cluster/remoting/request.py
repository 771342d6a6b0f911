"""A request of the remoting protocol as its handler sees it, and the connection that it came over.

Everything below runs on the node's event loop; callbacks are called on it, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Client
from cluster.runtime.request_limits import (
    GROUP_BODY_BYTES_MAX,
    HEARTBEAT_BYTES_MAX,
    INT64_MAX,
    NUMBER_DIGITS_MAX,
    OTHER_BODY_BYTES_MAX,
    TEXT_MAX,
)
from raftmq_wire.codec import AlikeHeads
from raftmq_wire.codes import RequestCode


class Connection(Client, Protocol):
    """A client's TCP connection, or its stand-in when another node forwards for it."""

    @property
    def forwarded(self) -> bool:
        """True if another node holds the client's connection, and passed the request on."""

    @property
    def age_s(self) -> float:
        """Seconds since the client connected; infinite if another node holds the connection."""

    listener: str
    """Name of the listener the client came through; routes answer with this listener's addresses."""

    def write(self, data: bytes) -> None:
        """Queues bytes; one transport write per loop iteration. Dropped if closed."""


class Request(Protocol):
    """One client request. A handler answers it at most once, now or later; oneway replies are dropped."""

    code: int
    opaque: int
    flag: int
    body: bytes
    user: int
    """Id of the user who signed it; 0: nobody has, or nobody looked."""
    judged: int
    """The version of users and rules by which it was judged; 0: it was not."""

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
        """The same as they came: JSON that nobody has checked."""

    @property
    def connection(self) -> Connection:
        """The connection that the request came through; its answer goes back through it."""

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answers in the request's own header form."""

    def reply_shared(self, answer: SharedAnswer) -> None:
        """The same with an answer that other requests get as well."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if an answer of about `size` bytes may be made now. If not, `again` is called once when it may,
        unless the client is gone by then; until then no more is taken from its connection."""

    def hold(self) -> None:
        """Notes that the request waits for something to happen, as a long poll does: it does not count as slow."""

    def drop(self) -> None:
        """Drops its ext fields and body: only its answer is needed."""

    def promise(self, size: int) -> None:
        """Holds room for an answer that is made later, until it is given; 0 gives the room back."""


Handler = Callable[[Request], None]


class SharedAnswer:
    """An answer that is given to several requests. See `Request.reply` for what it consists of."""

    __slots__ = ("body", "code", "ext", "heads", "remark")

    def __init__(self, code: int, remark: str | None, ext: dict[str, str], body: bytes) -> None:
        self.code = code
        self.remark = remark
        self.ext = ext
        self.body = body
        self.heads = AlikeHeads(code, len(body), ext=ext, remark=remark)
        """Heads of its frames in JSON."""


_WITH_MESSAGES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_LIMITS: Final[dict[int, int]] = {
    RequestCode.HEART_BEAT: HEARTBEAT_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GROUP_BODY_BYTES_MAX,
}


def too_long(code: int, size: int) -> str | None:
    """Why a request of that code has no body of so many bytes; None if it may. What carries messages is judged by its
    handler, which knows the limits of a message."""
    if code in _WITH_MESSAGES:
        return None
    most = _LIMITS.get(code, OTHER_BODY_BYTES_MAX)
    return f"the body of request {code} has {size} bytes, {most} are allowed" if size > most else None


NoteChange = Callable[[str, str], None]
"""Takes what was changed ("topic orders") and what happened to it; see EventLog.note_change."""


def asked_by(request: Request, says: str) -> str:
    """Returns `says` and the address of the client that asked for it, also if another node holds its connection."""
    host, port = request.connection.peer_address
    return f"{says}, asked for over remoting by {f'[{host}]' if ':' in host else host}:{port}"


_DIGITS_OF_64_BITS = 18
"""A number of no more characters fits 64 bits."""


def text(request: Request, name: str) -> str:
    """A field that must be there, not be empty and not be longer than any name is. Raises Refused (29)."""
    value = request.ext.get(name)
    if not value:
        raise Refused(Reason.INVALID, f"request {code_name(request.code)} needs field {name}")
    if len(value) > TEXT_MAX:
        remark = f"field {name} has {len(value)} characters, {TEXT_MAX} are allowed"
        raise Refused(Reason.INVALID, remark)
    return value


def integer(request: Request, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits; `default` if absent, and if there is none the field must be there. Raises Refused."""
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
    """Several that must be there."""
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
    """The same, in low..high. Raises Refused (29)."""
    number = integer(request, name, default)
    if not low <= number <= high:
        raise Refused(Reason.INVALID, f"field {name} is {number}; allowed are {low} to {high}")
    return number


def code_name(code: int) -> str:
    """A request code for people."""
    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)


class RequestFigures(Protocol):
    """Counts requests: called once for each that is refused, and for each pull or query that is answered."""

    def refused(self, reason: str) -> None:
        """A request was refused before anything was proposed; `reason` is one of a few short words."""

    def code_refused(self, code: str, language: str) -> None:
        """A request of a code that nobody handles was refused; both are out of short lists."""

    def pulled(self, outcome: str) -> None:
        """A pull was answered: "found", "empty" (long poll ran out), "moved" or "refused"."""

    def messages_out(self, topic: str, messages: int, size_bytes: int) -> None:
        """A pull was answered with messages."""

    def queried(self, kind: str, outcome: str) -> None:
        """A query of single messages by "key" or "id" was answered: "found", "none" or "refused"."""
