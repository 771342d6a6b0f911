"""A number in a property that is out of range counts as the nearest bound or is refused by name, never as if it were
not there."""

from __future__ import annotations

from cluster.broker.delivery_time import IMMUNITY_S_MAX, Delays, half_of, level_of
from cluster.broker.groups.reply_notes import TTL_MAX_MS, TTL_MIN_MS, ttl_of
from cluster.broker.refusal import Refused
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

DELAYS = Delays(CONFIG.timer)
LEVELS = len(CONFIG.timer.delay_levels.split())
NOT_SAID_MS = 123
"""When a half message is checked that says nothing."""
LARGE = (10**5, 10**6, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**25)
ODD = ("1.5", " 30", "x", "0x1", "\u0661", "-", "1e3")


def effect(name: str, value: str) -> int | str:
    """What a message with this property gets: a number, or the remark that refuses it."""
    properties = f"{name}\x01{value}\x02".encode()
    try:
        if name == "DELAY":
            delayed = DELAYS.of(properties, 0)
            return 0 if delayed is None else delayed.schedule.queue_id + 1
        if name == "CHECK_IMMUNITY_TIME_IN_SECONDS":
            named = properties + b"PGROUP\x01g\x02"
            return half_of(named, "T", 0, NOT_SAID_MS, PROPERTIES_BYTES_MAX).schedule.delay_ms
        delayed = DELAYS.of(properties, 0)
        return 0 if delayed is None else delayed.schedule.delay_ms or delayed.schedule.due_ms
    except Refused as refused:
        return refused.remark


TIMERS = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
BOUNDS = {"DELAY": (0, LEVELS), "CHECK_IMMUNITY_TIME_IN_SECONDS": (0, IMMUNITY_S_MAX * 1000)} | dict.fromkeys(
    TIMERS, (0, None)
)


@each_row("name", BOUNDS)
def test_a_number_out_of_range_is_cut_or_refused(name: str) -> None:
    least, most = BOUNDS[name]
    for number in LARGE:
        found = effect(name, str(number + CONFIG.timer.max_delay_ms if name in TIMERS else number))
        assert found == most or name in str(found), number
        assert effect(name, str(-number)) == least or name in str(effect(name, str(-number)))
        if number < 2**63:
            assert effect(name, f"+{'0' * 5000}{number}") == effect(name, str(number))
    for odd in ODD:
        assert f"{name}={odd}: not a number" in str(effect(name, odd))
    assert effect(name, "") == (NOT_SAID_MS if name.startswith("CHECK") else 0), "without a value it is not there"


def test_the_time_of_a_requester_is_cut() -> None:
    assert [ttl_of(str(number)) for number in LARGE[1:]] == [TTL_MAX_MS] * len(LARGE[1:])
    assert {ttl_of(text) for text in ("-1", "0", *ODD)} == {TTL_MIN_MS}


def test_a_level_is_read_once() -> None:
    assert level_of(b"DELAY\x011\x02DELAY\x01-3\x02DELAY\x01") == -3
