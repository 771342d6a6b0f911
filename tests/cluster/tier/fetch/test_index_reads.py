"""Searches in the tier are answered, whatever goes wrong in them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

from cluster.tier.fetch.index_reads import FIRST_READ, EvictedBoundReads, EvictedKeyReads
from cluster.tier.store.errors import StoreError
from raftmq_wire.message_format import Message, encode_message
from tests.support.rows import each_row


@each_row("error", [StoreError("the store does not answer", ""), ValueError("a bug")])
async def test_a_search_that_fails_is_answered(error: Exception) -> None:
    loop, told = asyncio.get_running_loop(), list[Any]()
    queues = Mock(beside_trims=AsyncMock(side_effect=error))
    bounds = EvictedBoundReads(loop, queues)
    bounds.offset_by_time((1, 0), 5, told.append)
    bounds.earliest_store_ms((1, 0), told.append)
    log = Mock(part=AsyncMock(side_effect=error))
    keys = EvictedKeyReads(loop, queues, log, Mock())
    keys.at(7, told.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [error] * 3


async def test_bytes_that_only_claim_to_be_a_long_message_are_not_read() -> None:
    """A body may begin like a message of 32 MiB, and any user may ask for its position."""
    forged = (30 << 20).to_bytes(4, "big") + encode_message(Message("T", b"x" * 100))[4:] + bytes(30 << 20)
    read, told = list[int](), list[Any]()

    async def part(position: int, size: int) -> bytes:
        read.append(size)
        return forged[position : position + size]

    keys = EvictedKeyReads(asyncio.get_running_loop(), Mock(), Mock(part=part), Mock(topics={}))
    keys.at(0, told.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (told, read) == ([None], [FIRST_READ])
