"""The shared fixtures of the tests of what people touch: `live_cluster`."""

from __future__ import annotations

from tests.support.answering_api import make_api
from tests.support.given_back import nothing_in_flight_at_the_end
from tests.support.live_nodes import live_cluster

__all__ = ["live_cluster", "make_api", "nothing_in_flight_at_the_end"]
