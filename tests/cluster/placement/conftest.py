"""Connections between groups are tested on the event loop that nodes run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop's, as in tests/cluster/peer."""
    return {"uvloop": uvloop.new_event_loop}
