"""The judgement of noisy clients on pretended accounts: each kind of wrong is found, and what may be is left alone."""

from __future__ import annotations

from typing import Any

from jepsen_like.live.probes.noise import OURS, Ack, NoiseSends, codes_of
from jepsen_like.live.probes.noise_check import (
    StoredMessage,
    Window,
    acked_s,
    out_of_order,
    too_much,
    wrong_messages,
)
from tests.support.rows import each_row

RATE = 100


def ack(number: int, at_s: float = 1.0, *, lane: int = 0, offset: int | None = None) -> Ack:
    return Ack(number, lane, at_s - 0.01, at_s, 0, number if offset is None else offset)


def sent(count: int = 4, **fields: Any) -> NoiseSends:
    """One process that sent so many; 2 was refused, 3 is unknown."""
    account = NoiseSends(0, count, frozenset({2}), frozenset({3}), [ack(0), ack(1)], [], {"0": 2, "215": 1})
    return account._replace(**fields)


def rows(*numbers: int) -> list[StoredMessage]:
    return [StoredMessage(0, place, b"0/%d ..." % number, 0) for place, number in enumerate(numbers)]


@each_row(
    ("stored", "wrong"),
    [
        (rows(0, 1), []),
        (rows(0, 1, 3), []),
        (rows(0), ["message 0/1, which is acknowledged, is there 0 times"]),
        (rows(0, 1, 1), ["message 0/1, which is acknowledged, is there 2 times"]),
        (rows(0, 1, 2), ["message 0/2, which is refused, is there 1 times"]),
        (rows(0, 1, 3, 3), ["message 0/3, which is unknown, is there 2 times"]),
        (rows(0, 1, 7), ["b'0/7' was never sent"]),
    ],
)
def test_a_message_has_the_fate_that_its_client_was_told(stored: list[StoredMessage], wrong: list[str]) -> None:
    assert wrong_messages([sent()], stored) == wrong


@each_row(
    ("acks", "wrong"),
    [
        ([ack(0), ack(1), ack(2)], 0),
        ([ack(0), ack(2, offset=1), ack(1, offset=2)], 1),
        ([ack(0), ack(2, offset=1, lane=1), ack(1, offset=2)], 0),  # two connections have no common order
        ([ack(0), ack(2, offset=1, lane=OURS), ack(1, offset=2, lane=OURS)], 0),  # ours sends again what was refused
        ([ack(0), ack(2, 9.0, offset=1), ack(1, 9.0, offset=2)], 0),  # beside faults
    ],
)
def test_a_connection_is_served_in_order(acks: list[Ack], wrong: int) -> None:
    assert len(out_of_order([sent(acks=acks)], 0.5, 5.0)) == wrong


def evenly(rate: float, seconds: float) -> list[float]:
    return [number / rate for number in range(int(rate * seconds))]


@each_row(
    ("rate", "fresh", "found"),
    [
        (RATE, 0, False),
        (1.06 * RATE, 0, False),  # 60 s have a second's worth beside 5 %
        (1.08 * RATE, 0, True),
        (1.08 * RATE, 1, False),  # one more full bucket
        (3 * RATE, 2, True),  # each of three nodes counts for itself
    ],
)
def test_a_rate_is_kept_within_its_tolerance(rate: float, fresh: int, found: bool) -> None:
    window = Window(0.0, 60.0, RATE, fresh)
    assert bool(too_much("stored", window, evenly(rate, 60.0), 0.05)) is found


def test_only_what_is_within_the_window_counts() -> None:
    window = Window(10.0, 20.0, RATE)
    assert window.count([9.9, 10.0, 19.9, 20.0]) == 2
    assert not too_much("stored", window, evenly(RATE, 60.0), 0.0)


def test_accounts_add_up() -> None:
    both = [sent(), sent(writer=1, codes={"215": 2})]
    assert acked_s(both) == [1.0] * 4
    assert codes_of(both) == {"0": 2, "215": 3}
