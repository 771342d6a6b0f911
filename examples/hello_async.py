"""Sends three messages at once and reads them, on an event loop."""

import asyncio

import raftmq


async def main() -> None:
    async with raftmq.aconnect() as mq:
        await asyncio.gather(*(mq.send("hello", word.encode(), key=word) for word in ("one", "two", "three")))
        async for message in mq.consumer("hello-async", "hello", follow=False):
            print(message.key, message.body.decode())


asyncio.run(main())
