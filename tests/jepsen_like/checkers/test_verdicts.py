"""Registers, availability and digests through `check`, and everything about histories that cannot be judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.check_cli import main
from jepsen_like.checkers import WORKLOADS, Workload, check, check_file, workload_named
from jepsen_like.checkers.history_builder import Script
from jepsen_like.history import HistoryWriter, Op
from tests.support.rows import each_row

METADATA = Workload("metadata", ("linearizable",))
AVAILABLE = Workload("availability", ("availability",))
DIGESTS = Workload("digests", ("digests",), min_acked=0)


def stale_topic() -> Script:
    script = Script()
    for i in range(30):
        script.did("put", key="topic/a", value={"queues": i}).did("get", {"value": {"queues": i}}, key="topic/a")
        script.did("put", key="topic/b", value=i)
    return script.did("get", {"value": {"queues": 7}}, key="topic/a")


def test_a_stale_register_is_proved_by_its_few_operations() -> None:
    script = stale_topic()
    (anomaly,) = check(script.ops, METADATA).anomalies
    assert anomaly.subject == "topic/a"
    assert {script.ops[-1].index, script.ops[-2].index} <= set(anomaly.ops)
    assert len(anomaly.ops) <= 6
    assert "get -> " in anomaly.what


def test_create_delete_and_compare() -> None:
    script = (
        Script().did("create", {"created": True}, key="k", value=1).did("create", {"created": False}, key="k", value=2)
    )
    script.did("cas", {"swapped": True}, key="k", old=1, new=3).did("cas", {"swapped": False}, key="k", old=1, new=4)
    script.did("delete", key="k").did("get", {"value": None}, key="k").did(
        "create", {"created": True}, key="k", value=5
    )
    assert check(script.ops, METADATA).outcome == "valid"
    assert check(script.did("get", {"value": 3}, key="k").ops, METADATA).outcome == "invalid"


def test_a_failed_write_never_happens() -> None:
    script = Script().did("put", key="k", value=1)
    script.end(script.invoke("put", key="k", value=2), "fail")
    assert check(script.did("get", {"value": 2}, key="k").ops, METADATA).outcome == "invalid"


def test_out_of_steps_is_unknown_not_valid() -> None:
    verdict = check(stale_topic().ops, METADATA._replace(max_steps=3))
    assert verdict.outcome == "unknown"
    assert verdict.doubts[0].startswith("linearizable: topic/a: gave up after 3 steps")


def run_with_fault(down_s: float, *, recovers: bool = True, pause_s: float = 0) -> Script:
    script = Script()
    for i in range(10):
        script.send(f"a{i}", i).wait(0.01)
    fault = script.invoke("fault", kind="kill", nodes=[1])
    waiting = script.invoke("send", topic="t", id="w")
    script.wait(down_s).end(waiting, "info").end(fault).wait(pause_s)
    for i in range(3):
        if recovers:
            script.send(f"b{i}", 10 + i).wait(0.01)
        else:
            script.unsure("send", topic="t", id=f"b{i}")
    return script


def test_failover_times_per_kind_of_fault() -> None:
    stats = check(run_with_fault(1.5).ops, AVAILABLE).result("availability").stats
    assert stats["faults"] == 1
    assert stats["outages"] == 1
    assert stats["failover_ms"] == {"kill": {"count": 1, "p50": 1500, "p99": 1500, "max": 1500}}
    assert stats["longest_ms"] == 1500  # from the moment a client was left waiting, not from the last success


def test_a_pause_in_which_nobody_asked_is_no_outage() -> None:
    stats = check(run_with_fault(0.1, pause_s=60).ops, AVAILABLE).result("availability").stats
    assert stats["outages"] == 0


def test_a_cluster_that_does_not_come_back_is_invalid() -> None:
    verdict = check(run_with_fault(0.1, recovers=False).ops, AVAILABLE)
    assert verdict.counts == {"no-recovery": 1}
    assert check(run_with_fault(0.1, recovers=False).ops, AVAILABLE._replace(must_recover=False)).outcome == "valid"


def test_a_fault_that_was_never_lifted_leaves_recovery_open() -> None:
    script = Script().sent("a")
    script.invoke("fault", kind="pause", nodes=[2])
    assert check(script.send("b", 1).ops, AVAILABLE).outcome == "unknown"


def digests(*found: tuple[int, int, str]) -> Script:
    script = Script()
    for node, applied, digest in found:
        script.did("digest", {"applied": applied, "digest": digest}, node=node)
    return script


@each_row(
    ("script", "outcome"),
    [
        (digests((1, 9, "x"), (2, 9, "x"), (3, 9, "x")), "valid"),
        (digests((1, 9, "x"), (2, 9, "y"), (3, 9, "x")), "invalid"),
        (digests((1, 5, "x"), (2, 5, "y"), (1, 9, "z"), (2, 9, "z"), (3, 9, "z")), "invalid"),
        (digests((1, 9, "x"), (2, 8, "y"), (3, 9, "x")), "unknown"),
        (digests((1, 9, "x"), (2, 9, "x")), "unknown"),
    ],
)
def test_digests(script: Script, outcome: str) -> None:
    assert check(script.ops, DIGESTS._replace(replicas=3)).outcome == outcome


BROKEN_VALUES = {
    "a send without an id": (Script().did("send", topic="t"), 3, "the value has no 'id'"),
    "an ack without an offset": (Script().did("send", topic="t", id="a"), 3, "the value has no 'queue_id'"),
    "rows that are none": (
        Script().did("read", {"messages": [1], "end": True}, node=1, topic="t", queue_id=0, offset=0),
        3,
        "a row is a pair",
    ),
    "an answer to another": (
        Script().did("send", {"id": "b", "queue_id": 0, "queue_offset": 0}, topic="t", id="a"),
        3,
        "answers 'b'",
    ),
    "a value that is none": (Script().sent("a").did("get", {"value": 1}), 5, "no 'key'"),
    "an id sent twice": (Script().sent("a", "a"), 5, "was sent before"),
    "a step nobody knows": (Script().sent("a").read(1, "a").did("dance"), 6, "no checker judges 'dance'"),
}


@each_row("name", BROKEN_VALUES)
def test_a_malformed_step_is_unknown_with_its_line(name: str) -> None:
    script, line, why = BROKEN_VALUES[name]
    verdict = check(script.ops, "log")
    assert verdict.outcome == "unknown"
    assert any(f"line {line}: " in doubt and why in doubt for doubt in verdict.doubts), verdict.doubts


def test_steps_that_cannot_be_paired_are_unknown() -> None:
    verdict = check([Op(0, 1, "ok", "send", {}, 1)], "log")
    assert verdict.doubts == ["line 2: process 1 completes 'send', which it did not invoke"]


def test_unknown_workloads_name_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'logs'; did you mean log"):
        workload_named("logs")
    assert workload_named("log") is WORKLOADS["log"]


def test_invalid_beats_unknown() -> None:
    script = Script().sent("a", "b").read(1, "a")
    verdict = check(script.did("dance").ops, "log")
    assert verdict.outcome == "invalid"
    assert verdict.exit_code == 1
    assert verdict.doubts


def write(path: Path, script: Script, **meta: object) -> Path:
    with HistoryWriter(path, dict(meta), clock=iter(range(1, 10**9)).__next__) as history:
        for op in script.ops:
            if op.type == "invoke":
                history.invoke(op.process, op.f, op.value)
            else:
                history.ok(op, op.value)
    return path


def test_a_file_is_judged_by_the_workload_it_names(tmp_path: Path) -> None:
    path = write(tmp_path / "h.jsonl", Script().sent("a").read(1, "a"), workload="metadata")
    assert check_file(path)[0].workload == "metadata"
    verdict, ops = check_file(path, "log")
    assert verdict.outcome == "valid"
    assert len(ops) == 4


def test_the_command_line(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", Script().sent("a").read(1, "a"), workload="log")
    bad = write(tmp_path / "bad.jsonl", Script().sent("a", "b").read(1, "a"), workload="log")
    run = CliRunner().invoke
    assert run(main, ["check", str(good)]).exit_code == 0
    told = run(main, ["check", str(bad)])
    assert told.exit_code == 1
    assert "lost-write: 1" in told.output
    assert '"id":"b"' in told.output  # the step that proves it
    found = json.loads(run(main, ["check", "--json", str(bad)]).output)
    assert found["verdict"] == "invalid"
    assert found["anomalies"] == {"lost-write": 1}
    told = run(main, ["check", "--report", str(tmp_path / "r.html"), str(bad)])
    assert "lost-write" in (tmp_path / "r.html").read_text()
    assert run(main, ["check", "--workload", "lug", str(good)]).exit_code == 2


@each_row(
    ("damage", "line"),
    [
        (lambda data: b"", 1),
        (lambda data: b"package,version\n" + data, 1),
        (lambda data: data[:-60], 5),
        (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), 5),
        (lambda data: data.replace(b'"queue_offset":0', b'"queue_offset":1'), 3),
        (lambda data: b"".join(data.splitlines(keepends=True)[:3] + data.splitlines(keepends=True)[4:]), 4),
        (lambda data: data + b"{}\n", 7),
    ],
    ids=["empty", "foreign", "cut in a line", "cut between lines", "edited", "a line removed", "a line added"],
)
def test_a_damaged_file_is_unknown_with_its_line(tmp_path: Path, damage, line: int) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "h.jsonl", Script().sent("a").read(1, "a"), workload="log")
    path.write_bytes(damage(path.read_bytes()))
    told = CliRunner().invoke(main, ["check", str(path)])
    assert told.exit_code == 3, told.output
    assert f"unknown: line {line}: " in told.output
