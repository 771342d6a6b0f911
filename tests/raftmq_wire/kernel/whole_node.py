"""A node alone in a simulated world, run as a process: reads of a client in, its answers and the log's bytes out.

A line of JSON each way: ["70d1...", ...], the reads of one connection in hex; {"answers": ..., "closed": ...,
"log": ...}, what that client got, whether it was hung up on, and the entries that were appended meanwhile. Which kernel
the node has is the environment's choice; nothing else differs between two such processes.

A session's low sequence is left out of the log, and with it the sums over headers and payloads. It is the first
sequence that is not answered yet when a send is taken. The native kernel takes all sends of a read at once; its twin
ends a turn of the loop between two of them when the turn was long enough, and answers the first ones meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import sys
from collections.abc import Sequence
from typing import Any

from jepsen_like.sim.machines.lone_node import LoneNode, lone_options
from raftmq_wire import kernel

CONNECTED_S, SETTLED_S = 0.01, 0.2
HEADER_SUMS = slice(4, 16)
"""header_crc, parent and payload_crc of a frame's header (docs/disk-format.md)."""
MESSAGES, HEAD_BYTES, ROW_BYTES = 3, 40, 32


class Client(asyncio.Protocol):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.answers = b""
        self.closed = False

    def data_received(self, data: bytes) -> None:
        self.answers += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class Lone:
    """A node that leads alone."""

    def __init__(self) -> None:
        self._lone = LoneNode(lone_options(segment_size=4 << 20))
        self._next = self._tail() + 1

    def _tail(self) -> int:
        assert self._lone.machine.node is not None, "the node has ended"
        return self._lone.machine.node.storage.directory.log.state.tail.index

    def ask(self, reads: Sequence[bytes]) -> dict[str, Any]:
        """One connection sends these, each as a segment of its own."""
        lone = self._lone
        endpoint, client = lone.connect(Client, CONNECTED_S)
        for read in reads:
            if not endpoint.is_closing():
                lone.client.run(endpoint.write, read)
                lone.pass_time(CONNECTED_S)
        lone.pass_time(SETTLED_S)
        closed = client.closed
        lone.client.run(endpoint.close)
        lone.pass_time(CONNECTED_S)
        return {"answers": client.answers.hex(), "closed": closed, "log": self._appended().hex()}

    def _appended(self) -> bytes:
        first, last = self._next, self._tail()
        self._next = last + 1
        assert self._lone.machine.node is not None
        entries = (
            self._lone.machine.node.storage.directory.log.read_entries(first, last + 1, 1 << 60)
            if last >= first
            else []
        )
        return b"".join(comparable(entry.header, entry.payload) for entry in entries)


def comparable(header: bytes, payload: bytes) -> bytes:
    """Returns an entry without low sequences and sums."""
    head, body = bytearray(header), bytearray(payload)
    head[HEADER_SUMS] = bytes(12)
    if head[24] == MESSAGES:
        messages, _, runs, sessions = struct.unpack_from(">4I", body, 4)
        at = HEAD_BYTES + messages + runs
        end = at + sessions
        while at < end:
            low, highest, count = struct.unpack_from(">QQI", body, at + 16)
            assert 1 <= low <= highest, (low, highest)
            struct.pack_into(">Q", body, at + 16, 0)
            at += HEAD_BYTES + count * ROW_BYTES
        assert at == end
    return bytes(head + body)


def main() -> None:
    """Answers each line of stdin on stdout; the first line tells the kernel."""
    logging.disable()
    lone = Lone()
    print(json.dumps({"kernel": kernel.NAME}), flush=True)  # noqa: T201
    for line in sys.stdin:
        print(json.dumps(lone.ask([bytes.fromhex(read) for read in json.loads(line)])), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
