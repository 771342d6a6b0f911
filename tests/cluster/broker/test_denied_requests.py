"""What is denied is counted, kept and logged within bounds, whatever names and addresses it has."""

from __future__ import annotations

import pytest

from cluster.broker.access.denials import HOUR_MS, KEPT_MAX, LINES_MAX, PAIRS_MAX, TEXT_MAX, Denials
from tests.support.kept_memory import bytes_kept


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def test_a_user_at_an_address_leaves_one_line_a_second_with_the_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    counted: list[bool] = []
    denials = Denials(clock, counted.append)
    for number in range(1_000):
        denials.note(7, "10.0.0.1", f"no right to Pub on Topic:t{number}", "SEND_MESSAGE (10)", enforced=True)
    clock.ms += 1_000
    denials.note(7, "10.0.0.1", "no right to Pub on Topic:t", "SEND_MESSAGE (10)", enforced=False)
    denials.note(8, "10.0.0.1", "no right to Pub on Topic:t", "SEND_MESSAGE (10)", enforced=True)
    assert caplog.messages == [
        "client 10.0.0.1: SEND_MESSAGE (10) denied: 'no right to Pub on Topic:t0'",
        "client 10.0.0.1: SEND_MESSAGE (10) would be denied: 'no right to Pub on Topic:t' (the last of 1000)",
        "client 10.0.0.1: SEND_MESSAGE (10) denied: 'no right to Pub on Topic:t'",
    ]
    assert counted == [True] * 1_000 + [False, True]


def deny_many(denials: Denials, count: int, why: str) -> None:
    for number in range(count):
        address = f"10.0.{number // 250}.{number % 250}"
        denials.note(0, address, f"{number} {why}", "HEART_BEAT (34)", enforced=True)


def test_names_of_two_megabytes_and_ever_new_addresses_take_little_memory(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials(Clock())
    deny_many(denials, 2 * PAIRS_MAX, "\N{GRINNING FACE}" * 500_000)
    kept = denials.last_hour()
    assert len(kept) == KEPT_MAX
    assert max(len(each.why) for each in kept) == TEXT_MAX
    assert len(caplog.messages) == LINES_MAX
    assert max(map(len, caplog.messages)) < 10 * TEXT_MAX + 100


def test_ever_new_addresses_take_no_more_memory() -> None:
    few, many = Denials(Clock()), Denials(Clock())
    bound = 1.5 * bytes_kept(lambda: deny_many(few, PAIRS_MAX, "no right"))
    assert bytes_kept(lambda: deny_many(many, 4 * PAIRS_MAX, "no right")) < bound


def test_a_count_begins_again_after_an_hour_without_denials() -> None:
    clock = Clock()
    denials = Denials(clock)
    for pause_ms in (0, HOUR_MS, HOUR_MS + 1):
        clock.ms += pause_ms
        denials.note(0, "10.0.0.1", "no right", "HEART_BEAT (34)", enforced=True)
    assert [(each.times, each.last_ms) for each in denials.last_hour()] == [(1, clock.ms)]
    denials.note(0, "10.0.0.1", "no right", "HEART_BEAT (34)", enforced=True)
    assert [each.times for each in denials.last_hour()] == [2]
