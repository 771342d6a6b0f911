"""Handles requests of staged writes (700001 to 700004, 700007 and 700008, codes of RaftMQ): decodes the fields, calls
the broker, and answers with its outcome.

The formats are drawn in docs/wire-protocol.md. `cluster.broker.transactions.staged_writes` explains their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, cast

import msgspec

from cluster.broker.refusal import Reason, Refused
from cluster.broker.transactions.group_writes import GroupWrite, GroupWriteRequests
from cluster.broker.transactions.staged_writes import Aborted, CommitAnswer, StagedSlice, StagedWriteRequests
from cluster.remoting.answers import refuse, refusing
from cluster.remoting.request import Handlers, integer, integer_in, party_of, text
from cluster.runtime import metered_json
from cluster.runtime.request_limits import INT64_MAX
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.json_text import MALFORMED
from statemachine.delivery.staged_writes import NAME_MAX, WINNERS_MAX

if TYPE_CHECKING:
    from cluster.broker.sends.send_request import SendPath
    from cluster.remoting.request import Request

_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
_Winners = Annotated[list[tuple[_Number, _Number]], msgspec.Meta(max_length=WINNERS_MAX)]
_decode = metered_json.decoder(_Winners)
COMMITTED_FIELD = "committed"
"""Name of an ext field of the answer: the newest committed write of the name. In the answer to 700001 it is present if
the attempt was not opened."""


class StagedWriteHandlers:
    """Handles the requests of staged writes (700001 to 700004, 700007, 700008), on the leader."""

    def __init__(self, writes: StagedWriteRequests, of_groups: GroupWriteRequests) -> None:
        self._writes, self._of_groups = writes, of_groups

    def codes(self) -> Handlers:
        """Returns request code -> its handler."""
        return {
            RequestCode.OPEN_ATTEMPT: refusing(self._open),
            RequestCode.STAGE_MESSAGES: refusing(self._stage),
            RequestCode.COMMIT_WRITE: refusing(self._commit),
            RequestCode.ABORT_WRITE: refusing(self._abort),
            RequestCode.PREPARE_WRITE: refusing(self._prepare),
            RequestCode.COMMIT_GROUPS: refusing(self._commit_groups),
        }

    def _open(self, request: Request) -> None:
        def opened(answer: int | CommitAnswer | Refused) -> None:
            if isinstance(answer, Refused):
                refuse(request, answer)
            elif isinstance(answer, CommitAnswer):
                request.reply(ResponseCode.SUCCESS, None, {COMMITTED_FIELD: str(answer.write)})
            else:
                request.reply(ResponseCode.SUCCESS, None, {"attempt": str(answer)})

        self._writes.open(party_of(request), *_write(request), opened)

    def _stage(self, request: Request) -> None:
        asked = StagedSlice(
            integer_in(request, "attempt", 0, INT64_MAX),
            integer_in(request, "sequence", 1, INT64_MAX),
            text(request, "topic"),
            integer(request, "queueId", -1),
            integer_in(request, "bornTimestamp", 0, INT64_MAX, 0),
            request.body,
        )
        # Every connection of this protocol is also a SendPath.
        self._writes.stage(cast("SendPath", request.connection), party_of(request), asked, _answered(request))

    def _commit(self, request: Request) -> None:
        winners = _winners(request)
        self._writes.commit(*_write(request), winners, _decided(request))

    def _prepare(self, request: Request) -> None:
        def prepared(answer: int | CommitAnswer | Refused) -> None:
            if isinstance(answer, Refused):
                refuse(request, answer)
            elif isinstance(answer, CommitAnswer):
                request.reply(ResponseCode.SUCCESS, None, {COMMITTED_FIELD: str(answer.write)})
            else:
                request.reply(ResponseCode.SUCCESS, None, {"messages": str(answer)})

        self._of_groups.prepare(_part(request), prepared)

    def _commit_groups(self, request: Request) -> None:
        self._of_groups.commit(_part(request), _groups(request), _decided(request))

    def _abort(self, request: Request) -> None:
        def discarded(answer: Aborted | Refused) -> None:
            if isinstance(answer, Refused):
                refuse(request, answer)
            else:
                request.reply(ResponseCode.SUCCESS, None, {"attempts": str(answer.attempts)})

        self._writes.abort(*_write(request), discarded)


def _write(request: Request) -> tuple[str, int]:
    """Returns name and number of the write. Raises Refused (INVALID) if one is missing or has a wrong value."""
    name = text(request, "name")
    if len(name) > NAME_MAX:
        raise Refused(Reason.INVALID, f"field name has {len(name)} characters, {NAME_MAX} are allowed")
    return name, integer_in(request, "write", 0, INT64_MAX)


def _winners(request: Request) -> list[tuple[int, int]]:
    """Returns the winning attempts in the body. Raises Refused (INVALID) for a malformed body."""
    try:
        return _decode(request.body)
    except MALFORMED as error:
        raise Refused(Reason.INVALID, f"the body is no list of [attempt, messages]: {error}") from None


def _part(request: Request) -> GroupWrite:
    """Returns one group's part of a write. Raises Refused (INVALID) if a field or the body is malformed."""
    return GroupWrite(*_write(request), integer_in(request, "decider", 1, INT64_MAX), _winners(request))


def _groups(request: Request) -> list[int]:
    """Returns the numbers of groups in the field `groups`. Raises Refused (INVALID) for anything but numbers above
    FIRST_GROUP, up to GROUPS_MAX, with commas between them."""
    found = text(request, "groups").split(",")
    if all(each.isascii() and each.isdigit() and FIRST_GROUP < int(each) <= GROUPS_MAX for each in found):
        return [int(each) for each in found]
    raise Refused(
        Reason.INVALID, f"field groups holds numbers of {FIRST_GROUP + 1} to {GROUPS_MAX} with commas between them"
    )


def _decided(request: Request) -> Callable[[CommitAnswer | Refused], None]:
    def done(answer: CommitAnswer | Refused) -> None:
        if isinstance(answer, Refused):
            refuse(request, answer)
            return
        ext = {COMMITTED_FIELD: str(answer.write), "earlier": str(answer.earlier).lower()}
        request.reply(ResponseCode.SUCCESS, None, ext)

    return done


def _answered(request: Request) -> Callable[[Refused | None], None]:
    def done(refused: Refused | None) -> None:
        if refused is None:
            request.reply(ResponseCode.SUCCESS)
        else:
            refuse(request, refused)

    return done
