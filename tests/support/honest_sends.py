"""A user who sends beside a flood, in a process of its own: `python -m tests.support.honest_sends PORT USER SECRET`.

The floods are played by another process, which is busy with them: what it measured of a send was its own delay. Ends
when stdin is closed, and prints codes and times in milliseconds as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.wire import Wire
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials

EVERY_S = 0.02
SILENCE_S = 10.0


async def send_until_done(port: int, user: Credentials) -> tuple[list[int], list[float]]:
    """Sends a message every EVERY_S, one after the other. Returns (codes, milliseconds)."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    closed = loop.run_in_executor(None, sys.stdin.read)
    closed.add_done_callback(lambda _: done.set())
    codes: list[int] = []
    took_ms: list[float] = []
    fields = {str(key): str(value) for key, value in send_fields(user.access_key, "").items()}
    async with await Wire.dial(port, silence_s=SILENCE_S) as wire:
        while not done.is_set():
            began = time.perf_counter()
            frame = user.signed(fields, b"honest")
            answer = await wire.ask(RequestCode.SEND_MESSAGE_V2, frame, b"honest")
            codes.append(answer.code)
            took_ms.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(EVERY_S)
    return codes, took_ms


if __name__ == "__main__":
    name, secret = sys.argv[2:]
    print(json.dumps(asyncio.run(send_until_done(int(sys.argv[1]), Credentials(name, secret)))))  # noqa: T201
