"""The identities of forwarded sends that stay to be claimed by a retry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.remoting.forward.forwarder import Forwarder
from tests.support.rows import each_row


@each_row(
    ("session", "stored", "closed", "expected"),
    [
        (b"now", False, False, "settled"),
        (b"now", True, False, "settled"),
        (b"later", False, False, "remembered"),
        (b"later", True, False, ""),
        (b"later", False, True, ""),
        (None, False, False, "remembered"),
    ],
)
def test_a_refused_send_of_a_former_identity_can_be_retried(
    session: bytes | None, stored: bool, closed: bool, expected: str
) -> None:
    """The connection has gone on under another producer id since: a retry is recognised by the former one."""
    done: list[str] = []
    current = SimpleNamespace(producer_id=session, settle=lambda _: done.append("settled"))
    frame = SimpleNamespace(
        identity=SimpleNamespace(producer_id=b"now", sequence=3),
        path=SimpleNamespace(session=current if session else None, closed=closed),
    )
    held: Any = SimpleNamespace(frame=frame)
    closings = SimpleNamespace(hears=lambda path: not path.closed)
    forwarder: Any = SimpleNamespace(_closings=closings, _remember=lambda _: done.append("remembered"))
    Forwarder._settle(forwarder, held, stored=stored)
    assert done == ([expected] if expected else [])
