"""A web service with aiohttp: POST /orders sends a message and answers when a majority has it.

The program asks itself two requests and ends; `web.run_app(service())` would serve until Ctrl-C.
"""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

import raftmq

CLIENT = web.AppKey("client", raftmq.AsyncClient)


async def post_order(request: web.Request) -> web.Response:
    """Answers 201 if the order is stored, 503 if it is not, and 504 if nobody knows: then the caller asks again with
    the same number, and the consumer looks at it."""
    number, body = request.query.get("number", ""), await request.read()
    if not number or not body:
        raise web.HTTPBadRequest(text="POST /orders?number=N with a body")
    try:
        result = await request.app[CLIENT].send("web-orders", body, key=number)
    except raftmq.Unknown as error:
        raise web.HTTPGatewayTimeout(text=f"it may be stored: {error}") from error
    except raftmq.RaftMQError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return web.json_response({"queue": result.queue_id, "offset": result.queue_offset}, status=201)


async def with_client(app: web.Application) -> AsyncIterator[None]:
    """One client for all requests, on the event loop of the service."""
    async with raftmq.aconnect() as mq:
        app[CLIENT] = mq
        yield


def service() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(with_client)
    app.router.add_post("/orders", post_order)
    return app


async def main() -> None:
    runner = web.AppRunner(service())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            async with session.post("/orders", params={"number": "o1"}, data=b"tea") as answer:
                print(answer.status, sorted(await answer.json()))
            async with session.post("/orders") as answer:
                print(answer.status, await answer.text())
    finally:
        await runner.cleanup()


asyncio.run(main())
