"""The shared fixtures of the server's tests: `live_cluster`, `listens`."""

from __future__ import annotations

from tests.support.live_nodes import live_cluster
from tests.support.plain_server import listens

__all__ = ["listens", "live_cluster"]
