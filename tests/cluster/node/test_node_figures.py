"""The figures that mqadmin reads (28), under the names that its versions look for."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any

from cluster.remoting.handlers.broker_stats import NodeFigures


def figures() -> dict[str, str]:
    """Returns the figures of a node that serves 3 messages a second and takes 2."""
    state = Fake(timers=Fake(counts=Fake(pending=0)))
    services: Any = Fake(monotonic_ms=lambda: 5_000, writes_open=lambda: True, state=state)
    clock: Any = Fake(wall_ms=lambda: 10_000)
    rates: Any = Fake(taken=lambda: (2.0, 2.0, 2.0), given=lambda: (3.0, 3.0, 3.0))
    return NodeFigures(services, clock, lambda: 50.0, rates, 1_000).by_name()


def test_what_was_given_is_there_in_both_spellings() -> None:
    """mqadmin 4.9 looks for `getTransferedTps` alone, later ones for `getTransferredTps`."""
    found = figures()
    assert found["getTransferedTps"] == found["getTransferredTps"] == "3.00 3.00 3.00"
    assert found["putTps"] == "2.00 2.00 2.00"
