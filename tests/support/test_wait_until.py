"""A wait ends when nothing goes on any more, however slow what goes on is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import wait_until
from tests.support.wait_until import wait


class Clock:
    """Seconds pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wait_until, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


def test_what_is_slow_and_goes_on_is_waited_for(clock: Clock) -> None:
    def rows() -> int:
        return int(clock.now_s / 9)

    assert wait(lambda: rows() >= 5, progress=rows, patience_s=10, every_s=1)
    assert clock.now_s == 45


def test_what_stands_still_is_given_up(clock: Clock) -> None:
    def rows() -> int:
        return min(2, int(clock.now_s / 9))

    with pytest.raises(AssertionError, match=r"^2 of 5$"):
        wait(lambda: rows() >= 5, lambda: f"{rows()} of 5", progress=rows, patience_s=10, every_s=1)
    assert clock.now_s == 18 + 10


def test_without_progress_the_time_alone_counts(clock: Clock) -> None:
    with pytest.raises(AssertionError, match=r"^never$"):
        wait(lambda: False, "never", patience_s=10, every_s=1)
    assert clock.now_s == 10


def test_it_returns_what_it_was_told(clock: Clock) -> None:
    assert wait(lambda: clock.now_s > 3 and ["alarm"], every_s=1) == ["alarm"]
