"""Connections between nodes are tested on the event loop that nodes run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ASYNCIO = {"test_peer_names.py"}
"""These look names up in a table of their own, which uvloop would not ask."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop's: asyncio's own loop forgets a connection that it accepted in the turn in which its server is closed."""
    if item.path.name in ASYNCIO:
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
