"""Implements `cluster.remoting.request.Request`, a request as its handler sees it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.remoting.connection.frame import Frame
from cluster.remoting.request import SharedAnswer
from cluster.requests.table import VERBS, name_of
from cluster.requests.verb import Stage
from cluster.runtime.resource_budget import Share
from cluster.runtime.turns.garbage_collection import Untracked
from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, JSON, Header, encode_head, ext_of
from raftmq_wire.codes import ResponseCode

if TYPE_CHECKING:
    from cluster.remoting.connection.reply_path import ReplyPath
    from cluster.replication.slow_requests import SlowRequests

logger = logging.getLogger(__name__)

LANGUAGE_MAX = 16
"""The most characters that are kept of the language that a client reports."""


class RemotingRequest(Untracked):
    """One request, with the path of its reply.

    The connection may refer to the request, but must drop the reference when it closes (see Untracked).
    """

    _header: Header
    connection: ReplyPath
    code: int
    opaque: int
    flag: int
    body: bytes
    _serialize_type: int
    _slow: SlowRequests | None
    _arrived_s: float
    _ext: dict[str, str] | None
    user: int
    """Id of the user who signed the request; 0: it is not signed, or the signature was not checked."""
    judged: int
    """The version of users and rules by which the request was judged; 0 if it was not judged."""
    received: Frame | None = None
    """The frame as it came, if another node may have to answer the request; None otherwise."""
    _answered: bool = False
    _promised: Share | None = None
    _ended: Callable[[RemotingRequest], None] | None = None

    @classmethod
    def of(cls, frame: Frame, slow: SlowRequests | None = None, *, reads_ext: bool = True) -> RemotingRequest:
        """Makes the request of a frame. `reads_ext`: True to read the ext fields at once, which raises CodecError if
        they are not an object of values. With False, the property `ext` reads them and raises it."""
        header = frame.header
        return cls(
            header,
            frame.path,
            header.code,
            header.opaque,
            header.flag,
            frame.body,
            frame.serialize_type,
            slow,
            0.0 if slow is None else slow.clock_s(),
            ext_of(header) if reads_ext else None,
            frame.user,
            frame.judged,
        )

    def may_come_back(self, frame: Frame) -> None:
        """Keeps the received frame, because another node may have to answer the request."""
        self.received = frame

    @property
    def version(self) -> int:
        return self._header.version

    @property
    def language(self) -> str:
        return str(self._header.language)[:LANGUAGE_MAX]

    @property
    def ext(self) -> dict[str, str]:
        if self._ext is None:
            self._ext = ext_of(self._header)
        return self._ext

    @property
    def ext_json(self) -> bytes:
        return self._header.extFields

    @property
    def client(self) -> tuple[str, int]:
        return self.connection.peer_address

    @property
    def name(self) -> str:
        return name_of(self.code)

    @property
    def stage(self) -> str:
        verb = VERBS.get(self.code)
        return Stage.READ if verb is None else verb.stage

    def when_answered(self, ended: Callable[[RemotingRequest], None]) -> None:
        self._ended = ended

    def hold(self) -> None:
        self._arrived_s = math.inf
        if self.received is None:  # dropped only if no other node may have to answer, which would need the whole frame
            self.drop()

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        return self.connection.room_for(size, again)

    def drop(self) -> None:
        header = self._header
        self._header = Header(header.code, header.opaque, header.flag, header.version, header.language)
        self._ext, self.body = {}, b""

    def promise(self, size: int) -> None:
        if self._promised is None:
            path = self.connection
            self._promised = promised = path.room.share()
            # A forwarded request has no client connection here, so its memory is not released when the client
            # disconnects.
            if path.forwarded:
                path.on_close.append(lambda: promised.hold(0))
        self._promised.hold(size)

    def given_away(self) -> Share | None:
        """Ends the request on this node without an answer, because another node answers it. Returns the memory that was
        reserved for the answer, which the caller now holds; None if none was."""
        promised, self._promised, self._answered = self._promised, None, True
        if self._ended is not None:
            self._ended(self)
        return promised

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Answers the request at the first call; a oneway request is never answered. If the answer cannot be encoded,
        an error is sent instead."""
        if not self._may_answer(code):
            return
        try:
            head = self._encode(code, remark, ext, len(body))
        except Exception as error:
            logger.exception("an answer to request code %d cannot be encoded", self.code)
            head, body = (
                self._encode(ResponseCode.SYSTEM_ERROR, f"the answer cannot be encoded: {error!r}", None, 0),
                b"",
            )
        if body:
            self.connection.write_parts(head, body)
        else:
            self.connection.write(head)

    def reply_shared(self, answer: SharedAnswer) -> None:
        if self._serialize_type != JSON:
            self.reply(answer.code, answer.remark, answer.ext, answer.body)
        elif self._may_answer(answer.code):
            self.connection.write_parts(answer.heads.head(self.opaque), answer.body)

    def _may_answer(self, code: int) -> bool:
        """Releases the request's memory, counts the request, and returns True, if this is its first answer. Returns
        False for a later answer, and for a oneway request."""
        if self._promised is not None:
            self._promised.hold(0)
            self.connection.room_given_back()
        if self._answered:
            return False
        self._answered = True
        if self._ended is not None:
            self._ended(self)
        # An unknown code is not counted as slow: clients may send any code, and its answers are delayed on purpose.
        if self._slow is not None and code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._slow.answered(self, code, self._arrived_s)
        if self.flag & FLAG_ONEWAY:
            self.connection.unanswered()
            return False
        return True

    def _encode(self, code: int, remark: str | None, ext: dict[str, str] | None, body_size: int) -> bytes:
        return encode_head(
            code,
            self.opaque,
            FLAG_RESPONSE,
            body_size,
            ext=ext,
            remark=remark,
            serialize_type=self._serialize_type,
            language="JAVA",
            reader=self._header.language,
        )
