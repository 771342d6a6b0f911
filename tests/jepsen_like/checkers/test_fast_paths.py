"""What is skipped because all is well must be what the thorough passes find nothing in; and a million in seconds."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from jepsen_like.checkers import check, check_file, workload_named
from jepsen_like.checkers import log as log_checker
from jepsen_like.checkers.log import _real_time, _Shelf
from jepsen_like.checkers.messages import Send
from jepsen_like.checkers.script import Script
from jepsen_like.checkers.verdict import Findings
from jepsen_like.history import HistoryWriter


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
        assert _Shelf.of(sends).keeps_real_time() == (not findings.counts), sends
        broken += bool(findings.counts)
    assert 100 < broken < 1900


def polled(count: int) -> Script:
    script = Script().sent(*(f"m{i}" for i in range(count)))
    for start in range(0, count, 3):
        rows = [(i, f"m{i}") for i in range(start, min(start + 3, count))]
        script.poll("c", start, *rows)
    return script.read(1, *(f"m{i}" for i in range(count)))


@pytest.mark.parametrize("damage", ["none", "other id", "other offset", "jump", "early"])
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
