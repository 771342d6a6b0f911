"""A denial names the topic as it is, and advises the right that the denied part of a program needs."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.client import AsyncClient, Denied, NotFound, Refused, aconnect, connect
from raftmq.commands.messages.dlq import dead_letters
from raftmq_wire.codes import RequestCode, ResponseCode

NO_RIGHT = "user shop has no right to {} on {} from 127.0.0.1"


def scripts(fake: Any, code: int, *, answer: int, remark: str) -> None:
    """Makes every node give this answer to each request with `code`."""
    fake.handlers[code] = lambda link, opaque, ext, body: link.reply(opaque, answer, remark=remark)


async def test_a_denied_send_names_the_real_topic(fake: Any) -> None:
    fake.create("%DLQ%billing", 1)
    remark = NO_RIGHT.format("Pub", "Topic:%DLQ%billing")
    scripts(fake, RequestCode.SEND_MESSAGE_V2, answer=ResponseCode.NO_PERMISSION, remark=remark)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Denied) as denied:
            await mq.send("%DLQ%billing", b"x")
    assert remark in str(denied.value)
    assert denied.value.hint.startswith("raftmq acl set shop Topic:%DLQ%billing Pub --add ")


async def test_a_missing_topic_is_named_as_it_is(fake: Any) -> None:
    remark = "topic %DLQ%billing does not exist"
    scripts(fake, RequestCode.GET_MIN_OFFSET, answer=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(NotFound, match=remark):
            await mq.admin.min_offset("%DLQ%billing", 0)


@pytest.mark.parametrize(("sends", "action"), [(True, "Pub"), (False, "Sub")])
async def test_a_denied_route_advises_the_right_that_is_needed_next(fake: Any, sends: bool, action: str) -> None:
    remark = NO_RIGHT.format("Pub or Sub or Get", "Topic:orders")
    scripts(fake, RequestCode.GET_ROUTEINFO_BY_TOPIC, answer=ResponseCode.NO_PERMISSION, remark=remark)

    async def used(mq: AsyncClient) -> None:
        if sends:
            await mq.send("orders", b"x")
        else:
            async with mq.consumer("billing", "orders") as consumer:
                await consumer.poll()

    async with aconnect(fake.servers) as mq:
        with pytest.raises(Denied) as denied:
            await used(mq)
    assert denied.value.hint == f"raftmq acl set shop Topic:orders {action} --add    (as a Super)"
    assert denied.value.__notes__ == [denied.value.hint]


def test_a_user_who_may_not_list_groups_sees_that_there_are_no_dead_letters(fake_in_thread: Any) -> None:
    remark = "topic %DLQ%billing does not exist"
    scripts(fake_in_thread, RequestCode.GET_MIN_OFFSET, answer=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    remark = NO_RIGHT.format("List", "Cluster:shop")
    scripts(
        fake_in_thread, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, answer=ResponseCode.NO_PERMISSION, remark=remark
    )
    with connect(fake_in_thread.servers) as mq:
        with pytest.raises(Refused):
            mq.admin.groups()
        assert dead_letters(mq, "billing", None, 32) == ([], 0)
