"""The pauses that a blow to the cluster costs a client, measured on made-up histories."""

from __future__ import annotations

import pytest

from jepsen_like.history import Op
from jepsen_like.live.stories.story_failover import Acks, Blow

MS = 1_000_000


def acks(**times_ms: list[int]) -> list[Op]:
    ops = [
        Op(0, 1, "ok", "send", {"id": f"{writer}-{number:07d}"}, at * MS)
        for writer, times in times_ms.items()
        for number, at in enumerate(times)
    ]
    return sorted(ops, key=lambda op: op.time_ns)


@pytest.mark.parametrize(
    ("at", "until", "worst_ms"),
    [
        (105, 300, 90),  # w0 waits from 100 to 190
        (100, 300, 90),
        (95, 300, 100),  # it had begun before
        (195, 205, 10),  # the one before was over
        (105, 115, 90),  # it outlasts the window
        (0, 50, 100),  # from the first acknowledgement on
    ],
)
def test_a_blow_is_charged_with_the_longest_pause_of_any_writer(at: int, until: int, worst_ms: int) -> None:
    found = Acks(acks(w0=[0, 100, 190, 200, 210, 300], w1=[*range(0, 400, 10)]))
    assert found.writers == ["w0", "w1"]
    assert found.worst_us(Blow(at * MS, until * MS)) == worst_ms * 1000


def test_a_writer_that_is_never_answered_again_is_no_short_pause() -> None:
    found = Acks(acks(w0=[0, 100], w1=[*range(0, 400, 10)]))
    assert found.worst_us(Blow(50 * MS, 90 * MS)) == 100_000
    assert found.worst_us(Blow(105 * MS, 300 * MS)) is None
    assert Acks([]).worst_us(Blow(0, 1)) is None


def test_only_acknowledged_sends_count() -> None:
    ops = acks(w0=[0, 100])
    refused = ops[0].value | {"error": "no"}
    others = [
        Op(0, 2, "fail", "send", refused, 50 * MS),
        Op(0, 2, "info", "send", refused, 60 * MS),
        Op(0, 2, "invoke", "send", ops[0].value, 70 * MS),
        Op(0, 3, "ok", "poll", {"messages": []}, 80 * MS),
    ]
    assert Acks([*ops, *others]).worst_us(Blow(10 * MS, 90 * MS)) == 100_000
