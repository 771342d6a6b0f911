"""Searches in the tier are answered, whatever goes wrong in them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

from cluster.tier.fetch.index_reads import EvictedBoundReads, EvictedKeyReads
from cluster.tier.store.errors import StoreError
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
