"""The quick passes skip only what the thorough passes find nothing in, and judge a million operations in seconds."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from jepsen_like.checkers import check, check_file, workload_named
from jepsen_like.checkers import log as log_checker
from jepsen_like.checkers.history_builder import Script
from jepsen_like.checkers.log import _real_time
from jepsen_like.checkers.messages import Send
from jepsen_like.checkers.send_columns import SendColumns, no_rows
from jepsen_like.checkers.verdict import Findings
from jepsen_like.history import HistoryWriter, OpType
from tests.support.rows import each_row


def shelf_of(sends: list[Send]) -> SendColumns:
    rows = no_rows()
    for send in sends:
        rows.offsets.append(send.offset)
        rows.ids.append(send.message_id)
        rows.topics.append(send.topic)
        rows.producers.append(send.producer)
        rows.invoked.append(send.invoked)
        rows.completed.append(send.completed)
    return SendColumns.of(rows)


def test_real_time_is_judged_alike_by_the_quick_and_the_thorough_pass() -> None:
    rng = random.Random(7)
    broken = 0
    for _ in range(2000):
        count = rng.randrange(1, 8)
        steps = [sorted(rng.sample(range(2 * count), 2)) for _ in range(count)]
        offsets = sorted(range(count), key=lambda i: steps[i][1] + rng.choice((0, 0, 0, 3)))
        sends = [
            Send(f"m{i}", "t", None, "ok", begun, ended, ("t", 0), offsets.index(i))
            for i, (begun, ended) in enumerate(steps)
        ]
        sends.sort(key=lambda send: send.invoked)
        findings = Findings()
        _real_time(("t", 0), sends, findings)
        assert shelf_of(sends).keeps_real_time() == (not findings.counts), sends
        broken += bool(findings.counts)
    assert 100 < broken < 1900


def polled(count: int) -> Script:
    script = Script().sent(*(f"m{i}" for i in range(count)))
    for start in range(0, count, 3):
        rows = [(i, f"m{i}") for i in range(start, min(start + 3, count))]
        script.poll("c", start, *rows)
    return script.read(1, *(f"m{i}" for i in range(count)))


@each_row("damage", ["none", "other id", "other offset", "jump", "early"])
def test_polls_are_judged_alike_with_and_without_what_the_log_checker_knows(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = polled(9)
    answers = [op for op in script.ops if op.f == "poll" and op.type == "ok"]
    match damage:
        case "other id":
            answers[1].value["messages"][1][1] = "m0"
        case "other offset":
            answers[1].value["messages"][1][0] = 5
        case "jump":
            answers[1].value["messages"][:] = [[6, "m6"]]
        case "early":
            early = Script()
            early.poll("c", 0, (0, "a"))
            script = early.send("a", 0).read(1, "a")
    knowing = check(script.ops, "log").to_json()
    assert (knowing["verdict"] == "valid") == (damage == "none")
    monkeypatch.setattr(log_checker, "_is_perfect", lambda *_: False)
    assert check(script.ops, "log").to_json() == knowing


def with_guests() -> Script:
    """Sends of unknown outcome: `u` stands among the acknowledged, `v` nowhere."""
    script = Script().send("a", 0).unsure("send", topic="t", id="u").unsure("send", topic="t", id="v").send("b", 2)
    script.poll("c", 0, (0, "a"), (1, "u"), (2, "b"))
    return script


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((("a", "u", "b"), ("a", "u", "b")), {}),
        ((("a", "u", "b"), ("a", "u", "b", "v")), {"lost-on-node": 1}),
        ((("a", "u", "b", "u"), ("a", "u", "b", "u")), {"duplicate": 2}),
        ((("a", "u", "b", "x"), ("a", "u", "b", "x")), {"phantom": 2}),
    ],
)
def test_sends_of_unknown_outcome_are_guests(
    replicas: tuple[tuple[str, ...], ...], expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = with_guests()
    for node, ids in enumerate(replicas, 1):
        script.read(node, *ids)
    verdict = check(script.ops, "log")
    assert verdict.counts == expected
    assert verdict.result("log").stats["unknown_stored"] == (2 if "v" in replicas[1] else 1)
    monkeypatch.setattr(log_checker, "_is_perfect", lambda *_: False)
    assert check(script.ops, "log").to_json() == verdict.to_json()


def test_a_guest_found_in_two_queues_is_a_duplicate() -> None:
    script = Script().send("a", 0).unsure("send", topic="t", id="u").send("b", 0, queue=1)
    script.read(1, "a", "u").read(1, "b", "u", queue=1)
    assert check(script.ops, "log").counts == {"duplicate": 1}


def test_a_guest_sent_after_an_acknowledged_message_stands_behind_it() -> None:
    script = Script().send("a", 1).unsure("send", topic="t", id="u").read(1, "u", "a")
    assert check(script.ops, "log").counts == {"realtime-order": 1}


@pytest.mark.parametrize(("outcome", "expected"), [("ok", "valid"), ("fail", "invalid")])
def test_the_steps_of_a_file_are_read_again_only_when_looked_at(outcome: OpType, expected: str, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h.jsonl", {"workload": "log"}) as history:
        sent = history.invoke(1, "send", {"topic": "t", "id": "a"})
        (history.ok if outcome == "ok" else history.fail)(sent, {"queue_id": 0, "queue_offset": 0})
        read = history.invoke(2, "read", {"node": 1, "topic": "t", "queue_id": 0, "offset": 0})
        history.ok(read, {"messages": [[0, "a"]], "end": True})
        history.ok(history.invoke(3, "put", {"key": "k", "value": 1}), {})
    verdict, ops = check_file(tmp_path / "h.jsonl", workload_named("log")._replace(min_acked=1))
    assert verdict.outcome == expected
    (tmp_path / "h.jsonl").rename(tmp_path / "aside.jsonl")
    if expected == "valid":
        assert verdict.text(ops), "nothing of the file is needed"
    else:
        with pytest.raises(FileNotFoundError):
            verdict.text(ops)
    (tmp_path / "aside.jsonl").rename(tmp_path / "h.jsonl")
    assert verdict.text(ops)
    assert [op.index for op in ops[2:]] == [2, 3, 4, 5]


MESSAGES, QUEUES, REPLICAS, UNDER_WAY = 1_000_000, 4, 3, 200


def record_a_million(path: Path) -> None:
    """Sends, polls and final reads as a run of the live harness records them."""
    ticks = iter(range(0, 10**15, 150_000))
    with HistoryWriter(path, {"workload": "log"}, clock=ticks.__next__) as history:
        under_way = []
        offsets = [0] * QUEUES
        for number in range(MESSAGES):
            value = {"topic": "t", "id": f"w{number % 4}-{number:07d}"}
            under_way.append(history.invoke(number % UNDER_WAY, "send", value))
            if len(under_way) == UNDER_WAY or number == MESSAGES - 1:
                for sent in under_way:
                    queue_id = sent.process % QUEUES
                    history.ok(sent, sent.value | {"queue_id": queue_id, "queue_offset": offsets[queue_id]})
                    offsets[queue_id] += 1
                under_way.clear()
        ids: list[list[str]] = [[] for _ in range(QUEUES)]
        for op in history.ops:
            if op.type == "ok":
                ids[op.value["queue_id"]].append(op.value["id"])
        for reader in range(1 + REPLICAS):
            f, who = ("poll", {"consumer": "c"}) if reader == 0 else ("read", {"node": reader})
            for queue_id in range(QUEUES):
                for start in range(0, len(ids[queue_id]), 1000):
                    asked = history.invoke(
                        1000 + reader, f, who | {"topic": "t", "queue_id": queue_id, "offset": start}
                    )
                    rows = [[start + i, each] for i, each in enumerate(ids[queue_id][start : start + 1000])]
                    history.ok(asked, {"messages": rows, "end": start + 1000 >= len(ids[queue_id])})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_acknowledged_messages_are_checked_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    record_a_million(path)
    begun, begun_cpu = time.monotonic(), time.process_time()
    verdict, ops = check_file(
        path, workload_named("log")._replace(replicas=REPLICAS, checkers=("log", "polls", "availability"))
    )
    seconds, cpu_s = time.monotonic() - begun, time.process_time() - begun_cpu
    sys.stderr.write(f"\n{len(ops):,} steps, {MESSAGES:,} acknowledged: {seconds:.1f} s, {cpu_s:.1f} s of processor\n")
    assert verdict.outcome == "valid", verdict.text(ops)
    assert verdict.result("log").stats["acked"] == MESSAGES
    assert verdict.result("polls").stats["polled"] == MESSAGES
