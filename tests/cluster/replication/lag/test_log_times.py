"""The age of an entry, from the ends of the log that were noted once a second."""

from __future__ import annotations

from cluster.replication.lag.log_times import SAMPLES_MAX, LogTimes
from tests.support.kept_memory import bytes_kept
from tests.support.rows import each_row


def times(*samples: tuple[int, int]) -> LogTimes:
    made = LogTimes()
    for at_ms, last_index in samples:
        made.note(at_ms, last_index)
    return made


STEADY = [(1_000, 10), (2_000, 20), (3_000, 30)]


@each_row(
    ("index", "age_ms"),
    [
        (41, 0),  # not in the log yet
        (40, 0),  # the newest
        (35, 250),  # since the last sample
        (30, 500),
        (20, 1_500),
        (15, 2_000),
        (11, 2_400),
        (10, 2_500),  # at least: the log was that long at the first sample
        (1, 2_500),
    ],
)
def test_the_age_of_an_entry_lies_between_two_samples(index: int, age_ms: int) -> None:
    assert times(*STEADY).age_ms(index, 40, 3_500) == age_ms


def test_the_first_entry_after_a_quiet_hour_is_young() -> None:
    quiet = times(*STEADY, *((second * 1_000, 30) for second in range(4, 3_600)), (3_600_000, 31))
    assert quiet.age_ms(31, 31, 3_600_400) == 400
    assert quiet.age_ms(30, 31, 3_600_400) == 3_597_400


def test_nothing_is_known_before_the_first_sample() -> None:
    assert LogTimes().age_ms(1, 9, 5_000) == 0
    assert times((4_000, 9)).age_ms(3, 9, 5_000) == 1_000


def test_an_end_that_was_cut_is_forgotten() -> None:
    cut = times(*STEADY, (4_000, 12), (5_000, 22))
    assert cut.age_ms(22, 22, 5_000) == 0
    assert cut.age_ms(12, 22, 5_000) == 1_000
    assert cut.age_ms(13, 22, 5_000) == 900


def test_a_day_takes_few_samples_and_the_last_minutes_stay_exact() -> None:
    day, busy = 86_400, LogTimes()

    def pass_by() -> None:
        for second in range(day):
            busy.note(second * 1_000, second * 300)

    assert bytes_kept(pass_by) < 200 * SAMPLES_MAX
    now_ms, last = (day - 1) * 1_000, (day - 1) * 300
    for age_s in (1, 60, 240, 3_600, 43_200):
        assert busy.age_ms(last - 300 * age_s, last, now_ms) == 1_000 * age_s
