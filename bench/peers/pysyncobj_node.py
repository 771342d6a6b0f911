"""A node of pysyncobj with a server for the load generator (the front), as a process of its own.

python -P bench/peers/pysyncobj_node.py CLIENT_PORT JOURNAL SELF PARTNER PARTNER     (SELF and PARTNER are HOST:PORT)

The front takes frames: FRAME (place in the window, length), then the message. It answers each with ANSWER: the place,
and 1 if the message was applied here after a majority had it, else 0. A frame with the place ASK is a question: the
answer is 1 if this node leads.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

FRAME, ANSWER = struct.Struct(">II"), struct.Struct(">IB")
ASK = 0xFFFFFFFF
HOST = "127.0.0.1"


class Log(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """The replicated object. Its state is only the number of messages; the messages themselves stay in the journal."""

    def __init__(self, address: str, partners: list[str], journal: str) -> None:
        self.count = 0
        super().__init__(address, partners, SyncObjConf(journalFile=journal))

    @replicated  # type: ignore[untyped-decorator]  # pysyncobj has no types
    def append(self, message: bytes) -> int:
        """Applies one message: counts it."""
        self.count += 1
        return self.count


class Front(asyncio.Protocol):
    """The server's side of one client connection. Results of proposals arrive on pysyncobj's thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast(asyncio.Transport, transport)  # a stream connection has this kind of transport

    def data_received(self, data: bytes) -> None:
        """Proposes each message that was read."""
        data = self._pending + data
        at = 0
        while len(data) - at >= FRAME.size:
            place, length = FRAME.unpack_from(data, at)
            stop = at + FRAME.size + length
            if stop > len(data):
                break
            if place == ASK:
                self._answer(place, ok=self._log._isLeader())
            else:
                self._log.append(data[at + FRAME.size : stop], callback=self._callback(place))
            at = stop
        self._pending = data[at:]

    def _callback(self, place: int) -> Callable[[int | None, int], None]:
        def done(result: int | None, error: int) -> None:
            answer = partial(self._answer, place, ok=error == FAIL_REASON.SUCCESS)
            self._loop.call_soon_threadsafe(answer)

        return done

    def _answer(self, place: int, *, ok: bool) -> None:
        self._transport.write(ANSWER.pack(place, ok))


async def serve(port: int, journal: str, address: str, partners: list[str]) -> None:
    """Runs the node and its server for the load generator until the process is killed."""
    log = Log(address, partners, journal)
    server = await asyncio.get_running_loop().create_server(lambda: Front(log), HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
