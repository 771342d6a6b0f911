"""What came while a node stood still is read at once, and handled in several turns, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from cluster.peer.connections import FRAMES_PER_TURN, Inlet
from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId

MANY = 3 * FRAMES_PER_TURN + 7


class Transport:
    """A socket that tells if it is read."""

    def __init__(self) -> None:
        self.reads, self.closed = True, False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.7", 1)


class Owner:
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.inlets: dict[Inlet, None] = {}

    def on_inlet(self, inlet: Inlet) -> None:
        pass

    def on_inlet_closed(self, inlet: Inlet) -> None:
        pass

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        self.heard.append(header[0])


@pytest.fixture
async def link() -> AsyncIterator[tuple[Owner, Transport, Inlet]]:
    owner, transport = Owner(), Transport()
    inlet = Inlet(cast("Any", owner))
    inlet.connection_made(cast("Any", transport))
    inlet.peer = NodeId(2)
    yield owner, transport, inlet
    inlet.connection_lost(None)


def frames(first: int, count: int) -> bytes:
    return b"".join(pack(Kind.PONG, [number]) for number in range(first, first + count))


async def test_few_frames_are_handled_at_once(link: Any) -> None:
    owner, transport, inlet = link
    inlet.data_received(frames(0, FRAMES_PER_TURN))
    assert (owner.heard, transport.reads) == (list(range(FRAMES_PER_TURN)), True)


async def test_many_frames_of_a_read_take_several_turns_and_nothing_overtakes_them(link: Any) -> None:
    owner, transport, inlet = link
    inlet.data_received(frames(0, MANY) + frames(MANY, 1)[:5])
    seen = [len(owner.heard)]
    while not transport.reads:
        await asyncio.sleep(0)
        seen.append(len(owner.heard))
    assert seen == [FRAMES_PER_TURN, 2 * FRAMES_PER_TURN, 3 * FRAMES_PER_TURN, MANY]
    inlet.data_received(frames(MANY, 1)[5:])
    assert owner.heard == list(range(MANY + 1))


async def test_a_bad_frame_among_the_later_ones_ends_the_connection(link: Any) -> None:
    owner, transport, inlet = link
    bad = b"\0\0\0\x05\xff\xff\xff\xff\xff"
    inlet.data_received(frames(0, MANY) + bad + frames(MANY, 9))
    for _ in range(9):
        await asyncio.sleep(0)
    assert transport.closed
    assert owner.heard == list(range(MANY))


async def test_what_waits_is_lost_with_its_connection(link: Any) -> None:
    owner, transport, inlet = link
    inlet.data_received(frames(0, MANY))
    transport.abort()
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(owner.heard) == FRAMES_PER_TURN
