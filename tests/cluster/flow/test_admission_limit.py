"""The limit refuses what a log cannot take, and nothing else, whatever the weather of its disk."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from cluster.config.service_sections import FlowSection
from cluster.flow.admission_limit import (
    ENTRY_BYTES_MIN,
    ENTRY_BYTES_UNKNOWN,
    ENTRY_SHARE,
    LEAVE_MS,
    NO_LIMIT,
    QUICKEST_AGE_MS,
    RATE_AGE_MS,
    TRIPS_MS_MAX,
    AdmissionLimit,
)
from tests.support.rows import each_row

CAPACITY = 10_000_000
"""Bytes a second that the disk takes."""
SEND = 1_200
ENTRY_BYTES_MAX = 1 << 20
MEASURED_SYNC_MS = [0.3] * 40 + [0.6] * 30 + [1.2] * 15 + [3.0] * 8 + [8.0] * 4 + [15.0] * 2 + [30.0]
"""Times of fdatasync on two virtual processors beside other machines, in the shape of the measured histogram."""


FLOW = FlowSection()


class Entry(NamedTuple):
    sends: list[int]
    """When each came, in ms."""
    proposed_ms: int
    done_ms: float


class House:
    """A leader in steps of a millisecond: a queue, two entries under way one after the other, and the limit."""

    def __init__(
        self, seed: int = 1, capacity: float = CAPACITY, flow: FlowSection = FLOW, mean_sync_ms: float = 0.0
    ) -> None:
        self.limit = AdmissionLimit(flow, lambda: mean_sync_ms)
        self.capacity = capacity
        self.now_ms = 0
        self.refused: list[int] = []
        """When each refused send came."""
        self.took_ms: list[int] = []
        """Milliseconds of each stored send."""
        self.sync_ms: Callable[[], float] = lambda: 0.3
        self.far_ms = 0.0
        """Milliseconds from the sync of an entry to its commit, in which the disk goes on with others."""
        self.stalled_until_ms = 0
        self.rng = random.Random(seed)
        self._queue: deque[int] = deque()
        self._entries: deque[Entry] = deque()
        self._owed = 0.0

    @property
    def bytes(self) -> int:
        return SEND * (len(self._queue) + sum(len(each.sends) for each in self._entries))

    def run(self, seconds: float, share: float) -> None:
        """Lets sends come for so long, at this share of the capacity."""
        for _ in range(int(seconds * 1000)):
            self._owed += self.rng.expovariate(1.0) * share * CAPACITY / SEND / 1000
            self.offer(int(self._owed))
            self._owed %= 1
            self.step()

    def offer(self, sends: int) -> None:
        self._queue.extend([self.now_ms] * sends)

    def step(self) -> int:
        """One millisecond passes; returns how many sends ended in it."""
        self.now_ms += 1
        ended = 0
        while self._entries and self._entries[0].done_ms <= self.now_ms >= self.stalled_until_ms:
            entry = self._entries.popleft()
            self.limit.decided(SEND * len(entry.sends), self.now_ms - entry.proposed_ms)
            self.took_ms += [self.now_ms - came for came in entry.sends]
            ended += len(entry.sends)
        while self._queue and len(self._entries) < 2:
            self._propose()
        if self._queue or len(self._entries) >= 2:
            excess = self.limit.excess(self.bytes, SEND * len(self._queue), self.now_ms)
            while excess > 0 and self._queue:
                self.refused.append(self._queue.popleft())
                excess -= SEND
                ended += 1
        elif not self._entries:
            self.limit.emptied()
        return ended

    def _propose(self) -> None:
        count = max(1, min(len(self._queue), min(ENTRY_BYTES_MAX, self.limit.entry_bytes) // SEND))
        sends = [self._queue.popleft() for _ in range(count)]
        before = self._entries[-1].done_ms - self.far_ms if self._entries else 0
        begin = max(self.now_ms, before, self.stalled_until_ms)
        self._entries.append(
            Entry(sends, self.now_ms, begin + 1000 * SEND * count / self.capacity + self.sync_ms() + self.far_ms)
        )

    def p99(self) -> int:
        return sorted(self.took_ms)[int(len(self.took_ms) * 0.99)]


@each_row("seed", range(20))
def test_a_steady_load_is_never_refused_whatever_the_noise_of_the_disk(seed: int) -> None:
    """The capacity is what is left beside the noise: 0.8 of that."""
    house = House(seed)
    house.sync_ms = lambda: house.rng.choice(MEASURED_SYNC_MS)
    house.run(30, 0.72)
    assert not house.refused


@each_row("stall_ms", [50, 150, 300, 600, 1500])
def test_what_stands_in_the_way_for_a_while_is_no_overload(stall_ms: int) -> None:
    """A checkpoint, a roll, an election: the house fills, and empties by itself."""
    house = House()
    for _ in range(10):
        house.run(6, 0.8)
        house.stalled_until_ms = house.now_ms + stall_ms
    house.run(6, 0.8)
    assert not house.refused


@each_row("seed", range(6))
def test_stalls_at_random_times_are_no_overload(seed: int) -> None:
    house = House(seed)
    house.sync_ms = lambda: house.rng.choice(MEASURED_SYNC_MS)
    for _ in range(8):
        house.run(house.rng.uniform(3, 6), 0.72)
        house.stalled_until_ms = house.now_ms + house.rng.choice([30, 100, 200, 300, 500, 700])
    assert not house.refused


def test_nothing_is_refused_while_nothing_is_decided() -> None:
    """Without a majority a send waits for its deadline: its fate is not the limit's."""
    house = House()
    house.run(5, 0.9)
    house.stalled_until_ms = 1 << 60
    house.run(5, 0.9)
    assert not house.refused


def test_a_closed_loop_waits_as_long_as_it_takes() -> None:
    house = House()
    house.offer(4096)
    for _ in range(20_000):
        house.offer(house.step())
    assert not house.refused
    assert house.p99() > 400


@pytest.mark.parametrize("share", [1.05, 1.2, 2.0, 5.0])
def test_in_an_overload_the_log_stays_busy_and_nobody_waits_long(share: float) -> None:
    house = House()
    house.run(5, 0.2)
    assert not house.refused
    house.run(3, share)
    assert house.refused
    house.took_ms.clear()
    house.run(60, share)
    stored = len(house.took_ms) * SEND / 60
    assert stored >= 0.9 * CAPACITY
    assert house.p99() <= 100
    assert house.bytes <= 2 * house.limit.house_bytes


def test_an_overload_ends_with_its_load() -> None:
    house = House()
    house.run(10, 1.5)
    assert house.limit.overloaded
    house.run(LEAVE_MS / 1000 + 2, 0.8)
    assert not house.limit.overloaded
    before = len(house.refused)
    house.stalled_until_ms = house.now_ms + 300
    house.run(5, 0.8)
    assert len(house.refused) == before


@each_row("seed", range(5))
def test_a_burst_beside_closed_loops_is_no_overload(seed: int) -> None:
    """Those that were answered send again and wait behind the burst: for a while the house grows by a little of itself,
    and by a sixth of the limit (seed 954000064)."""
    house = House(seed, flow=FlowSection(house_bytes_min=1024))
    house.run(5, 0.8)
    house.offer(12_000)
    house.run(2, 1.07)
    house.run(10, 0.8)
    assert not house.refused


def test_an_overload_of_before_says_nothing_of_a_burst() -> None:
    """The log had nothing to do since: nobody looked at the limit (seed 954000022)."""
    house = House()
    house.run(10, 1.5)
    assert house.limit.overloaded
    for _ in range(LEAVE_MS + 1000):
        house.step()
    before = len(house.refused)
    house.offer(4096)
    house.run(3, 0.1)
    assert len(house.refused) == before


@each_row("capacity", [500_000, 1_000_000, 2_000_000])
@each_row("far_ms", [0, 30])
def test_an_overload_of_a_slow_disk_is_known_from_the_first_send_on(capacity: int, far_ms: int) -> None:
    """As for a leader that is elected in an overload: no quiet time in which anything could be learnt."""
    house = House(capacity=capacity)
    house.far_ms = far_ms
    house.run(10, 3 * capacity / CAPACITY)
    assert house.limit.overloaded
    assert house.limit.rate <= 1.3 * capacity
    house.took_ms.clear()
    house.run(30, 3 * capacity / CAPACITY)
    assert len(house.took_ms) * SEND / 30 >= 0.9 * capacity
    least = FlowSection().house_bytes_min
    assert house.limit.house_bytes <= max(least, 1.2 * capacity), "a second, as long as no decision was quick"


@pytest.mark.parametrize("capacity", [CAPACITY / 4, CAPACITY * 2])
def test_another_disk_is_learnt(capacity: float) -> None:
    house = House()
    house.run(10, 1.2)
    house.capacity = capacity
    house.run(10, 1.2 * capacity / CAPACITY)
    house.took_ms.clear()
    house.run(20, 1.2 * capacity / CAPACITY)
    assert abs(house.limit.rate / capacity - 1) < 0.2
    assert len(house.took_ms) * SEND / 20 >= 0.9 * capacity


def test_a_slow_disk_takes_what_one_client_has_in_flight() -> None:
    """`flow.house_bytes_min`: 70 ms of this disk are 70 kB."""
    house = House(capacity=1_000_000)
    house.run(20, 0.12)
    assert house.limit.overloaded
    assert house.limit.house_bytes == FlowSection().house_bytes_min


def test_entries_grow_while_the_log_is_quick_and_has_breaks() -> None:
    """The rate is never known then: 512 requests in flight on a quick disk."""
    limit = AdmissionLimit(FlowSection())
    limit.excess(100_000, 0, 1_000)
    limit.decided(250_000, 5.0)
    assert limit.entry_bytes == 875_000
    limit.decided(875_000, 70.0)
    assert limit.entry_bytes == ENTRY_BYTES_UNKNOWN
    limit.decided(1_000, 0.0)
    assert limit.entry_bytes == ENTRY_BYTES_UNKNOWN
    assert (limit.rate, limit.house_bytes) == (0.0, NO_LIMIT)


def test_large_entries_are_cut_where_the_log_is_slow() -> None:
    house = House(flow=FlowSection(house_bytes_min=1024))
    assert house.limit.entry_bytes == ENTRY_BYTES_UNKNOWN
    house.run(10, 1.2)
    assert house.limit.overloaded
    assert 100_000 < house.limit.entry_bytes < 200_000
    slow = House(flow=FlowSection(house_bytes_min=1024), capacity=100_000)
    slow.run(20, 0.012)
    assert slow.limit.entry_bytes == ENTRY_BYTES_MIN


@pytest.mark.parametrize(
    ("sync_ms", "far_ms", "least", "most"),
    [(0.3, 0, ENTRY_BYTES_MIN, ENTRY_BYTES_MIN), (8, 0, 90_000, 130_000), (0.3, 10, 130_000, 250_000), (60, 0, 0, 0)],
)
def test_an_entry_that_others_wait_for_lasts_no_longer_than_its_disks_need(
    sync_ms: float, far_ms: int, least: int, most: int
) -> None:
    """Never more than an entry that nobody waits for."""
    house = House(mean_sync_ms=sync_ms)
    assert house.limit.shared_bytes == ENTRY_BYTES_UNKNOWN
    house.sync_ms, house.far_ms = (lambda: sync_ms / 10), far_ms
    house.run(10, 1.2)
    limit = house.limit
    assert (least or limit.entry_bytes) <= limit.shared_bytes <= (most or limit.entry_bytes)
    assert limit.shared_bytes <= limit.entry_bytes
    limit.reload(FlowSection(admission=False))
    assert limit.shared_bytes == NO_LIMIT


@pytest.mark.parametrize("far_ms", [10, 30, 100])
def test_a_majority_that_is_far_away_is_no_reason_to_store_less(far_ms: int) -> None:
    """Two entries of 1 MiB in 100 ms are more than the disk takes; two of what 70 ms of this disk are would be 3.5 MB
    a second."""
    house = House()
    house.far_ms = far_ms
    free = min(CAPACITY, 2 * ENTRY_BYTES_MAX / (far_ms / 1000 + 2 * ENTRY_BYTES_MAX / CAPACITY))
    house.run(10, 0.1)
    house.run(20, 1.3 * free / CAPACITY)
    house.took_ms.clear()
    house.run(30, 1.3 * free / CAPACITY)
    assert house.refused
    assert len(house.took_ms) * SEND / 30 >= 0.8 * free
    assert house.p99() <= 100 + 12 * far_ms


@pytest.mark.parametrize("far_ms", [0, 100])
def test_a_few_clients_do_not_teach_it_that_the_log_is_slow(far_ms: int) -> None:
    """Eight clients with one request each keep two small entries under way: that is no capacity."""
    house = House()
    house.far_ms = far_ms
    house.offer(8)
    for _ in range(20_000):
        house.offer(house.step())
    house.run(20, 0.5)
    assert not house.refused


def test_it_can_be_turned_off_and_on() -> None:
    house = House()
    house.run(5, 1.2)
    assert house.refused
    house.limit.reload(FlowSection(admission=False))
    house.refused.clear()
    house.run(5, 1.2)
    assert not house.refused
    assert house.limit.house_bytes == NO_LIMIT
    house.limit.reload(FlowSection())
    house.run(5, 1.2)
    assert house.refused


def test_another_limit_counts_at_once() -> None:
    house = House()
    house.run(5, 1.2)
    before = house.limit.house_bytes
    house.limit.reload(FlowSection(house_ms=120))
    assert house.limit.house_bytes > 1.5 * before


def test_one_interval_says_little_of_the_rate() -> None:
    """In most of it something stood in the way: the limit is that of before."""
    house = House()
    house.run(10, 1.2)
    for _ in range(5):
        house.stalled_until_ms = house.now_ms + 170
        for _ in range(1500):
            house.run(0.001, 1.2)
            assert house.limit.rate >= 0.85 * CAPACITY


def test_bursts_with_a_rest_between_them_are_no_growth() -> None:
    """Each is larger than the one before, and the log had nothing to do since that."""
    house = House()
    house.run(5, 0.8)
    for share_s in (0.30, 0.35, 0.39):
        for _ in range(500):
            house.step()
        house.offer(int(share_s * CAPACITY / SEND))
        for _ in range(500):
            house.step()
        assert not house.bytes
    assert not house.refused


def test_an_old_rate_is_forgotten() -> None:
    house = House()
    house.run(10, 1.2)
    house.run(RATE_AGE_MS / 1000 + 1, 0)
    house.capacity = CAPACITY / 8
    house.run(0.7, 0.2)
    assert 0 < house.limit.rate <= 0.15 * CAPACITY


def test_an_old_quickest_decision_is_forgotten() -> None:
    """The majority is far away by now."""
    house = House()
    house.run(10, 0.9)
    house.far_ms = 30
    house.run(QUICKEST_AGE_MS / 1000 + 1, 0.1)
    house.run(0.2, 0)
    house.run(10, 1.2)
    assert house.limit.house_bytes >= 0.3 * house.limit.rate


def test_an_overload_lasts_as_long_as_its_load() -> None:
    house = House()
    house.run(5, 1.5)
    for _ in range(10_000):
        house.run(0.001, 1.2)
        assert house.limit.overloaded


def test_a_pipe_that_fills_is_no_overload() -> None:
    """The majority is far away: entries, and with them the rate, grow for seconds, and so does what waits."""
    house = House()
    house.far_ms = 200
    house.run(8, 0.3)
    assert not house.refused
    assert house.limit.house_bytes <= 1.01 * house.limit.rate * TRIPS_MS_MAX / 1000


def test_the_next_entry_is_never_refused() -> None:
    """What is under way may be more than the limit: with nothing to propose next the log would have a rest."""
    house = House()
    house.run(5, 1.5)
    limit = house.limit
    assert limit.overloaded
    entry = limit.house_bytes // ENTRY_SHARE
    assert limit.excess(3 * limit.house_bytes, entry, house.now_ms) == 0
    assert limit.excess(3 * limit.house_bytes, entry + SEND, house.now_ms) == SEND


def test_a_new_leader_knows_nothing_of_the_rate_of_before() -> None:
    house = House()
    house.run(5, 1.5)
    limit = house.limit
    limit.forget()
    assert not limit.overloaded
    assert not limit.watching
    assert (limit.rate, limit.house_bytes, limit.entry_bytes) == (0.0, NO_LIMIT, ENTRY_BYTES_UNKNOWN)
    house.capacity = CAPACITY / 8
    house.run(0.7, 0.2)
    assert 0 < limit.rate <= 0.2 * CAPACITY, "two entries were under way"


def test_without_it_an_entry_may_be_large_from_the_first_send_on() -> None:
    assert AdmissionLimit(FlowSection(admission=False)).entry_bytes == NO_LIMIT
