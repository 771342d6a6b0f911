"""The shared fixtures of the server's tests: `live_cluster`, `listens`, `nothing_in_flight_at_the_end`."""

from __future__ import annotations

from tests.support.given_back import nothing_in_flight_at_the_end
from tests.support.live_nodes import live_cluster
from tests.support.plain_server import listens

__all__ = ["listens", "live_cluster", "nothing_in_flight_at_the_end"]
