"""The judges of the compat matrix: each complains of what it is for, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.compat_judges import (
    ATTEMPTS,
    ERROR_MAX,
    JUDGES,
    KNOWN_S,
    RECOVERED_S,
    Delivery,
    Seen,
    Send,
    committed,
    delay_s,
    delivered_twice,
    failures,
    gave_up,
    waits_s,
)
from tests.support.rows import each_row

COUNT = 40


def complaints(feature: str, seen: Seen) -> str:
    return "\n".join(JUDGES[feature](seen))


def good(feature: str) -> Seen:
    """A cell in which everything happened as it should: message n is sent at n s and delivered 10 s later."""
    keys = [f"{feature}-{n}" for n in range(COUNT)]
    seen = Seen([Send(key, n, n + 0.1, reply=f"reply to {key}") for n, key in enumerate(keys)])
    for n, key in enumerate(keys):
        if feature == "transaction" and not committed(key):
            continue
        if (feature == "tag" and n % 3 == 1) or (feature == "sql" and n % 100 < 50):
            continue
        for tried in range(min(failures(key), ATTEMPTS - 1) + 1 if feature == "retry" else 1):
            for reader in "ab" if feature == "broadcast" else "a":
                seen.deliveries.append(Delivery(key, n + 10.0 + tried, reader, tried, n % 4, n // 4))
    if feature == "retry":
        seen.dead = [key for key in keys if failures(key) == ATTEMPTS]
    if feature == "reset":
        seen.reset_at = 100.0
        seen.deliveries += [replace(each, at=each.at + 100) for each in seen.deliveries]
    return seen


@each_row("feature", JUDGES)
def test_nothing_is_said_of_a_good_cell(feature: str) -> None:
    assert complaints(feature, good(feature)) == ""


@each_row("feature", [feature for feature in JUDGES if feature != "sql"])
def test_an_acknowledged_message_that_nobody_consumed(feature: str) -> None:
    seen = good(feature)
    key = f"{feature}-3"
    seen.deliveries = [each for each in seen.deliveries if each.key != key]
    assert "acknowledged and not consumed" in complaints(feature, seen)
    assert key in complaints(feature, seen)
    seen.sends = [replace(each, error="timeout") if each.key == key else each for each in seen.sends]
    assert key not in complaints(feature, replace(seen, kills=[COUNT]))


def test_a_reader_of_a_broadcasting_group_that_was_left_out() -> None:
    seen = good("broadcast")
    seen.deliveries = [each for each in seen.deliveries if (each.key, each.reader) != ("broadcast-5", "b")]
    assert complaints("broadcast", seen) == "acknowledged and not consumed by b: 1 (broadcast-5)"


def test_dead_letters_that_should_not_be_and_those_that_are_absent() -> None:
    seen = good("retry")
    assert seen.dead == ["retry-0", "retry-20"]
    assert "no dead letter: 1 (retry-20)" in complaints("retry", replace(seen, dead=["retry-0"]))
    assert "not fail often enough: 1 (retry-1)" in complaints("retry", replace(seen, dead=[*seen.dead, "retry-1"]))
    short = [each for each in seen.deliveries if (each.key, each.tried) != ("retry-20", 3)]
    assert "not fail often enough: 1 (retry-20)" in complaints("retry", replace(seen, deliveries=short))


def test_an_attempt_that_was_swallowed() -> None:
    seen = good("retry")
    seen.deliveries = [each for each in seen.deliveries if (each.key, each.tried) != ("retry-2", 2)]
    assert complaints("retry", seen) == "not delivered again as often as they failed: 1 (retry-2)"


@pytest.mark.parametrize("feature", ["delay", "timer"])
def test_a_message_before_its_time(feature: str) -> None:
    seen = good(feature)
    key = f"{feature}-6"
    due = 6 + delay_s(feature, key)
    seen.deliveries.append(Delivery(key, due))
    assert complaints(feature, seen) == ""
    seen.deliveries.append(Delivery(key, due - 0.5))
    assert complaints(feature, seen) == f"delivered too early, by up to 0.500 s: 1 ({key})"


@pytest.mark.parametrize("key", ["transaction-10", "transaction-12", "orphan-1"])
def test_a_message_that_was_rolled_back(key: str) -> None:
    seen = good("transaction")
    seen.deliveries.append(Delivery(key, 50.0))
    assert complaints("transaction", seen) == f"rolled back and consumed: 1 ({key})"


def test_a_committed_message_of_a_killed_producer() -> None:
    seen = good("transaction")
    seen.sends += [Send("orphan-0", 1, 2), Send("orphan-1", 1, 2)]
    assert complaints("transaction", seen) == "acknowledged and not consumed: 1 (orphan-0)"


def test_order_within_a_queue() -> None:
    seen = good("orderly")
    again = [each for each in seen.deliveries if each.queue == 1][3:]
    seen.deliveries += [replace(each, reader="b") for each in again]
    assert complaints("orderly", seen) == "", "another reader takes the queue over, from what was committed"
    seen.deliveries.append(Delivery("orderly-1", 99, "b", 0, 1, 11))
    assert complaints("orderly", seen) == "queue 1: offset 11 was given to b right after 9"


@pytest.mark.parametrize(("feature", "key"), [("tag", "tag-4"), ("sql", "sql-49")])
def test_a_message_that_was_not_selected(feature: str, key: str) -> None:
    seen = good(feature)
    seen.deliveries.append(Delivery(key, 60.0))
    assert complaints(feature, seen) == f"not selected and consumed: 1 ({key})"


def test_a_selected_message_that_is_missing() -> None:
    seen = good("sql")
    seen.sends.append(Send("sql-50", 50, 51))
    assert complaints("sql", seen) == "acknowledged and not consumed: 1 (sql-50)"


def test_a_reset_that_was_not_followed() -> None:
    seen = good("reset")
    seen.deliveries = [each for each in seen.deliveries if each.key != "reset-7" or each.at < 100]
    assert complaints("reset", seen) == "not consumed again after the reset: 1 (reset-7)"
    assert complaints("reset", replace(seen, reset_at=None)) == "the group was not reset"


def test_replies() -> None:
    seen = good("request")
    crossed = [replace(each, reply="reply to request-1") for each in seen.sends[:2]]
    assert complaints("request", replace(seen, sends=crossed)) == (
        "answered with the reply to another request: 1 (request-0)"
    )
    seen.sends.append(Send("request-98", KNOWN_S, 30, error="timeout"))
    assert complaints("request", seen) == ""
    late = Send("request-99", 20 + RECOVERED_S, 90, error="timeout")
    seen.sends.append(late)
    assert complaints("request", replace(seen, kills=[21.0])) == ""
    assert complaints("request", replace(seen, kills=[19.0])) == "not answered although no leader died: 1 (request-99)"


def test_a_message_that_was_reported_twice_is_acknowledged_once() -> None:
    seen = Seen([Send("k-0", 1, 2), Send("k-0", 1, 3), Send("k-1", 1, 2, error="timeout")])
    assert [send.ended for send in seen.acknowledged] == [3]


def test_waits_after_kills() -> None:
    times = (1.0, 2.0, 11.0, 12.0, 14.0, 30.0)
    seen = Seen(deliveries=[Delivery("k-0", at) for at in times], kills=[3.0, 13.0, 20.0])
    assert waits_s(seen) == [9.0, 16.0, 16.0]
    assert waits_s(replace(seen, kills=[])) == []


def test_a_second_delivery_of_one_attempt() -> None:
    seen = Seen(deliveries=[Delivery("k-0", 1.0), Delivery("k-0", 2.0, tried=1), Delivery("k-0", 3.0, "b")])
    assert delivered_twice(seen) == 0
    seen.deliveries.append(Delivery("k-0", 4.0))
    assert delivered_twice(seen) == 1


def test_errors_of_one_kind_are_counted_together_and_codes_are_kept() -> None:
    def failed(error: str | None) -> Send:
        return Send("tag-1", 1.0, 2.0, error)

    sends = [
        failed("MQBrokerException: CODE: 14  DESC: no leader yet (term 7) BROKER: 127.0.0.1:4001"),
        failed("connect to 127.0.0.1:4001 failed"),
        failed("MQBrokerException: CODE: 14  DESC: no leader yet (term 12) BROKER: 127.0.0.1:4002"),
        failed("MQBrokerException: CODE: 2  DESC: no leader yet (term 12) BROKER: 127.0.0.1:4002"),
        failed(None),
        failed(f"no answer to 7F0000010B2A18B4AAC2{'0' * 12}\n" + "x" * 500),
    ]
    found = gave_up(Seen(sends))
    assert list(found.items())[:2] == [
        ("MQBrokerException: CODE: 14 DESC: no leader yet (term N) BROKER: ADDRESS", 2),
        ("connect to ADDRESS failed", 1),
    ]
    assert list(found.values()) == [2, 1, 1, 1]
    assert [len(kind) for kind in found][3] == ERROR_MAX
