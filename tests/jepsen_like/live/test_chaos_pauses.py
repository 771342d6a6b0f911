"""The pauses that a blow to the cluster costs a client, measured on made-up histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jepsen_like.history import HistoryWriter, Op
from jepsen_like.live.probes.log_workload import LogWorkload
from jepsen_like.live.probes.repeating_producer import Repeats
from jepsen_like.live.stories.story_failover import Acks, Blow
from jepsen_like.live.subjects.subject import LoadPlan
from tests.support.rows import each_row

MS = 1_000_000
WRITERS = ["w0", "w1"]


def acks(**times_ms: list[int]) -> list[Op]:
    ops = [
        Op(0, 1, "ok", "send", {"id": f"{writer}-{number:07d}"}, at * MS)
        for writer, times in times_ms.items()
        for number, at in enumerate(times)
    ]
    return sorted(ops, key=lambda op: op.time_ns)


@each_row(
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
    found = Acks(acks(w0=[0, 100, 190, 200, 210, 300], w1=[*range(0, 400, 10)]), WRITERS)
    assert found.writers == ["w0", "w1"]
    assert found.worst_us(Blow(at * MS, until * MS)) == worst_ms * 1000


def test_a_writer_that_is_never_answered_again_is_no_short_pause() -> None:
    found = Acks(acks(w0=[0, 100], w1=[*range(0, 400, 10)]), WRITERS)
    assert found.worst_us(Blow(50 * MS, 90 * MS)) == 100_000
    assert found.worst_us(Blow(105 * MS, 300 * MS)) is None
    assert Acks([], WRITERS).worst_us(Blow(0, 1)) is None
    assert Acks(acks(w0=[*range(0, 400, 10)]), WRITERS).worst_us(Blow(0, MS)) is None, "w1 was never answered at all"


def test_only_acknowledged_sends_count() -> None:
    ops = acks(w0=[0, 100])
    refused = ops[0].value | {"error": "no"}
    others = [
        Op(0, 2, "fail", "send", refused, 50 * MS),
        Op(0, 2, "info", "send", refused, 60 * MS),
        Op(0, 2, "invoke", "send", ops[0].value, 70 * MS),
        Op(0, 3, "ok", "poll", {"messages": []}, 80 * MS),
    ]
    assert Acks([*ops, *others], ["w0"]).worst_us(Blow(10 * MS, 90 * MS)) == 100_000


class SlowestSubject:
    """A subject whose clients are never answered; the load is asked only for its writers."""

    load = LoadPlan(1000, 256)


def test_a_probe_that_sends_at_its_own_pace_is_no_writer(tmp_path: Path) -> None:
    """The probe of repeated sends sends one message each 206 ms. A blow that costs the writers 30 ms costs 30 ms."""
    history = HistoryWriter(tmp_path / "history.jsonl", {})
    subject: Any = SlowestSubject()
    load = LogWorkload(subject, history, subject.load, writers=2)
    load.abort()
    history.close()
    assert load.writers == tuple(WRITERS)
    probe = Repeats.message_id("8badf00d", 1).partition("-")[0]
    times = [*range(0, 500, 10), *range(520, 1000, 10)]
    ops = acks(w0=times, w1=times, **{probe: [*range(0, 1000, 206)]})
    assert probe in {str(op.value["id"]).partition("-")[0] for op in ops}, "the probe is planted"
    found = Acks(ops, load.writers)
    assert found.writers == WRITERS
    assert found.worst_us(Blow(505 * MS, 700 * MS)) == 30_000
    assert found.worst_us(Blow(100 * MS, 300 * MS)) == 10_000, "a calm window"
