"""The fate of a send: who is answered, what stays to be recognised, and which session the connection goes on under."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.refusal import Reason
from cluster.broker.sends.closed_connections import ClosedConnections
from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.flow.gate import Gate
from cluster.replication.send_identity import ConnectionSession, RetryMemory
from tests.support.contexts import CONFIG

GATE = Gate(CONFIG)
OURS, FOREIGN, LATER = b"thisnode" + b"1" * 8, b"a client" + b"1" * 8, b"thisnode" + b"2" * 8


class Path:
    """A connection."""

    def __init__(self, session: ConnectionSession) -> None:
        self.session = session
        self.closed = False
        self.in_flight = GATE.holder("10.0.0.9")


class Fates:
    """`SendOutcomes` over a memory, and what its client was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.memory = RetryMemory()
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
        state: Any = SimpleNamespace(fetch=lambda *_: [SimpleNamespace(position=7), SimpleNamespace(position=9)])
        answers: Any = SimpleNamespace(
            acknowledge=lambda send, queue_id, offset, positions: self.told.append((queue_id, offset, positions)),
            acknowledge_plain=lambda sends, built, at: at,
            fail=lambda send, refused: self.told.append(refused.reason),
        )
        self.closings = ClosedConnections(lambda look: None)
        self.fates = SendOutcomes(clock, state, self.memory, answers, self.closings)

    def send(self, producer_id: bytes = OURS, session_of: bytes = OURS, **fields: Any) -> Any:
        """Sequence 1 of a session; the connection may be in a later one by now."""
        session = ConnectionSession(OURS)
        session.issue()
        session.producer_id = session_of
        path = Path(session)
        values = {
            "unique_key": "K",
            "body": b"b",
            "oneway": False,
            "user": 0,
            "issued": True,
            "queue_id": 3,
            "batch": (),
            **fields,
        }
        slot = SimpleNamespace(name="T")
        return SimpleNamespace(
            done=None,
            schedule=None,
            connection=path,
            hold=GATE.hold_answer(path.in_flight, 10),
            slot=slot,
            producer_id=producer_id,
            sequence=1,
            low_sequence=1,
            **values,
        )


def store(fates: SendOutcomes, send: Any) -> None:
    built: Any = SimpleNamespace(offsets=[5], positions=[7])
    fates.stored([send], built, set())


def test_a_stored_send_is_acknowledged_and_settled() -> None:
    run = Fates()
    send = run.send()
    store(run.fates, send)
    assert run.told == [(3, 5, 7)]
    assert send.connection.in_flight.bytes == 0
    assert not send.connection.session.pending
    assert not run.memory.count


def test_a_send_that_was_answered_before_is_not_touched_again() -> None:
    run = Fates()
    send = run.send()
    built: Any = SimpleNamespace(offsets=[5], positions=[7])
    run.fates.stored([send], built, {0})
    assert (run.told, send.connection.in_flight.bytes) == ([], 10)


def test_a_batch_that_the_log_holds_is_answered_with_all_its_positions() -> None:
    run = Fates()
    run.fates.stored_before(run.send(batch=("one", "two")), 1, 2, 5, 7)
    assert run.told == [(2, 5, (7, 9))]


@pytest.mark.parametrize(
    ("fate", "reason", "kept"),
    [("refused", Reason.UNAVAILABLE, False), ("unbuildable", Reason.ERROR, False), ("unknown", Reason.UNKNOWN, True)],
)
def test_only_what_may_still_be_stored_is_remembered(fate: str, reason: Reason, kept: bool) -> None:
    run = Fates()
    send = run.send()
    getattr(run.fates, fate)(send, "why")
    assert run.told == [reason]
    assert send.connection.in_flight.bytes == 0
    assert (run.memory.count == 1) is kept
    assert (send.connection.session is None) is kept, "the connection goes on under a new producer id"


def test_a_refused_retry_leaves_the_first_attempt_to_be_recognised() -> None:
    run = Fates()
    send = run.send(session_of=LATER)
    run.fates.refused(send, "why")
    assert run.memory.claim(0, "T", "K", b"b", 0) == (OURS, 1, 1)
    assert send.connection.session.producer_id == LATER, "its present session goes on"


@pytest.mark.parametrize("fields", [{"producer_id": FOREIGN, "issued": False}, {"unique_key": ""}, {"oneway": True}])
def test_what_nobody_could_recognise_by_its_key_is_not_remembered(fields: dict[str, Any]) -> None:
    run = Fates()
    run.fates.unknown(run.send(**fields), "why")
    assert not run.memory.count


def test_a_closed_connection_is_remembered_once_and_told_nothing() -> None:
    run = Fates()
    send = run.send()
    send.connection.closed = True
    run.fates.connections_closed([send])
    store(run.fates, send)
    run.fates.unknown(run.send(), "another")
    assert run.told == [Reason.UNKNOWN]
    assert run.memory.count == 2


@pytest.mark.parametrize("decided", ["stored", "unknown", "refused retry"])
def test_a_send_that_is_decided_before_its_closed_connection_is_looked_at_is_remembered(decided: str) -> None:
    run = Fates()
    send = run.send(session_of=LATER if decided == "refused retry" else OURS)
    send.connection.closed = True
    run.closings.add(send.connection)
    if decided == "stored":
        store(run.fates, send)
    elif decided == "unknown":
        run.fates.unknown(send, "why")
    else:
        run.fates.refused(send, "why")
    assert run.memory.claim(0, "T", "K", b"b", 0) == (OURS, 1, 1)
    run.closings.look()
    send.hold = GATE.hold_answer(send.connection.in_flight, 10)
    run.fates.unknown(send, "why")
    assert not run.memory.count, "once its connection was looked at, nothing more is remembered of it"
