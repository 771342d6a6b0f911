"""The moments when sends are refused for lack of space and when they are taken again, and what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.storage_sections import RetentionSection
from cluster.replication.append_lane import Persisted
from cluster.retention.disk_space import FULL, LOOK_EVERY_MS, PARKED, RESERVE_BYTES_MAX, RETRY_MS, DiskSpace
from cluster.runtime.alarms import Alarms
from jepsen_like.fakes.memory_fs import MemoryFileSystem

TOTAL = 1 << 40
OK = Persisted(None, [], 1, 0, 0.0)
WAITS = Persisted(None, [], 0, 0, 0.0, "no space left")


class Watched:
    """A disk of TOTAL bytes, and what follows from how full it is."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.alarms = Alarms(lambda: 0)
        self.refused = ""
        self.retries = 0
        self.now_ms = 0
        self.held: list[bool] = []
        self.disk = DiskSpace(
            self.fs,
            Path("/"),
            RetentionSection(),
            self.alarms,
            refuse=self._refuse,
            hold=self.held.append,
            groups_here=lambda: self.groups_here,
        )
        self.disk.retry.add(self._retry)
        self.groups_here = 1

    def _refuse(self, why: str) -> None:
        self.refused = why

    def _retry(self) -> None:
        self.retries += 1

    def used(self, percent: float) -> Watched:
        """The disk is that full, and the time has come to look."""
        self.fs.space_left = int(TOTAL * (1 - percent / 100))
        self.now_ms += LOOK_EVERY_MS
        self.disk.tick(self.now_ms)
        return self


def test_it_refuses_above_the_line_and_resumes_well_below_it() -> None:
    seen = Watched()
    steps = [(89.9, False), (90.1, True), (89.0, True), (88.1, True), (87.9, False), (89.9, False), (90.5, True)]
    for percent, refusing in steps:
        seen.used(percent)
        assert bool(seen.refused) is refusing, percent
        assert seen.alarms.raised(FULL) is refusing, percent
    assert seen.disk.view().refusals == 2


def test_the_refusal_names_limit_value_key_and_what_follows() -> None:
    text = Watched().used(95).refused
    for part in ("95.0 per cent", "retention.disk_refuse_writes_percent = 90", "nothing was stored", "below 88"):
        assert part in text


def test_between_two_looks_nothing_is_measured() -> None:
    seen = Watched().used(50)
    seen.fs.space_left = 0
    seen.disk.tick(seen.now_ms + LOOK_EVERY_MS - 1)
    assert not seen.refused
    seen.disk.tick(seen.now_ms + LOOK_EVERY_MS)
    assert seen.refused


@pytest.mark.parametrize(("free", "kept"), [(RESERVE_BYTES_MAX, False), (RESERVE_BYTES_MAX - 1, True)])
def test_the_reserve(free: int, kept: bool) -> None:
    seen = Watched().used(100 - 100 * free / TOTAL)
    assert bool(seen.disk.reserved()) is kept
    assert bool(seen.used(100 - 300 * free / TOTAL).disk.reserved()) is False
    seen.groups_here = 3
    assert bool(seen.used(100 - 300 * free / TOTAL).disk.reserved()) is kept, "each group's nodes have their own"


def test_a_log_that_waits_is_tried_again_and_said_to_wait_until_it_does_not() -> None:
    seen = Watched().used(10)
    seen.disk.on_persisted(OK)
    assert not seen.alarms.all()
    seen.disk.on_persisted(WAITS)
    seen.disk.on_persisted(WAITS)
    assert seen.alarms.raised(PARKED)
    assert "log waits for space" in seen.refused
    for _ in range(10):
        seen.now_ms += RETRY_MS // 2
        seen.disk.tick(seen.now_ms)
    assert seen.retries == 5
    seen.disk.on_persisted(OK)
    assert not seen.alarms.all()
    assert not seen.refused
    seen.disk.tick(seen.now_ms + 10 * RETRY_MS)
    assert seen.retries == 5
    assert seen.disk.view().parkings == 1
    assert seen.held == [True, False], "it must not be elected meanwhile"


def test_a_disk_that_cannot_be_measured_changes_nothing() -> None:
    seen = Watched().used(95)

    def fail(path: Path) -> int:
        raise OSError(5, "Input/output error", str(path))

    seen.fs.free_bytes = fail  # type: ignore[method-assign]
    seen.used(10)
    assert seen.refused
