"""Reading a planned range: all of it in order, or an error. A client that answers from a script stands in."""

from __future__ import annotations

import pytest

import raftmq
from pyspark_raftmq.errors import ReadError
from pyspark_raftmq.plan import QueueRange
from pyspark_raftmq.read import LAG_PATIENCE_S, MAX_BATCH_BYTES, read_range
from raftmq import PullStatus

TOPIC = "orders"


def message(offset: int, *, queue: int = 0, topic: str = TOPIC, body: bytes = b"x") -> raftmq.Message:
    return raftmq.Message(topic, queue, offset, offset * 100, body, None, None, {}, f"id{offset}", 1, 2)


def found(*messages: raftmq.Message) -> raftmq.PullResult:
    return raftmq.PullResult(PullStatus.FOUND, list(messages), messages[-1].queue_offset + 1, 0, 100)


def nothing(status: PullStatus = PullStatus.END, low: int = 0, high: int = 3) -> raftmq.PullResult:
    return raftmq.PullResult(status, [], high, low, high)


class Script:
    """Answers the pulls one after the other and notes what was asked; the last answer repeats. Counts as the clock."""

    def __init__(self, *answers: raftmq.PullResult | raftmq.RaftMQError) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[int, int]] = []

    def pull(
        self, topic: str, queue_id: int, offset: int, max_messages: int, *, wait_s: float, timeout_s: float
    ) -> raftmq.PullResult:
        self.asked.append((offset, max_messages))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, raftmq.RaftMQError):
            raise answer
        return answer

    def clock(self) -> float:
        """One second passes with each pull."""
        return float(len(self.asked))


def offsets(script: Script, start: int, end: int, batch_rows: int = 100) -> list[list[int]]:
    batches = read_range(script, TOPIC, QueueRange(0, start, end), batch_rows, clock=script.clock)
    return [[m.queue_offset for m in batch] for batch in batches]


def test_a_range_over_several_pulls() -> None:
    script = Script(found(message(5), message(6)), found(message(7), message(8), message(9)))
    assert offsets(script, 5, 10) == [[5, 6, 7, 8, 9]]
    assert script.asked == [(5, 5), (7, 3)]


def test_messages_past_the_end_are_left_out() -> None:
    assert offsets(Script(found(message(0), message(1), message(2))), 0, 2) == [[0, 1]]


def test_an_empty_range_asks_nothing() -> None:
    script = Script(nothing())
    assert offsets(script, 4, 4) == []
    assert script.asked == []


def test_batches_have_at_most_so_many_rows() -> None:
    assert offsets(Script(found(*map(message, range(5)))), 0, 5, batch_rows=2) == [[0, 1], [2, 3], [4]]


def test_batches_are_cut_by_size_too() -> None:
    half = b"x" * (MAX_BATCH_BYTES // 2)
    assert offsets(Script(found(*(message(n, body=half) for n in range(3)))), 0, 3) == [[0, 1], [2]]


def test_a_leader_that_lags_is_asked_again() -> None:
    script = Script(found(message(0)), nothing(high=1), nothing(PullStatus.MOVED, high=0), found(message(1)))
    assert offsets(script, 0, 2) == [[0, 1]]


def test_a_leader_that_never_catches_up_is_an_error() -> None:
    script = Script(found(message(0)), nothing(high=1))
    with pytest.raises(ReadError, match=r"offset 1 of orders queue 0 .*cannot be read"):
        offsets(script, 0, 2)
    assert len(script.asked) >= LAG_PATIENCE_S


def test_what_retention_removed_is_an_error() -> None:
    with pytest.raises(ReadError, match="begins at 7"):
        offsets(Script(nothing(PullStatus.MOVED, low=7, high=20)), 3, 10)


@pytest.mark.parametrize("wrong", [message(2), message(1, queue=3), message(1, topic="others"), message(0)])
def test_anything_but_the_next_message_is_an_error(wrong: raftmq.Message) -> None:
    with pytest.raises(ReadError, match="offset 1 of orders queue 0"):
        offsets(Script(found(message(0), wrong)), 0, 3)


def test_an_error_of_the_cluster_says_how_far_it_came() -> None:
    script = Script(found(message(0)), raftmq.Unreachable("nobody there"))
    with pytest.raises(ReadError, match=r"orders queue 0 \[0, 3\) stopped at offset 1"):
        offsets(script, 0, 3)
