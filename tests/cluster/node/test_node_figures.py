"""The figures that mqadmin reads (28), under the names that its versions look for."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any, cast

from cluster.node.node_view import figures


def node() -> Any:
    """Serves 3 messages a second and takes 2."""
    return Fake(
        disk=Fake(view=lambda: Fake(used_percent=50.0)),
        services=Fake(monotonic_ms=lambda: 5_000, writes_open=lambda: True),
        started_ms=1_000,
        rates=Fake(taken=lambda: (2.0, 2.0, 2.0), given=lambda: (3.0, 3.0, 3.0)),
        environment=Fake(clock=Fake(wall_ms=lambda: 10_000)),
        state=Fake(timers=Fake(counts=Fake(pending=0))),
    )


def test_what_was_given_is_there_in_both_spellings() -> None:
    """mqadmin 4.9 looks for `getTransferedTps` alone, later ones for `getTransferredTps`."""
    found = figures(cast(Any, node()))
    assert found["getTransferedTps"] == found["getTransferredTps"] == "3.00 3.00 3.00"
    assert found["putTps"] == "2.00 2.00 2.00"
