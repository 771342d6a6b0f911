"""The announcements of a disk before anything fails: that it fills up, how long it lasts, that it is slow."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cluster.config.storage_sections import RetentionSection
from cluster.replication.append_lane import Persisted
from cluster.retention.disk_space import FULL, DiskSpace
from cluster.retention.disk_warnings import FILLING, SLICE_MS, SLICES, SLOW, SlowAppends
from cluster.runtime.alarms import Alarms
from jepsen_like.fakes.memory_fs import MemoryFileSystem

TOTAL = 1 << 40
MINUTE_MS = 60_000
BOUND_MS = 250


class Watched:
    """A disk of TOTAL bytes, and what is said about it."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.alarms = Alarms(lambda: 0)
        self.now_ms = 0
        self.disk = DiskSpace(
            self.fs,
            Path("/"),
            RetentionSection(),
            self.alarms,
            refuse=lambda why: None,
            slow_append_ms=BOUND_MS,
        )

    def used(self, percent: float, minutes: float = 1.0) -> set[str]:
        """Returns the alarms when the disk is that full, so many minutes later."""
        self.fs.space_left = int(TOTAL * (1 - percent / 100))
        self.now_ms += int(minutes * MINUTE_MS)
        self.disk.tick(self.now_ms)
        return {alarm.key for alarm in self.alarms.all()}

    def appends(self, *seconds: float) -> None:
        """The append lane is done with so many drains."""
        for each in seconds:
            self.disk.on_persisted(Persisted(None, [], 1, 4096, each))

    def slices(self, count: int) -> set[str]:
        """Returns the alarms so many slices of the window later."""
        for _ in range(count):
            self.now_ms += SLICE_MS
            self.disk.tick(self.now_ms)
        return {alarm.key for alarm in self.alarms.all()}


def test_a_filling_disk_is_told_before_sends_are_refused_and_does_not_flap() -> None:
    seen = Watched()
    steps = [
        (74, set()),
        (76, {FILLING}),
        (74, {FILLING}),
        (72.9, set()),
        (74, set()),
        (76, {FILLING}),
        (91, {FULL}),
        (89, {FULL}),
        (87, {FILLING}),
        (50, set()),
    ]
    for percent, alarms in steps:
        assert seen.used(percent, 0.1) == alarms, percent


def test_a_disk_that_will_be_full_in_a_few_hours_is_told_while_it_is_half_empty() -> None:
    """One per cent in five minutes, from 50 to 90: three hours and twenty minutes."""
    seen = Watched()
    seen.used(50)
    assert seen.used(51, 5) == set(), "a burst says nothing yet"
    assert seen.disk.view().full_in_s is None
    assert seen.used(52, RetentionSection().disk_rate_ms / MINUTE_MS - 5) == {FILLING}
    assert seen.disk.view().full_in_s == pytest.approx(38 * 5 * 60, rel=0.01)
    for _ in range(60):
        alarms = seen.used(52)
    assert alarms == set(), "it stopped growing an hour ago"
    assert seen.disk.view().full_in_s is None


def test_how_long_a_disk_is_observed_can_be_configured() -> None:
    """A minute is configured, and the last six minutes count."""
    seen = Watched()
    seen.disk.reload(RetentionSection(disk_rate_ms=MINUTE_MS))
    seen.used(50)
    assert seen.used(50.5, 0.5) == set()
    assert seen.used(51, 0.5) == {FILLING}
    assert seen.disk.view().full_in_s == pytest.approx(39 * 60, rel=0.01)
    for _ in range(58):
        alarms = seen.used(51, 0.1)
    assert alarms == {FILLING}, "it grew less than six minutes ago"
    for _ in range(5):
        alarms = seen.used(51, 0.1)
    assert alarms == set()


def test_a_disk_that_grows_slowly_is_no_news() -> None:
    seen = Watched()
    for minute in range(300):
        assert seen.used(50 + minute / 100) == set()
    full_in_s = seen.disk.view().full_in_s
    assert full_in_s is not None
    assert full_in_s > 50 * 3600


def test_the_alarm_names_limit_key_and_what_to_do_and_is_no_news_every_second() -> None:
    seen = Watched()
    seen.used(80)
    first = seen.alarms.all()[0]
    seen.used(81)
    assert seen.alarms.all() == [first]
    for part in ("retention.disk_max_used_percent = 75", "disk_refuse_writes_percent = 90", "retention.hours"):
        assert part in first.text


def test_other_limits_hold_at_once() -> None:
    seen = Watched()
    assert seen.used(80) == {FILLING}
    seen.disk.reload(msgspec.structs.replace(RetentionSection(), disk_max_used_percent=84))
    assert seen.used(80) == set()


def test_a_slow_disk_raises_its_alarm_and_half_the_bound_ends_it() -> None:
    seen = Watched()
    seen.appends(*[0.001] * 97, 0.3, 0.4, 2.0)
    assert seen.slices(1) == {SLOW}
    assert seen.disk.view().slow_appends == 3
    for _ in range(SLICES):
        seen.appends(*[0.2] * 100)
        assert seen.slices(1) == {SLOW}, "below the bound and above half of it: it could flap"
    for _ in range(SLICES - 1):
        seen.appends(*[0.001] * 100)
        assert seen.slices(1) == {SLOW}
    seen.appends(*[0.001] * 100)
    assert seen.slices(1) == set()


@pytest.mark.parametrize("seconds", [[0.3, 0.3], [0.001] * 297 + [0.3] * 3, [0.25] * 100], ids=["two", "1%", "at"])
def test_hiccups_are_no_slow_disk(seconds: list[float]) -> None:
    seen = Watched()
    seen.appends(*seconds)
    assert seen.slices(SLICES) == set()


def test_a_disk_that_becomes_slow_under_load_is_told_within_15_s_and_for_as_long_as_it_is() -> None:
    """300 messages a second in as many appends, then syncs of 600 ms one after another. The quick appends of the minute
    before are thousands: against them the slow ones would be one in a hundred only after a minute and more."""
    for begins_ms in range(0, SLICE_MS, 500):
        seen = Watched()
        for _ in range(60):
            seen.appends(*[0.003] * 300)
            seen.now_ms += 1000
            seen.disk.tick(seen.now_ms)
        seen.appends(*[0.003] * (300 * begins_ms // 1000))
        seen.now_ms += begins_ms
        seen.disk.tick(seen.now_ms)
        told_ms, began_ms = None, seen.now_ms
        while seen.now_ms < began_ms + 2 * MINUTE_MS:
            seen.now_ms += 600
            seen.appends(0.6)
            seen.disk.tick(seen.now_ms)
            if told_ms is None and seen.slices(0) == {SLOW}:
                told_ms = seen.now_ms - began_ms
            assert told_ms is None or seen.slices(0) == {SLOW}, "it is still slow"
        assert told_ms is not None
        assert told_ms <= 8_000, "the other nodes learn of it up to 6 s later"
        for _ in range(SLICES - 1):
            seen.appends(*[0.003] * 1500)
            assert seen.slices(1) == {SLOW}, "many quick appends do not end it at once: it could flap"
        seen.appends(*[0.003] * 1500)
        assert seen.slices(1) == set()


def test_half_a_slice_of_slow_appends_is_enough_and_three_of_many_are_not() -> None:
    for quick, alarms in ((0, {SLOW}), (2, {SLOW}), (3, set[str]()), (400, set[str]())):
        seen = Watched()
        seen.appends(*[0.001] * 100)
        assert seen.slices(1) == set()
        seen.appends(*[0.8] * 3, *[0.001] * quick)
        seen.now_ms += SLICE_MS // 2 - 1
        assert seen.slices(0) == set()
        seen.disk.tick(seen.now_ms)
        assert seen.slices(0) == set(), "too early"
        seen.now_ms += 1
        seen.disk.tick(seen.now_ms)
        assert seen.slices(0) == alarms, quick


@pytest.mark.parametrize("sync_ms", [800, 1_300, 1_700, 2_400])
def test_long_syncs_are_found_within_15_s_however_few_they_are(sync_ms: int) -> None:
    """A follower takes all that has arrived with one sync: of syncs of 2 s, five do in ten seconds."""
    for begins_ms in range(0, SLICE_MS, 500):
        seen = Watched()
        for _ in range(600):
            seen.appends(*[0.003] * 30)
            seen.now_ms += 100
            seen.disk.tick(seen.now_ms)
        seen.now_ms += begins_ms
        seen.disk.tick(seen.now_ms)
        began_ms, told_ms = seen.now_ms, list[int]()
        while seen.now_ms < began_ms + MINUTE_MS:
            if (seen.now_ms - began_ms) % sync_ms == 0 and seen.now_ms > began_ms:
                seen.appends(sync_ms / 1000)
            seen.now_ms += 50
            seen.disk.tick(seen.now_ms)
            if seen.slices(0) == {SLOW}:
                told_ms.append(seen.now_ms - began_ms)
        assert told_ms, begins_ms
        assert told_ms[0] <= 10_050, (begins_ms, "the other nodes learn of it within 5 s")
        assert len(told_ms) == (MINUTE_MS - told_ms[0]) // 50 + 1, "it does not flap"


def test_one_long_sync_is_a_hiccup() -> None:
    seen = Watched()
    seen.appends(4.0)
    assert seen.slices(1) == set()


@pytest.mark.parametrize("passed_ms", [SLICE_MS // 2, SLICE_MS])
def test_two_slow_appends_are_enough_only_if_they_alone_took_half_a_slice(passed_ms: int) -> None:
    """An append of less than the bound does not count among them."""
    for seconds, alarms in ((1.15, set[str]()), (1.3, {SLOW})):
        seen = Watched()
        seen.slices(1)
        seen.appends(seconds, seconds, 0.24)
        seen.now_ms += passed_ms
        seen.disk.tick(seen.now_ms)
        assert seen.slices(0) == alarms, seconds


def test_slow_appends_of_a_minute_ago_are_forgotten() -> None:
    seen = Watched()
    seen.appends(1.0, 1.0)
    seen.slices(SLICES)
    seen.appends(1.0)
    assert seen.slices(1) == set()


def test_an_idle_disk_is_not_slow_for_ever() -> None:
    seen = Watched()
    seen.appends(1.0, 1.0, 1.0)
    assert seen.slices(1) == {SLOW}
    assert seen.slices(SLICES) == set()


def test_zero_switches_it_off() -> None:
    appends = SlowAppends(0, Alarms(lambda: 0))
    assert not any(appends.note(60.0) for _ in range(100))
