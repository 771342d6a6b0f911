"""Reading a planned range: all of it in order, or an error. A client that answers from a script stands in."""

from __future__ import annotations

import concurrent.futures
import random
import struct
from typing import Any

import pytest

import raftmq
from raftmq import PullStatus
from raftmq.arrow import reading
from raftmq.arrow.ranges import QueueRange, Unreadable
from raftmq.arrow.read_rate import ReadRate
from raftmq.arrow.reading import LAG_PATIENCE_S, MAX_BATCH_BYTES, RangeReader
from raftmq.client.consuming.pull import PulledFrames
from raftmq_wire.message_format import Message, encode_message

TOPIC = "orders"
FOLLOWER = "127.0.0.1:9"


def message(offset: int, *, queue: int = 0, topic: str = TOPIC, body: bytes = b"x") -> Message:
    return Message(topic, body, queue_id=queue, queue_offset=offset, position=offset * 100)


def found(*messages: Message, next_offset: int | None = None) -> PulledFrames:
    after = messages[-1].queue_offset + 1 if next_offset is None else next_offset
    return PulledFrames(PullStatus.FOUND, b"".join(map(encode_message, messages)), after, 0, 100)


def nothing(status: PullStatus = PullStatus.END, low: int = 0, high: int = 3) -> PulledFrames:
    return PulledFrames(status, b"", high, low, high)


class Script:
    """Answers the pulls one after the other and notes what was asked; the last answer repeats. Counts as the clock."""

    def __init__(self, *answers: PulledFrames | raftmq.RaftMQError) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[int, int]] = []
        self.nodes: list[str | None] = []
        self.looked_up: list[tuple[int, str | None]] = []
        """The number of positions that were asked for in one request, and the node that was asked."""
        self.no_entries_from: set[str | None] = set()

    def pull_frames_soon(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        node: str | None,
        wait_s: float,
        timeout_s: float,
    ) -> concurrent.futures.Future[PulledFrames]:
        self.asked.append((offset, max_messages))
        self.nodes.append(node)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        future: concurrent.futures.Future[PulledFrames] = concurrent.futures.Future()
        if isinstance(answer, raftmq.RaftMQError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def entries_at(self, positions: bytes, *, node: str | None, timeout_s: float, group: int = 1) -> bytes:
        """Ten messages of 100 bytes are in an entry; terms are indexes divided by 100."""
        self.looked_up.append((len(positions) // 8, node))
        if node in self.no_entries_from:
            raise raftmq.NotFound("the log of node 2 does not reach down to the message")
        each = [position // 1000 for (position,) in struct.iter_unpack(">Q", positions)]
        return b"".join(struct.pack(">QQI", index, index // 100, 1) for index in each)

    def clock(self) -> float:
        """One second passes with each pull."""
        return float(len(self.asked))


def offsets(
    script: Script, start: int, end: int, batch_rows: int = 100, *, node: str | None = None, skip_lost: bool = False
) -> list[list[int]]:
    planned = QueueRange(TOPIC, 0, start, end)
    reader = RangeReader(script, planned, node=node, skip_lost=skip_lost, clock=script.clock)
    return [batch.column(0).to_pylist() for batch in reader.batches(("queue_offset",), batch_rows)]


def test_a_range_over_several_pulls() -> None:
    script = Script(found(message(5), message(6)), found(message(7), message(8), message(9)))
    assert offsets(script, 5, 10) == [[5, 6, 7, 8, 9]]
    assert script.asked == [(5, 5), (7, 3)]


class Log:
    """Answers each pull from a queue, as a node does: with as many messages as were asked for and as have room."""

    def __init__(self, sizes: list[int], room: int) -> None:
        self._frames = [encode_message(message(offset, body=b"x" * size)) for offset, size in enumerate(sizes)]
        self._room = room
        self.asked: list[int] = []

    def pull_frames_soon(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        node: str | None,
        wait_s: float,
        timeout_s: float,
    ) -> concurrent.futures.Future[PulledFrames]:
        self.asked.append(offset)
        frames = self._frames[offset : offset + 1]
        for each in self._frames[offset + 1 : offset + max_messages]:
            if sum(map(len, frames)) + len(each) > self._room:
                break
            frames.append(each)
        future: concurrent.futures.Future[PulledFrames] = concurrent.futures.Future()
        after = offset + len(frames)
        future.set_result(PulledFrames(PullStatus.FOUND, b"".join(frames), after, 0, len(self._frames)))
        return future

    def entries_at(self, positions: bytes, *, node: str | None, timeout_s: float, group: int = 1) -> bytes:
        raise AssertionError


def test_two_pulls_are_in_flight_while_rows_are_used() -> None:
    log = Log([1] * 5000, 1 << 20)
    batches = RangeReader(log, QueueRange(TOPIC, 0, 10, 5000)).batches(("queue_offset",), 100)
    next(batches)
    assert log.asked == [10, 1034, 2058]
    assert 100 + sum(batch.num_rows for batch in batches) == 4990
    assert log.asked == [10, 1034, 2058, 3082, 4106], "none was asked for in vain"


@pytest.mark.parametrize("seed", range(30))
def test_replies_without_room_for_all_cost_few_pulls(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of any size: each row once, in order. Of those of one size, only the first pull is too large."""
    chance = random.Random(seed)
    room = 4000
    monkeypatch.setattr(reading, "_FULL_BYTES", room // 2)
    monkeypatch.setattr(reading, "MAX_PULL_MESSAGES", 40)
    alike = chance.random() < 0.5
    size = chance.randrange(1, 3000)
    sizes = [size if alike else chance.randrange(1, 3000) for _ in range(chance.randrange(1, 300))]
    log = Log(sizes, room)
    found = [
        n
        for batch in RangeReader(log, QueueRange(TOPIC, 0, 0, len(sizes))).batches(("queue_offset",), 64)
        for n in batch.column(0).to_pylist()
    ]
    assert found == [*range(len(sizes))]
    if alike:
        fits = min(40, max(1, room // len(encode_message(message(0, body=b"x" * size)))))
        assert len(log.asked) <= 2 + len(sizes) / max(1, fits * 0.9 - 1)


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
    assert offsets(Script(*(found(message(n, body=half)) for n in range(3))), 0, 3) == [[0, 1], [2]]


def test_a_leader_that_lags_is_asked_again() -> None:
    script = Script(found(message(0)), nothing(high=1), nothing(PullStatus.MOVED, high=0), found(message(1)))
    assert offsets(script, 0, 2) == [[0, 1]]


def test_a_leader_that_never_catches_up_is_an_error() -> None:
    script = Script(found(message(0)), nothing(high=1))
    with pytest.raises(Unreadable, match=r"offset 1 of orders queue 0 .*cannot be read"):
        offsets(script, 0, 2)
    assert len(script.asked) >= LAG_PATIENCE_S


def test_a_follower_that_lags_is_left_for_the_leader() -> None:
    script = Script(found(message(0)), nothing(high=1), found(message(1), message(2)))
    assert offsets(script, 0, 3, node=FOLLOWER) == [[0, 1, 2]]
    assert script.nodes == [FOLLOWER, FOLLOWER, None]


def test_a_follower_that_fails_is_left_for_the_leader() -> None:
    script = Script(found(message(0)), raftmq.Unreachable("nobody there"), found(message(1)), found(message(2)))
    assert offsets(script, 0, 3, node=FOLLOWER) == [[0, 1, 2]]
    assert script.nodes == [FOLLOWER, FOLLOWER, None, None]


def test_what_retention_removed_is_an_error() -> None:
    with pytest.raises(Unreadable, match="begins at 7"):
        offsets(Script(nothing(PullStatus.MOVED, low=7, high=20)), 3, 10)


def test_what_retention_removed_is_left_out_if_that_is_wanted() -> None:
    script = Script(found(message(3)), nothing(PullStatus.MOVED, low=7, high=20), found(*map(message, range(7, 10))))
    assert offsets(script, 3, 10, skip_lost=True) == [[3], [7, 8, 9]]
    assert offsets(Script(nothing(PullStatus.MOVED, low=30, high=40)), 3, 10, skip_lost=True) == []


@pytest.mark.parametrize("wrong", [message(2), message(1, queue=3), message(1, topic="others"), message(0)])
def test_anything_but_the_next_message_is_an_error(wrong: Message) -> None:
    with pytest.raises(Unreadable, match="offset 1 of orders queue 0"):
        offsets(Script(found(message(0), wrong, next_offset=3)), 0, 3)


def test_fewer_messages_than_the_reply_says_are_an_error() -> None:
    with pytest.raises(Unreadable, match=r"offset 1 of orders queue 0 .* went on at 3"):
        offsets(Script(found(message(0), next_offset=3)), 0, 3)


def test_a_reply_that_does_not_go_on_is_an_error() -> None:
    with pytest.raises(Unreadable, match="says to go on at 0"):
        offsets(Script(found(message(0), next_offset=0)), 0, 3)


def test_damaged_bytes_are_an_error() -> None:
    good = encode_message(message(0))
    bad = PulledFrames(PullStatus.FOUND, good[:-1] + b"?", 1, 0, 100)
    torn = bad._replace(frames=good[:-1])
    assert offsets(Script(bad._replace(frames=good)), 0, 1) == [[0]]
    with pytest.raises(Unreadable, match="not a stored message"):
        offsets(Script(torn), 0, 1)


def test_an_error_of_the_cluster_says_how_far_it_came() -> None:
    script = Script(found(message(0)), raftmq.Unreachable("nobody there"))
    with pytest.raises(Unreadable, match=r"orders queue 0 \[0, 3\) stopped at offset 1"):
        offsets(script, 0, 3)


class Slept:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_a_reader_keeps_its_pace() -> None:
    time = Slept()
    pace = ReadRate(1000, time.clock, time.sleep)
    sizes = [len(encode_message(message(offset))) for offset in range(4)]
    script = Script(*(found(message(offset)) for offset in range(4)))
    batches = RangeReader(script, QueueRange(TOPIC, 0, 0, 4), pace=pace).batches(["queue_offset"], 10)
    assert sum(batch.num_rows for batch in batches) == 4
    assert time.now == pytest.approx(100 + sum(sizes) / 1000)


def test_a_pause_is_made_up_for_half_a_second_at_most() -> None:
    time = Slept()
    pace = ReadRate(1000, time.clock, time.sleep)
    time.now += 60
    pace.took(1500)
    assert time.now == pytest.approx(161)
    ReadRate(None, time.clock, time.sleep).took(1 << 40)
    assert time.now == pytest.approx(161)


def entries(script: Script, end: int, node: str | None = None) -> list[tuple[int, int]]:
    reader = RangeReader(script, QueueRange(TOPIC, 0, 0, end), node=node, clock=script.clock)
    batches = reader.batches(("index", "term"), 8192)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_index_and_term_are_looked_up_where_the_messages_come_from() -> None:
    script = Script(found(*map(message, range(1500))), found(*map(message, range(1500, 2500))))
    assert entries(script, 2500, "follower") == [(offset // 10, offset // 1000) for offset in range(2500)]
    assert script.looked_up == [(1024, "follower"), (1024, "follower"), (452, "follower")]


def test_no_entries_are_looked_up_for_other_columns() -> None:
    script = Script(found(message(0)))
    assert offsets(script, 0, 1) == [[0]]
    assert script.looked_up == []


def test_the_leader_is_asked_for_entries_that_a_follower_does_not_know() -> None:
    script = Script(found(message(0)))
    script.no_entries_from = {"follower"}
    assert entries(script, 1, "follower") == [(0, 0)]
    assert script.looked_up == [(1, "follower"), (1, None)]


def test_entries_that_nobody_knows_are_an_error() -> None:
    script = Script(found(message(0)))
    script.no_entries_from = {None}
    with pytest.raises(Unreadable, match=r"index and term .* of orders queue 0 .* from offset 0 on are not known"):
        entries(script, 1)


def test_an_answer_of_another_number_of_entries_is_an_error() -> None:
    class TooMany(Script):
        def entries_at(self, *_: Any, **__: Any) -> bytes:
            return struct.pack(">QQI", 1, 1, 2)

    script = TooMany(found(message(0)))
    with pytest.raises(Unreadable, match="not of 1 positions"):
        entries(script, 1)
