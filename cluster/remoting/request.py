"""A request of the remoting protocol as its handler sees it, and the connection that it came over.

Everything below runs on the node's event loop; callbacks are called on it, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cluster.broker.services import Client
from cluster.remoting.shared_answer import SharedAnswer


class Connection(Client, Protocol):
    """A client's TCP connection, or its stand-in when another node forwards for it."""

    @property
    def forwarded(self) -> bool:
        """Whether another node holds the client's connection, and passed the request on."""

    @property
    def age_s(self) -> float:
        """Since when it stands; endless where another node holds it."""

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

    @property
    def version(self) -> int:
        """Of the client's protocol (MQVersion's ordinal)."""

    @property
    def language(self) -> str:
        """That the client reports."""

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields. Raises CodecError if they are not an object of values."""

    @property
    def ext_json(self) -> bytes:
        """The same as they came: JSON that nobody has checked."""

    @property
    def connection(self) -> Connection:
        """Where the request came from and its answer goes."""

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answers in the request's own header form."""

    def reply_shared(self, answer: SharedAnswer) -> None:
        """The same with an answer that other requests get as well."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Whether an answer of about `size` bytes may be made now. If not, `again` is called once when it may, unless
        the client is gone by then; until then no more is taken from its connection."""

    def hold(self) -> None:
        """It waits for something to happen, as a long poll does: nobody wonders how long that takes."""

    def drop(self) -> None:
        """Its ext fields and body are needed no more: only its answer is kept."""

    def promise(self, size: int) -> None:
        """Holds room for an answer that is made later, until it is given; 0 gives the room back."""


Handler = Callable[[Request], None]
