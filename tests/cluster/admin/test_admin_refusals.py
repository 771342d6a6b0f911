"""What the broker refuses becomes an error of the HTTP API in one table, whether it is told or raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.admin.errors import STATUS, ApiError
from cluster.admin.handler_request import Call
from cluster.admin.refusals import CODES, error_of, not_refused
from cluster.admin.routes import ROUTES
from cluster.broker.refusal import Reason, Refused
from tests.support.rows import each_row


@each_row("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_code_and_only_an_unknown_outcome_is_told_as_one(reason: Reason) -> None:
    error = error_of(Refused(reason, "why"), "mend it", "once more", lead="nothing was changed: ")
    assert error.code == CODES[reason]
    assert error.status == STATUS[error.code]
    assert (error.code == "unknown_outcome") == (reason is Reason.UNKNOWN)
    assert error.message == ("why" if reason is Reason.UNKNOWN else "nothing was changed: why")
    if reason is not Reason.UNKNOWN:
        assert (error.hint == "once more") == (
            reason in (Reason.BUSY, Reason.LIMITED, Reason.UNAVAILABLE, Reason.ERROR)
        )


def test_a_request_may_have_a_code_of_its_own_for_a_reason_and_keeps_the_others() -> None:
    own = {Reason.INVALID: "bad_query"}
    assert error_of(Refused(Reason.INVALID, "why"), codes=own).code == "bad_query"
    assert error_of(Refused(Reason.NO_TOPIC, "why"), codes=own).code == "not_found"


@pytest.mark.parametrize("is_raised", [False, True], ids=["told", "raised"])
def test_a_refusal_is_the_same_error_whether_it_is_told_or_raised(is_raised: bool) -> None:
    def ask(done: Callable[[int | Refused], None]) -> None:
        refused = Refused(Reason.BUSY, "later")
        if is_raised:
            raise refused
        done(refused)

    async def asked() -> int:
        found: int = await not_refused(ask)
        return found

    with pytest.raises(ApiError) as raised:
        asyncio.run(asked())
    assert (raised.value.code, raised.value.status, raised.value.message) == ("busy", 503, "later")


async def test_a_refusal_that_no_handler_took_is_an_answer_and_no_defect(
    node: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuses(call: Call) -> Any:
        raise Refused(Reason.NO_GROUP, "consumer group g does not exist")

    (described,) = [route for route in ROUTES if (route.method, route.path) == ("GET", "/v1/groups/{name}")]
    client = await serve(node, [described._replace(handler=refuses)])
    response = await client.get("/v1/groups/g")
    assert response.status == 404
    assert "consumer group g does not exist" in await response.text()
    assert not [record for record in caplog.records if record.name.startswith("cluster")]
