"""A client of the HTTP API that leaves before its answer."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_exceptions import ClientConnectionResetError
from aiohttp.test_utils import make_mocked_request

from cluster.admin.streamed_json import sent


class GoneResponse(web.Response):
    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        raise ClientConnectionResetError("Cannot write to closing transport")


async def test_an_answer_to_a_client_that_has_gone_is_no_error() -> None:
    response = GoneResponse(text="x")
    assert await sent(make_mocked_request("GET", "/v1/findings"), response) is response
