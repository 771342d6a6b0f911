"""The token bucket of catch-up: the rate, what may be saved up, more while nothing is proposed, changed at run time."""

from __future__ import annotations

from typing import Any

from cluster.peer.links import BURST_S, IDLE_FACTOR, IDLE_MS, CatchUp

RATE = 1_000_000


class Raw:
    def __init__(self) -> None:
        self.catch_up_budget: int | None = None
        self.catch_up_waits = False
        self.last_index = 0


def run(bucket: CatchUp, raw: Raw, start_ms: int, milliseconds: int, *, busy: bool, spend: bool = True) -> int:
    """Bytes taken in that time, by somebody who takes whatever there is."""
    taken = 0
    for now in range(start_ms, start_ms + milliseconds, 50):
        raw.last_index += busy
        bucket.tick(now)
        if spend and raw.catch_up_budget is not None:
            taken += max(0, raw.catch_up_budget)
            raw.catch_up_budget = min(0, raw.catch_up_budget)
    return taken


def bucket_of(rate: int) -> tuple[CatchUp, Raw, list[int]]:
    raw, woken = Raw(), list[int]()
    core: Any = raw
    return CatchUp(core, rate, lambda: woken.append(1)), raw, woken


def test_the_rate_is_kept_while_clients_write() -> None:
    bucket, raw, _ = bucket_of(RATE)
    taken = run(bucket, raw, 0, 10_000, busy=True)
    assert abs(taken - 10 * RATE) <= RATE // 10


def test_more_is_given_while_nothing_is_proposed() -> None:
    bucket, raw, _ = bucket_of(RATE)
    run(bucket, raw, 0, 1000, busy=True)
    run(bucket, raw, 1000, IDLE_MS, busy=False)
    assert abs(run(bucket, raw, 1000 + IDLE_MS, 5000, busy=False) - IDLE_FACTOR * 5 * RATE) <= RATE
    assert run(bucket, raw, 6000 + IDLE_MS, 1000, busy=True) <= 1.1 * RATE


def test_what_is_not_taken_is_not_saved_up() -> None:
    bucket, raw, _ = bucket_of(RATE)
    run(bucket, raw, 0, 60_000, busy=True, spend=False)
    assert raw.catch_up_budget == int(RATE * BURST_S)


def test_what_was_taken_too_much_is_paid_back_first() -> None:
    bucket, raw, _ = bucket_of(RATE)
    run(bucket, raw, 0, 1000, busy=True)
    raw.catch_up_budget = -2 * RATE
    assert run(bucket, raw, 1000, 1900, busy=True) == 0
    assert run(bucket, raw, 2900, 1000, busy=True) > 0


def test_it_may_be_switched_off_and_on_and_wakes_who_waits() -> None:
    bucket, raw, woken = bucket_of(0)
    budgets: list[int | None] = []
    for now, rate, waits in ((50, 0, False), (100, RATE, True), (150, RATE, True), (200, 0, False)):
        bucket.reload(rate)
        raw.catch_up_waits = waits
        bucket.tick(now)
        budgets.append(raw.catch_up_budget)
    assert budgets == [None, 0, RATE // 20, None]
    assert len(woken) == 2
