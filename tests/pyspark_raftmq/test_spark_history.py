"""Histories judged by Spark: every planted anomaly is found, as often as the checker in memory finds it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jepsen_like.big_history_cli import check_history_command
from jepsen_like.checkers import check
from jepsen_like.checkers.history_builder import Script
from jepsen_like.history import HistoryError, HistoryWriter, Op
from jepsen_like.spark_history import check_history
from raftmq_wire.queue_numbers import number_of
from tests.support.large_history import LargeHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATIONS = int(os.environ.get("RAFTMQ_HISTORY_OPERATIONS", "20000"))
PLANTED = 3
_LIMIT_S = 1200 + OPERATIONS // 500
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(_LIMIT_S)]


def write(path: Path, ops: list[Op], workload: str = "ordered") -> Path:
    with HistoryWriter(path, {"workload": workload}) as writer:
        for op in ops:
            invoke = {"invoke": writer.invoke}.get(op.type)
            if invoke is not None:
                invoke(op.process, op.f, op.value)
            else:
                getattr(writer, op.type)(op, op.value)
    return path


def planted() -> Script:
    """An anomaly of each kind, in a queue or register of its own."""
    script = Script()
    for queue, ids in enumerate((["a0", "b0"], ["a1", "b1"], ["a2"], ["a3", "b3"])):
        for offset, name in enumerate(ids):
            script.send(name, offset, queue)
    failed = script.invoke("send", topic="t", id="failed")
    script.end(failed, "fail")
    script.end(script.invoke("send", topic="t", id="late4"), "info")
    script.send("second5", 1, 5).send("first5", 0, 5)  # acknowledged above what was sent later
    first = script.invoke("send", topic="t", id="p6", producer="p")
    second = script.invoke("send", topic="t", id="q6", producer="p")
    script.end(second, queue_id=6, queue_offset=0).end(first, queue_id=6, queue_offset=1)
    script.send("moved7", 0, 7)
    rows = {
        1: [["a0"], ["a1", "b1"], ["a2", "a2"], ["a3", "who3", "failed"], ["late4"]],
        2: [["a0"], ["a1"], ["a2", "a2"], ["a3", "b3", "failed"], ["late4"]],
    }
    for node, queues in rows.items():
        for queue, ids in enumerate([*queues, ["first5", "second5"], ["q6", "p6"], ["other7", "moved7"]]):
            script.read(node, *ids, queue=queue)
    script.did("put", key="k", value=1).did("get", {"value": 2}, key="k")
    script.did("put", key="fine", value=1).did("get", {"value": 1}, key="fine")
    script.did("commit_offset", group="g", topic="t", queue_id=0, offset=5)
    script.did("fetch_offset", {"offset": 4}, group="g", topic="t", queue_id=0)
    return script


def counts_in_memory(ops: list[Op], workload: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for result in check(ops, workload).results:
        if result.checker in ("log", "linearizable"):
            found |= {kind: count for kind, count in result.counts.items() if kind not in result.allowed}
    return found


def test_every_planted_anomaly_is_found_as_often_as_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    ops = planted().ops
    verdict = check_history(spark, write(tmp_path / "history.jsonl", ops))
    assert verdict.counts == counts_in_memory(ops, "ordered")
    assert verdict.counts.keys() >= {
        *("lost-write", "lost-on-node", "duplicate", "phantom", "aborted-read", "offset-mismatch"),
        *("inconsistent-offset", "realtime-order", "producer-order", "nonlinearizable"),
    }
    assert (verdict.keys, verdict.exit_code) == (3, 1)
    told = {(each.kind, each.subject) for each in verdict.examples}
    assert {("lost-write", "b0"), ("lost-on-node", "b1"), ("duplicate", "a2"), ("realtime-order", "first5")} <= told


def test_queues_belong_to_the_nodes_of_their_group_of_brokers(spark: SparkSession, tmp_path: Path) -> None:
    far = number_of(2, 0)
    script = Script().sent("a").send("b", 0, far).send("c", 1, far).read(1, "a").read(2, "a")
    ops = script.read(2001, "b", queue=far).read(2002, queue=far).ops
    verdict = check_history(spark, write(tmp_path / "history.jsonl", ops))
    assert verdict.counts == counts_in_memory(ops, "ordered") == {"lost-write": 1, "lost-on-node": 1}
    assert verdict.doubts == []


def healthy(chance: random.Random, messages: int) -> Script:
    """Concurrent sends to three queues in any order, some unknown or failed, read whole from three replicas."""
    script = Script()
    open_sends: list[Op] = []
    queues: list[list[str]] = [[], [], []]
    for number in range(messages):
        open_sends.append(script.invoke("send", topic="t", id=f"m{number}"))
        while len(open_sends) > chance.randrange(8):
            ended = open_sends.pop(chance.randrange(len(open_sends)))
            outcome = chance.choices(["ok", "info", "fail"], [20, 1, 1])[0]
            queue = chance.randrange(3)
            if outcome == "ok":
                queues[queue].append(ended.value["id"])
                script.end(ended, queue_id=queue, queue_offset=len(queues[queue]) - 1)
            else:
                script.end(ended, outcome)  # type: ignore[arg-type]
    for node in (1, 2, 3):
        for queue, ids in enumerate(queues):
            script.read(node, *ids, queue=queue)
    return script


def test_a_healthy_history_is_valid(spark: SparkSession, tmp_path: Path) -> None:
    ops = healthy(random.Random(3), 400).ops
    verdict = check_history(spark, write(tmp_path / "history.jsonl", ops, "log"))
    assert (verdict.counts, verdict.doubts, verdict.exit_code) == ({}, [], 0)
    assert verdict.operations == 409
    assert counts_in_memory(ops, "log") == {}


def test_what_was_not_read_is_a_doubt(spark: SparkSession, tmp_path: Path) -> None:
    script = Script().sent("a").read(1, "a").send("b", 0, 1)
    verdict = check_history(spark, write(tmp_path / "history.jsonl", script.ops, "log"))
    assert (verdict.counts, verdict.doubts) == ({}, ["t/1 was not read to its end on node 1"])
    assert verdict.exit_code == 3


def test_an_edited_history_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", Script().sent("a").read(1, "a").ops, "log")
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"', 1))
    with pytest.raises(HistoryError, match="line 2: the checksum does not fit"):
        check_history(spark, path)


def test_a_large_history_with_known_anomalies(spark: SparkSession, tmp_path: Path) -> None:
    """RAFTMQ_HISTORY_OPERATIONS=10000000 is the run of ten million, with RAFTMQ_SPARK_MEMORY=4g."""
    large = LargeHistory(OPERATIONS, PLANTED)
    verdict = check_history(spark, large.write(tmp_path / "history.jsonl"))
    assert verdict.counts == large.expected
    assert verdict.doubts == []
    assert verdict.operations == large.operations >= OPERATIONS


def test_the_command(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes the folder of a run, too, and leaves a session that is not its own."""
    write(tmp_path / "history.jsonl", planted().ops)
    for where, options in ((tmp_path, ["--json"]), (tmp_path / "history.jsonl", [])):
        assert check_history_command.main([str(where), *options], standalone_mode=False) == 1
    as_json, _, as_text = capsys.readouterr().out.partition("\n")
    told = json.loads(as_json)
    assert told["outcome"] == "invalid"
    assert told["counts"] == counts_in_memory(planted().ops, "ordered")
    assert "lost-write: 1 (" in as_text
    assert "b0 at t/0/1" in as_text
    (tmp_path / "history.jsonl").write_bytes(b"{}\n")
    assert check_history_command.main([str(tmp_path)], standalone_mode=False) == 3
    assert "unknown: " in capsys.readouterr().out
    assert spark.range(3).count() == 3
