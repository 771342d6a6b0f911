"""Answers that have as many rows as there are: made in steps, fairly between clients (`cluster.broker.cut_work`).

Room for them is promised before (`cluster.remoting.large_answers`). RocketMQ's requests for lists know no pages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

from cluster.broker import cut_work
from cluster.broker.refusal import Refused
from cluster.broker.services import Services
from cluster.remoting.answers import refuse
from cluster.remoting.request import Request
from cluster.runtime import metered_json
from cluster.wire.codes import ResponseCode
from raftlog.work import ITEM_UNITS, charge
from statemachine.sorted_map import SortedMap

logger = logging.getLogger(__name__)

Answer = Generator[None, None, bytes]
"""Steps that come to a body."""

ROWS_PER_STEP = 32
NAMES_PER_STEP = 256


def answer_in_steps(services: Services, request: Request, steps: Answer, ext: dict[str, str] | None = None) -> None:
    """Answers with the body that the steps come to, or with what they raise."""
    cut_work.begin(services.turns, request.connection, _answered(request, steps, ext))


def _answered(request: Request, steps: Answer, ext: dict[str, str] | None) -> Generator[None, None, None]:
    try:
        body = yield from steps
        request.reply(ResponseCode.SUCCESS, None, ext, body)
    except Refused as refused:
        refuse(request, refused)
    except Exception as error:  # a row that cannot be read ends this request, not what waits behind it
        logger.exception("request code %d failed", request.code)
        request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def names_body(field: bytes, names: SortedMap[str, Any]) -> Answer:
    """`{"field":[names in order]}`."""
    parts: list[bytes] = []
    after: str | None = None
    while found := names.keys_from(after, NAMES_PER_STEP):
        parts.append(metered_json.encode(found)[1:-1])
        after = found[-1]
        yield
    return b'{"%b":[%b]}' % (field, b",".join(parts))


def table_body(head: bytes, rows: Iterable[Any], row_of: Callable[[Any], bytes], tail: bytes) -> Answer:
    """The rows as they come, some in a step."""
    parts: list[bytes] = []
    for at, row in enumerate(rows):
        if at % ROWS_PER_STEP == 0:
            yield
        charge(5 * ITEM_UNITS)
        parts.append(row_of(row))
    return b"%b%b%b" % (head, b",".join(parts), tail)
