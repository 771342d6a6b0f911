"""What the broker refuses becomes an error of the HTTP API in one table, whether it is told or raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from cluster.admin import server
from cluster.admin.errors import STATUS, ApiError
from cluster.admin.refusals import CODES, error_of, not_refused
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


def test_a_refusal_that_no_handler_took_is_an_answer_and_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def refuses(request: web.Request) -> web.StreamResponse:
        raise Refused(Reason.NO_GROUP, "consumer group g does not exist")

    async def answered() -> web.StreamResponse:
        return await server._errors_as_json(make_mocked_request("GET", "/v1/groups/g"), refuses)

    response = asyncio.run(answered())
    assert response.status == 404
    assert isinstance(response, web.Response)
    assert b"consumer group g does not exist" in (response.body if isinstance(response.body, bytes) else b"")
    assert not caplog.records
