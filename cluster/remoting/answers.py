"""Turns the broker's outcomes into answers, response codes and remarks. No other module chooses codes or remarks for
them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

from cluster.broker.refusal import Reason, Refused, not_written, when_confirmed
from cluster.broker.services import Services, begin_steps
from cluster.remoting.request import Handler, Request
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime import metered_json
from raftlog.work import ITEM_UNITS, charge
from raftmq_wire.codes import UNKNOWN_REMARK, ResponseCode
from statemachine.rows.sorted_map import SortedMap

CODES: dict[Reason, ResponseCode] = {
    Reason.INVALID: ResponseCode.INVALID_PARAMETER,
    Reason.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    Reason.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    Reason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Reason.NO_QUEUE: ResponseCode.INVALID_PARAMETER,
    Reason.NO_GROUP: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.NO_CONSUMER: ResponseCode.CONSUMER_NOT_ONLINE,
    Reason.NO_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Reason.STALE_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Reason.BAD_SUBSCRIPTION: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.ILLEGAL: ResponseCode.ILLEGAL_OPERATION,
    Reason.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Reason.BUSY: ResponseCode.SYSTEM_BUSY,
    Reason.LIMITED: ResponseCode.FLOW_CONTROL,
    Reason.UNAVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.ERROR: ResponseCode.SYSTEM_ERROR,
    Reason.UNKNOWN: ResponseCode.SYSTEM_ERROR,
}
"""Reason of a refusal -> response code. docs/guarantees.md tells which codes mean fail and which mean unknown."""


def answer_of(refused: Refused) -> tuple[ResponseCode, str]:
    """Returns code and remark of a refusal. The remark begins with UNKNOWN_REMARK only if the outcome is unknown."""
    remark = refused.remark
    return CODES[refused.reason], f"{UNKNOWN_REMARK} {remark}" if refused.reason is Reason.UNKNOWN else remark


def refuse(request: Request, refused: Refused) -> None:
    """Answers a request that the broker refused."""
    request.reply(*answer_of(refused))


def refusing(handler: Handler) -> Handler:
    """Wraps a handler: if it raises Refused, the request is answered with the code and the remark of the refusal."""

    @functools.wraps(handler)
    def answered(request: Request) -> None:
        try:
            handler(request)
        except Refused as refused:
            refuse(request, refused)

    return answered


def in_steps(services: Services, request: Request, steps: Generator[None]) -> None:
    """Handles the request step by step (`cluster.runtime.turns.work.Turns`), after its client's earlier requests; stops
    when the client disconnects. If a step raises Refused, answers with the code and the remark of the refusal."""
    begin_steps(services.turns, request.connection, _steps_of(request, steps))


def _steps_of(request: Request, steps: Generator[None]) -> Generator[None]:
    try:
        for _ in steps:
            yield
            if request.connection.closed:
                return
    except Refused as refused:
        refuse(request, refused)


def reply_written(
    request: Request, result: ProposeResult, ext: dict[str, str] | None = None, *, remark: str | None = None
) -> None:
    """Answers a write by its outcome. OK: code 0 with `remark` and `ext`. FAIL: 29 if no entry can hold the write, else
    14, because it was not written. UNKNOWN: 1, and a remark that says so."""
    if result.outcome is Outcome.OK:
        request.reply(ResponseCode.SUCCESS, remark, ext)
    elif result.unacceptable:
        refuse(request, Refused(Reason.INVALID, result.remark))
    else:
        refuse(request, not_written(result.outcome, result.remark, fail="not written: no leader accepted it"))


def after_read_index(services: Services, request: Request, answer: Callable[[Request], None]) -> None:
    """Calls `answer` once a leader has confirmed that this node's applied state is linearizable. Answers the request
    with 14 if no leader confirms it."""
    when_confirmed(services, functools.partial(answer, request), functools.partial(refuse, request))


# Answers with an unlimited number of rows. They are made in steps, so that clients get turns
# (`cluster.broker.services`).
#
# Memory for them is reserved before (`cluster.remoting.connection.connection_memory`). RocketMQ's requests for lists
# have no pages.

logger = logging.getLogger(__name__)

BodySteps = Generator[None, None, bytes]
"""A generator that makes a body step by step and returns its bytes."""

ROWS_PER_STEP = 32
NAMES_PER_STEP = 256


def answer_in_steps(services: Services, request: Request, steps: BodySteps, ext: dict[str, str] | None = None) -> None:
    """Answers with the body that the steps return, or with the error that they raise."""
    begin_steps(services.turns.patient, request.connection, _answered(request, steps, ext))


def _answered(request: Request, steps: BodySteps, ext: dict[str, str] | None) -> Generator[None, None, None]:
    try:
        body = yield from steps
        request.reply(ResponseCode.SUCCESS, None, ext, body)
    except Refused as refused:
        refuse(request, refused)
    # A row that cannot be read ends only this request, and not the work that waits behind it.
    except Exception as error:
        logger.exception("request code %d failed", request.code)
        request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def names_body(field: bytes, names: SortedMap[str, Any]) -> BodySteps:
    """Makes the body `{"field":[names in order]}`."""
    parts: list[bytes] = []
    after: str | None = None
    while found := names.keys_from(after, NAMES_PER_STEP):
        parts.append(metered_json.encode(found)[1:-1])
        after = found[-1]
        yield
    return b'{"%b":[%b]}' % (field, b",".join(parts))


def table_body(head: bytes, rows: Iterable[Any], row_of: Callable[[Any], bytes], tail: bytes) -> BodySteps:
    """Makes a body of `head`, the encoded rows and `tail`, a few rows in each step."""
    parts: list[bytes] = []
    for at, row in enumerate(rows):
        if at % ROWS_PER_STEP == 0:
            yield
        charge(5 * ITEM_UNITS)
        parts.append(row_of(row))
    return b"%b%b%b" % (head, b",".join(parts), tail)
