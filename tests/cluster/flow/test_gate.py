"""The gate bounds what one connection and the node hold, before anything is taken."""

from __future__ import annotations

import msgspec
import pytest

from cluster.flow.gate import ITSELF, Gate, GateRequest, Holder, Limit, Over
from cluster.flow.hold import NO_HOLD, Account
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

LIMITS = msgspec.structs.replace(CONFIG.limits, connection_inflight_bytes_max=100, node_inflight_bytes_max=250)


def gate_of(connections: int) -> tuple[Gate, list[Holder]]:
    gate = Gate(msgspec.structs.replace(CONFIG, limits=LIMITS))
    return gate, [gate.holder("10.0.0.9") for _ in range(connections)]


@each_row("held", [[], [40], [99], [100], [100, 100, 40], [100, 100, 49], [100, 100, 50]])
def test_room_is_what_would_not_be_refused(held: list[int]) -> None:
    gate, connections = gate_of(4)
    for connection, size in zip(connections, held, strict=False):
        gate.hold(connection, size, 0, GateRequest.NEW)
    for connection in connections:
        room = gate.room(connection, 0)
        assert not gate.refusal(connection, room, 0, GateRequest.NEW)
        assert gate.refusal(connection, room + 1, 0, GateRequest.NEW)


def test_the_refusal_names_the_limit_and_what_is_held() -> None:
    gate, (one, two, three) = gate_of(3)
    gate.hold(one, 90, 0, GateRequest.NEW)
    assert gate.refusal(one, 11, 0, GateRequest.NEW) == Over(
        Limit.BYTES,
        "this connection has 90 bytes in flight; with 11 more it passes limits.connection_inflight_bytes_max = 100",
    )
    gate.hold(two, 100, 0, GateRequest.NEW)
    over = gate.refusal(three, 61, 0, GateRequest.NEW)
    assert over is not None
    assert "this node has 190 bytes in flight" in over.remark
    assert not gate.refusal(three, 60, 0, GateRequest.NEW)


def test_other_accounts_of_the_node_have_its_limit_each() -> None:
    gate, (one, two) = gate_of(2)
    gate.hold(one, 100, 0, GateRequest.NEW)
    hold = gate.hold_early(200)
    assert hold is not None
    assert gate.hold_early(51) is None
    over = gate.refusal(two, 60, 0, GateRequest.EARLY)
    assert over is not None
    assert "this node has 200" in over.remark
    assert not gate.refusal(two, 60, 0, GateRequest.FORWARDED)
    assert gate.clients.bytes == 100, "what came early is not read yet, and nobody's"
    hold.ended()
    assert not gate.refusal(two, 60, 0, GateRequest.EARLY)


@each_row("ask", GateRequest)
def test_what_is_asked_decides_where_it_counts(ask: GateRequest) -> None:
    gate, (one,) = gate_of(1)
    kept = {
        GateRequest.FORWARDED: gate.forwarded,
        GateRequest.FORWARDED_SEND: gate.forwarded,
        GateRequest.EARLY: gate.early,
    }
    where = kept.get(ask, gate.sends)
    gate.hold(one, 10, ITSELF if ask is GateRequest.OWN else 0, ask)
    assert {each for each in (gate.sends, gate.forwarded, gate.early) if each.bytes} == {where}
    assert one.bytes == 10


def test_other_limits_hold_from_their_reload_on() -> None:
    gate, (one,) = gate_of(1)
    gate.hold(one, 90, 0, GateRequest.NEW)
    wider = msgspec.structs.replace(LIMITS, connection_inflight_bytes_max=200)
    gate.reload(msgspec.structs.replace(CONFIG, limits=wider))
    assert gate.room(one, 0) == 110
    assert not gate.refusal(one, 110, 0, GateRequest.NEW)


def test_what_is_left_is_named_until_all_is_given_back() -> None:
    gate, (one, _) = gate_of(2)
    held = [gate.hold(one, 10, 0, GateRequest.NEW), gate.hold(one, 5, 0, GateRequest.FORWARDED)]
    early = gate.hold_early(7)
    assert early is not None
    assert gate.left() == {"sends": (1, 10), "forwarded": (1, 5), "early": (1, 7), "clients": (2, 15)}
    assert gate.bytes == 22
    held[0].answered()
    held[1].ended()
    early.ended()
    assert gate.left() == {"sends": (1, 10)}
    held[0].decided()
    assert gate.left() == {}


def test_a_send_that_is_stored_counts_for_its_client_until_it_is_answered() -> None:
    gate, (one,) = gate_of(1)
    hold = gate.hold_answer(one, 8)
    assert gate.left() == {"clients": (1, 8)}
    assert (one.requests, one.bytes) == (1, 8)
    hold.answered()
    assert gate.left() == {}


@pytest.mark.parametrize("many", [False, True])
def test_an_account_below_the_node_s_counts_until_the_fate_is_known(*, many: bool) -> None:
    """So a limit per user or address needs no end of its own (docs/architecture.md, "Add a limit")."""
    gate, (one, two) = gate_of(2)
    node = gate.sends
    gate.sends = theirs = Account(node)
    if many:
        requests = [Request(30), Request(40)]
        assert gate.hold_each(one, requests, 5) == 70
        holds = [each.hold for each in requests]
    else:
        holds = [gate.hold(one, 30, 5, GateRequest.NEW), gate.hold(one, 40, 5, GateRequest.NEW)]
    gate.sends = node
    for hold in holds:
        hold.answered()
    assert (theirs.requests, theirs.bytes) == (2, 70)
    assert gate.left() == {"sends": (2, 70)}
    assert gate.room(two, 0) == 100
    for hold in holds:
        hold.decided()
    assert (theirs.requests, gate.left()) == (0, {})


class Request:
    """A request that is taken with others at once."""

    def __init__(self, size: int) -> None:
        self.size, self.hold = size, NO_HOLD
