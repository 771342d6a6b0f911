"""What is taken is given back once, in both kernels: the type stands for every line that takes or gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.flow import hold as holds
from cluster.replication.message_batch import Send
from raftmq_wire.kernel import TWINS
from tests.support.intake_kit import Node, request
from tests.support.kernels import native_kernel
from tests.support.rows import each_row

Kernel = Callable[[str], Any]
ENDS = ["answered", "decided", "ended"]


def figures(*accounts: Any) -> list[tuple[int, int]]:
    return [(one.requests, one.bytes) for one in accounts]


def test_it_counts_for_its_connection_for_all_and_for_the_node_until_each_end(each_kernel: Kernel) -> None:
    account, hold = each_kernel("Account"), each_kernel("Hold")
    clients, node = account(), account()
    connection = account(clients)
    send = hold(connection, node, 5)
    assert figures(connection, clients, node) == [(1, 5)] * 3
    send.answered()
    assert figures(connection, clients, node) == [(0, 0), (0, 0), (1, 5)]
    send.decided()
    assert figures(connection, clients, node) == [(0, 0)] * 3


@each_row("way", ENDS)
@each_row("again", ENDS)
def test_giving_back_twice_is_an_error_and_changes_nothing(each_kernel: Kernel, way: str, again: str) -> None:
    account, hold = each_kernel("Account"), each_kernel("Hold")
    connection, node, others = account(), account(), each_kernel("Hold")
    kept = hold(connection, node, 7), others(connection, node, 1)
    getattr(kept[0], way)()
    before = figures(connection, node)
    if {way, again} == {"answered", "decided"} or (again == "ended" and way != "ended"):
        getattr(kept[0], again)()
        assert figures(connection, node) == [(1, 1)] * 2
        return
    with pytest.raises(RuntimeError, match=holds.GIVEN_BACK):
        getattr(kept[0], again)()
    assert figures(connection, node) == before


def test_it_gives_back_nothing_that_it_did_not_take(each_kernel: Kernel) -> None:
    account, hold = each_kernel("Account"), each_kernel("Hold")
    node = account()
    early = hold(None, node, 3)
    with pytest.raises(RuntimeError):
        early.answered()
    early.ended()
    assert figures(node) == [(0, 0)]


def test_nothing_else_changes_an_account(each_kernel: Kernel) -> None:
    account = each_kernel("Account")()
    for name in ("bytes", "requests"):
        with pytest.raises(AttributeError):
            setattr(account, name, 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["take", *ENDS]), st.booleans(), st.booleans(), st.integers(0, 99))
    )
)
def test_both_kernels_count_alike(steps: list[tuple[int, str, bool, bool, int]]) -> None:
    native = native_kernel()
    assert run(native.Account, native.Hold, steps) == run(TWINS["Account"], TWINS["Hold"], steps)


def run(account: Any, hold: Any, steps: list[tuple[int, str, bool, bool, int]]) -> list[Any]:
    top, node = account(), account()
    connection = account(top)
    held: dict[int, Any] = {}
    seen: list[Any] = []
    for number, act, connected, counted, size in steps:
        if act == "take":
            held[number] = hold(connection if connected else None, node if counted else None, size)
        elif number in held:
            try:
                getattr(held[number], act)()
            except RuntimeError as error:
                seen.append(str(error))
        seen.append(figures(top, connection, node))
    return seen


@pytest.mark.parametrize("kernel", ["native", "python"])
def test_many_are_held_and_decided_as_one_by_one(kernel: str) -> None:
    if kernel == "native":
        native_kernel()
    pick: Any = TWINS if kernel == "python" else vars(holds)
    node = Node()
    sends = node.read(request() * 3)
    connection, of_node = holds.Account(), holds.Account()
    total = pick["hold_each"](sends, connection, of_node)
    assert total == sum(send.size for send in sends)
    assert figures(connection, of_node) == [(3, total)] * 2
    pick["decide_each"](sends[1:])
    assert figures(connection, of_node) == [(3, total), (1, sends[0].size)]
    with pytest.raises(RuntimeError, match=holds.GIVEN_BACK):
        pick["decide_each"](sends[1:])
    for send in sends:
        send.hold.answered()
    assert figures(connection) == [(0, 0)]


class Other:
    """A request that is no send of the kernel's."""

    def __init__(self, size: int) -> None:
        self.size, self.hold = size, holds.NO_HOLD


@pytest.mark.parametrize("kernel", ["native", "python"])
def test_whatever_has_a_hold_and_a_size_is_held_beside_sends(kernel: str) -> None:
    if kernel == "native":
        native_kernel()
    pick: Any = TWINS if kernel == "python" else vars(holds)
    (send,) = Node().read(request())
    connection, of_node = holds.Account(), holds.Account()
    mixed = [Other(3), send, Other(4)]
    assert pick["hold_each"](mixed, connection, of_node) == 7 + send.size
    assert figures(connection, of_node) == [(3, 7 + send.size)] * 2
    pick["decide_each"](mixed[1:])
    assert figures(connection, of_node) == [(3, 7 + send.size), (1, 3)]
    with pytest.raises(RuntimeError, match=holds.GIVEN_BACK):
        pick["decide_each"]([Other(1)])


def test_a_send_that_was_not_taken_has_nothing_to_give_back() -> None:
    node = Node()
    (taken,) = node.read(request())
    names = ["connection", "size", "origin", "oneway", "slot", "queue_id", "flag", "sys_flag", "born_ms", "born_host"]
    names += ["reconsume_times", "body", "properties", "tag_hash", "unique_key", "kind", "producer_id", "sequence"]
    names += ["low_sequence", "batch", "received_ms"]
    send = Send(**{name: getattr(taken, name) for name in names})
    for way in ENDS:
        with pytest.raises(RuntimeError, match=holds.GIVEN_BACK):
            getattr(send.hold, way)()
