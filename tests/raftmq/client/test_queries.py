"""Queries by key: the client says whether there may be more than it returns."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.client import aconnect
from raftmq_wire.codes import RequestCode


@pytest.mark.parametrize(
    ("code", "ext", "more"), [(0, {}, False), (0, {"raftmqMore": "true"}, True), (22, {"raftmqMore": "true"}, False)]
)
async def test_found_messages_say_whether_there_may_be_more(
    fake: Any, stored: Any, stored_message: Any, code: int, ext: dict[str, str], more: bool
) -> None:
    content = b"".join(stored("orders", 0, offset, stored_message(b"x", "", 1)) for offset in (1, 0))

    def answer(connection: Any, opaque: int, fields: dict[str, str], body: bytes) -> None:
        connection.reply(opaque, code, ext, content if code == 0 else b"")

    fake.handlers[RequestCode.QUERY_MESSAGE] = answer
    async with aconnect(fake.servers) as mq:
        found = await mq.admin.query_messages("orders", "k")
    assert (len(found), found.more) == (0 if code else 2, more)
    assert found == list(found), "a list, as ever"
