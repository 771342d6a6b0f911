"""Clients that occupy resources and give nothing: answers that they do not read, half frames, silent connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct

from jepsen_like.client_kit.fields import pull_fields
from jepsen_like.client_kit.frames import HOST, request
from jepsen_like.client_kit.wire import Target, Wire
from jepsen_like.hostile.attack import BULK_TOPIC, GROUP, TOPIC, Arena, Attack, RoundReport
from raftmq_wire.codes import RequestCode

_MIB = 1 << 20
_HALF, _WHOLE = 8 * _MIB, 16 * _MIB
_TEXT = 15_900_000
_SENT_S = 1.0
"""Seconds after which a node that reads nothing counts as having no room left for requests."""


def _pull(topic: str) -> dict[str, str]:
    return pull_fields(GROUP, topic, count=1024) | {"maxMsgBytes": str(8 * _MIB)}


async def unread(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends 400 pulls of 8 MiB each on a connection that is not read."""
    frames = b"".join(request(RequestCode.PULL_MESSAGE, _pull(BULK_TOPIC))[1] for _ in range(arena.sized(400)))
    with contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (HOST, node.client_port))
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(arena.hold_s):
                await loop.sock_sendall(sock, frames)
        report.sent += arena.sized(400)
        await asyncio.sleep(arena.hold_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def halves(arena: Arena, node: Target, report: RoundReport) -> None:
    """Opens 16 connections with 8 MB of a frame of 16 MB that never ends; a client that sends a message in two pieces
    must still be served."""
    wires = [await Wire.dial(node.client_port) for _ in range(arena.sized(16))]
    half = struct.pack(">i", _WHOLE) + bytes(_HALF)
    try:
        await asyncio.gather(*(wire.send(half, _SENT_S) for wire in wires))
        for size in (_MIB, _MIB >> 3, _MIB >> 6, 1 << 10, 1 << 6):  # these frames take the remaining room
            more = [await Wire.dial(node.client_port) for _ in range(arena.sized(8))]
            wires += more
            await asyncio.gather(*(wire.send(half[:size], _SENT_S / 5) for wire in more))
        report.sent += len(wires)
        await _in_two_pieces(node, report)
        await asyncio.sleep(arena.hold_s)
        await _in_two_pieces(node, report)
    finally:
        for wire in wires:
            wire.abort()
        await asyncio.sleep(0)


async def _in_two_pieces(node: Target, report: RoundReport) -> None:
    async with await Wire.dial(node.client_port) as wire:
        body = json.dumps({"clientID": "hostile-two-pieces"}).encode()
        opaque, frame = request(RequestCode.HEART_BEAT, {}, body)
        wire.write(frame[:40])
        await asyncio.sleep(0.1)
        wire.write(frame[40:])
        answer = report.note(await wire.answer(opaque), "a heartbeat that came in two pieces")
        report.demand(
            answer.code == 0, f"node {node.id}: a heartbeat that came in two pieces got {answer.code}: {answer.remark}"
        )


async def too_large(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends frames of impossible length, right behind 200 KB of a frame that is still incomplete.

    A node reads a frame of 300 KB when it has memory for it, and only then the length behind it. While half frames take
    this memory, the node waits, as designed (`cluster.remoting.connection.connection_memory`). The round is then not
    judged.
    """
    has_room = "half-frames" not in arena.beside
    for length in (-1, 1 << 30, (1 << 31) - 1) * arena.sized(25):
        async with await Wire.dial(node.client_port) as wire:
            _, frame = request(RequestCode.HEART_BEAT, {}, b'{"clientID":"hostile","x":"' + bytes(b"x" * 300_000))
            await wire.send(frame[:200_000])
            await asyncio.sleep(0.02)
            # A node that accepts the length waits up to limits.stalled_ms for the header, to answer the request. A
            # length of 16 MiB is refused at once.
            await wire.send(frame[200_000:] + struct.pack(">iI", length, 0xFFFFFF))
            report.sent += 1
            await asyncio.wait((wire.ended,), timeout=arena.hold_s)
            report.closed += wire.closed
            if not wire.closed:
                report.demand(not has_room, f"node {node.id}: a frame of {length} bytes did not end its connection")
                return
    await _in_two_pieces(node, report)


async def idle(arena: Arena, node: Target, report: RoundReport) -> None:
    """Opens 300 connections and sends nothing."""
    wires = []
    try:
        for _ in range(arena.sized(300)):
            with contextlib.suppress(OSError):
                wires.append(await Wire.dial(node.client_port))
        report.sent += len(wires)
        await asyncio.sleep(arena.hold_s)
        report.closed += sum(wire.closed for wire in wires)
    finally:
        for wire in wires:
            wire.abort()
        await asyncio.sleep(0)


async def subscriptions(arena: Arena, node: Target, report: RoundReport) -> None:
    """Sends 60 pulls, each with a different subscription text of 16 MB."""
    text = b"t" * arena.sized(_TEXT)

    async def some(count: int) -> None:
        for _ in range(count):
            async with await Wire.dial(node.client_port) as wire:
                opaque, _ = request(0)
                fields = json.dumps(_pull(TOPIC) | {"subscription": f"{next(arena.serial)}-@"}, separators=(",", ":"))
                header = b'{"code":11,"opaque":%d,"flag":0,"extFields":%s}' % (opaque, fields.encode())
                before, after = header.split(b"@")
                length = len(before) + len(text) + len(after)
                wire.write(struct.pack(">iI", 4 + length, length) + before)
                wire.write(text)
                await wire.send(after)
                report.note(await wire.answer(opaque), "a pull with a long subscription")

    count = 60 if arena.size >= 1 else 6
    await asyncio.gather(*(some(count // 6) for _ in range(6)))


ATTACKS = (
    Attack("unread-pulls", "400 pulls on one connection that is not read", unread),
    Attack("half-frames", "16 idle connections with 8 MB of a frame of 16 MB", halves, hinders=("too-large",)),
    Attack("too-large", "lengths that cannot be, behind 200 KB of a frame", too_large),
    Attack("idle-connections", "300 connections that say nothing", idle),
    Attack("subscriptions", "60 pulls with subscription texts of 16 MB", subscriptions, is_heavy=True),
)
