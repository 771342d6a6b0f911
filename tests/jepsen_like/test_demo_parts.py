"""The demo's halves against stand-ins that misbehave: what they must write down, and that the verdict finds it."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import NodeRecord
from jepsen_like.checker_log import check_log
from jepsen_like.demo import DemoResult, make_plan
from jepsen_like.demo_input import InputError, message_id_of, read_lines, records
from jepsen_like.demo_send import Pause, Sender, SendError, longest_pause
from jepsen_like.demo_story import RESULT_KEYS
from jepsen_like.history import HistoryWriter, Op, pair_up, read_history
from jepsen_like.read_node import read_node
from raftmq.client.consuming.pull import PullResult, PullStatus
from raftmq.client.errors import Failed, Refused, Unknown
from raftmq.client.message import Message, SendResult

Fate = Callable[[int], str]
"""number of the send -> ok, refused, unknown, lost (unknown and not stored), twice, swallowed (ok and not stored)."""


class FakeCluster:
    """A producer and a reader over one queue per topic; `fate` says what becomes of each send."""

    def __init__(self, fate: Fate = lambda number: "ok", hold: int = 0) -> None:
        self.fate, self.hold = fate, hold
        self.stored: list[bytes] = []
        self.waiting: list[Callable[[], None]] = []
        self.sent = 0

    def send_soon(self, topic: str, body: bytes, *, key: str, tag: str | None) -> Any:
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        number, self.sent = self.sent, self.sent + 1
        self.waiting.append(lambda: self._settle(number, body, future))
        while len(self.waiting) > self.hold:
            self.waiting.pop(0)()
        return future

    def release(self) -> None:
        self.hold = 0
        while self.waiting:
            self.waiting.pop(0)()

    def _settle(self, number: int, body: bytes, future: concurrent.futures.Future[SendResult]) -> None:
        fate = self.fate(number)
        if fate in ("ok", "twice", "unknown"):
            self.stored += [body] * (2 if fate == "twice" else 1)
        offset = len(self.stored) - 1
        if fate in ("ok", "twice", "swallowed"):
            future.set_result(SendResult("id", 0, offset - (fate == "twice"), 0))
        elif fate == "refused":
            future.set_exception(Refused("no"))
        elif fate == "failed":
            future.set_exception(Failed("no"))
        else:
            future.set_exception(Unknown("nobody answered"))

    def pull(self, topic: str, queue_id: int, offset: int, most: int, *, node: str, timeout_s: float) -> PullResult:
        found = [
            Message(topic, queue_id, offset + i, 0, body, None, None, {}, "", 0, 0)
            for i, body in enumerate(self.stored[offset : offset + 7])
        ]
        status = PullStatus.FOUND if found else PullStatus.END
        return PullResult(status, found, offset + len(found), 0, len(self.stored))


def node(number: int) -> NodeRecord:
    return NodeRecord(number, None, 1, 2, 3, 4, "log")


def play(tmp_path: Path, fate: Fate, count: int = 60) -> Any:
    cluster = FakeCluster(fate)
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        sender = Sender(cluster, "t", history)  # type: ignore[arg-type]
        sender.send_all(records(None, count), 10, 0, lambda: lambda: None)
        for number in (1, 2, 3):
            read_node(cluster, node(number), "t", [0], history, message_id_of)  # type: ignore[arg-type]
    return check_log(read_history(tmp_path / "h.jsonl").ops)


def test_all_well(tmp_path: Path) -> None:
    verdict = play(tmp_path, lambda number: "ok")
    assert verdict.valid is True
    assert verdict.read == {1: 60, 2: 60, 3: 60}
    assert DemoResult(verdict, 5, 1, 2).to_json(9) == {
        "seed": 9,
        "acked": 60,
        "read": 60,
        "lost": 0,
        "duplicated": 0,
        "failover_ms": 5,
        "term_before": 1,
        "term_after": 2,
    }
    assert tuple(DemoResult(verdict, 5, 1, 2).to_json(9)) == RESULT_KEYS


def test_a_swallowed_message_is_lost_on_each_replica(tmp_path: Path) -> None:
    verdict = play(tmp_path, lambda number: "swallowed" if number == 59 else "ok")
    assert (verdict.valid, verdict.count("lost")) == (False, 3)


def test_a_message_stored_twice_is_duplicated_on_each_replica(tmp_path: Path) -> None:
    verdict = play(tmp_path, lambda number: "twice" if number == 30 else "ok")
    assert (verdict.valid, verdict.count("duplicated")) == (False, 3)


@pytest.mark.parametrize("fate", ["refused", "failed"])
def test_a_refused_message_that_is_absent_is_fine(tmp_path: Path, fate: str) -> None:
    verdict = play(tmp_path, lambda number: fate if number % 7 == 0 else "ok")
    assert (verdict.valid, verdict.failed, verdict.unknown) == (True, 9, 0)


def test_unknown_messages_may_be_there_or_not(tmp_path: Path) -> None:
    verdict = play(tmp_path, lambda number: {5: "unknown", 6: "lost"}.get(number, "ok"))
    assert (verdict.valid, verdict.unknown, verdict.unknown_stored) == (True, 2, 1)


def test_the_slot_of_an_unknown_send_is_never_used_again(tmp_path: Path) -> None:
    """Otherwise one single-threaded process would have two operations under way, and the history is refused."""
    cluster = FakeCluster(lambda number: "unknown" if number % 2 else "ok")
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        sender = Sender(cluster, "t", history)  # type: ignore[arg-type]
        sender.send_all(records(None, 40), 0, 0, lambda: lambda: None)
    operations = pair_up(read_history(tmp_path / "h.jsonl").ops)
    retired = [o.invoked.process for o in operations if o.outcome == "info"]
    assert len(retired) == len(set(retired)) == 20


def test_the_blow_falls_only_with_enough_in_flight(tmp_path: Path) -> None:
    cluster = FakeCluster(hold=64)
    seen: list[int] = []
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        sender = Sender(cluster, "t", history)  # type: ignore[arg-type]

        def aim() -> Callable[[], None]:
            seen.append(cluster.sent)
            return strike_now

        def strike_now() -> None:
            seen.append(sender.in_flight)
            cluster.release()

        strike = sender.send_all(records(None, 300), 30, 64, aim)
    assert seen == [30, 64]
    assert (strike.in_flight, strike.invoked) == (64, 64)


def test_a_run_without_enough_in_flight_proves_nothing(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as history, pytest.raises(SendError, match="never 64 sends in flight"):
        Sender(FakeCluster(), "t", history).send_all(records(None, 100), 30, 64, lambda: lambda: None)  # type: ignore[arg-type]


def test_the_longest_pause() -> None:
    stamps_ms = [0, 10, 100, 850]
    ops = [
        Op(i, process, kind, "send", None, stamps_ms[i] * 1_000_000)  # type: ignore[arg-type]
        for i, (process, kind) in enumerate([(0, "invoke"), (1, "invoke"), (0, "ok"), (1, "ok")])
    ]
    assert longest_pause(ops) == Pause(750, 1)
    failed = [*ops[:3], Op(3, 1, "info", "send", None, 850_000_000)]
    assert longest_pause(failed) == Pause(750, 1), "a failure is no acknowledgement: the pause goes on"
    assert longest_pause([]) == Pause(0, 0)


def test_the_plan_is_a_function_of_the_seed() -> None:
    plans = [make_plan(seed, 20_000, None) for seed in range(200)]
    assert plans == [make_plan(seed, 20_000, None) for seed in range(200)]
    assert all(5_000 <= plan.strike_at < 15_000 for plan in plans)
    assert len({plan.strike_at for plan in plans}) > 150


def test_records_are_unique_and_real() -> None:
    made = list(records(None, 5_000))
    assert len({record.message_id for record in made}) == 5_000
    assert len({record.key for record in made}) > 1_500
    name, _, line = made[4_321].body.partition(b"\t")
    assert name == b"m004321"
    assert json.loads(line)["package"] == made[4_321].key
    assert json.loads(line)["section"] == made[4_321].tag


def test_a_body_that_changed_on_the_way_has_another_id() -> None:
    record = next(records(None, 1))
    changed = record.body.replace(b"a", b"b", 1)
    assert message_id_of(record.body) == record.message_id == f"m000000-{zlib.crc32(record.body):08x}"
    assert message_id_of(changed) != record.message_id
    assert message_id_of(b"\xff no id").startswith("?-")


def test_any_text_file_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(b'one\n\n{"package": "two words"}\n[3]\n\xff\n')
    made = list(itertools.islice(records(path, 6), 6))
    assert [record.body.partition(b"\t")[2] for record in made] == [
        b"one",
        b'{"package": "two words"}',
        b"[3]",
        b"\xff",
        b"one",
        b'{"package": "two words"}',
    ]
    assert [record.key for record in made] == [f"m{i:06d}" for i in range(6)]


def test_files_that_cannot_be_sent(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n \n")
    (tmp_path / "long").write_bytes(b"a\n" + b"x" * (1 << 20) + b"y\n")
    with pytest.raises(InputError, match="no line in it"):
        read_lines(tmp_path / "empty")
    with pytest.raises(InputError, match="line 2 has 1048577 bytes"):
        read_lines(tmp_path / "long")
    with pytest.raises(InputError, match="No such file"):
        read_lines(tmp_path / "missing")
