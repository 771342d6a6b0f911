"""An echo server that does the least that a server on uvloop can do for the load of bench/load.py: it reads whole
frames and answers each with code 0. If more connections with fewer requests each cost more here too, then the cost is
that of the event loop, and any server on it has it.

python bench/echo_server.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    """One connection: it answers all frames of one read with one write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport. No bytes are pending yet."""
        self._transport = cast(asyncio.Transport, transport)
        self._pending = b""

    def data_received(self, data: bytes) -> None:
        """Answers every complete frame."""
        if self._pending:
            data = self._pending + data
        at, end = 0, len(data)
        answers: list[bytes] = []
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            mark = data.index(b'"opaque":', at)
            header = b'{"code":0,%b}' % data[mark : data.index(b",", mark) + 1].ljust(20)
            answers.append(b"%b%b%b" % ((4 + len(header)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header))
            at = stop
        self._pending = data[at:]
        if answers:
            self._transport.write(b"".join(answers))


async def serve(port: int) -> None:
    """Serves until the process is killed."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
