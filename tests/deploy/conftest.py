"""The shared fixtures of the tests of deploy/: `live_cluster`."""

from __future__ import annotations

from tests.support.live_nodes import live_cluster

__all__ = ["live_cluster"]
