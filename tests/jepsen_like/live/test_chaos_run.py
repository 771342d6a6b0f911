"""The harness over real processes: a short run with a kill and a partition, and one that is killed itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from jepsen_like.history import read_history
from jepsen_like.live.subjects.owned_resources import FOLDER_VARIABLE
from tests.support.pace import at_most

pytestmark = pytest.mark.live


def chaos(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {FOLDER_VARIABLE: str(folder / "state")}
    command = [sys.executable, "-m", "raftmq.cli", "chaos", "run", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_in(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.ci
def test_kill_and_partition_lose_nothing(tmp_path: Path) -> None:
    child = chaos(
        tmp_path,
        "--nemesis",
        "kill-leader,isolate-leader",
        "--time",
        "6",
        "--seed",
        "11",
        "--rate",
        "200",
        "--out",
        "run",
        "--json",
    )
    out, err = child.communicate(timeout=at_most(100))
    assert child.returncode == 0, out + err
    told = json.loads(out)
    assert (told["verdict"], told["seed"], told["reasons"]) == ("valid", 11, [])
    assert told["acked"] > 100
    stats = told["checks"]["checkers"][0]["stats"]
    assert stats["acked"] >= told["acked"], "the producer that repeats its sends is beside the load"
    assert told["rows_read"] == 3 * (stats["acked"] + stats["unknown_stored"])
    assert told["leader_changes"] >= 1
    assert sum(fault["with_effect"] for fault in told["faults"].values()) >= 1
    history = read_history(tmp_path / "run" / "history.jsonl")
    assert history.complete
    assert {"send", "read", "poll", "fault", "leader", "phase"} <= {op.f for op in history.ops}
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["history.jsonl", "report.html", "verdict.json"]
    assert not processes_in(tmp_path)
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", ["kill-leader,isolate-leader,pause-leader,slow-disk", "member-replace-kills"])
def test_a_secured_cluster_loses_nothing_under_faults(tmp_path: Path, faults: str) -> None:
    asked = ["--secured", "--nemesis", faults, "--time", "20", "--seed", "7", "--rate", "200", "--out", "run", "--json"]
    child = chaos(tmp_path, *asked)
    out, err = child.communicate(timeout=at_most(250))
    assert child.returncode == 0, out + err
    told = json.loads(out)
    assert (told["verdict"], told["reasons"]) == ("valid", [])
    assert sum(fault["with_effect"] for fault in told["faults"].values()) >= 1
    history = read_history(tmp_path / "run" / "history.jsonl")
    done = Counter(op.f for op in history.ops if op.type == "ok")
    asked_by_load = ("send", "repeat", "poll", "commit_offset", "fetch_offset", "put", "delete", "get")
    assert [f for f in asked_by_load if not done[f]] == [], "the load's user may do what the load does"


@pytest.mark.slow
def test_the_next_start_cleans_up_after_a_run_that_was_killed(tmp_path: Path) -> None:
    child = chaos(tmp_path, "--scenario", "quiet", "--time", "60", "--out", "dead")
    deadline = time.monotonic() + at_most(60)
    while len(processes_in(tmp_path / "dead")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=at_most(20))
    left = processes_in(tmp_path / "dead")
    assert len(left) == 3, "the nodes outlive the run that was killed"
    (tmp_path / "dead" / "mine").write_text("x")
    following = chaos(tmp_path, "--scenario", "quiet", "--time", "1", "--rate", "200", "--out", "next")
    out, err = following.communicate(timeout=at_most(100))
    assert following.returncode == 0, out + err
    assert "ended 3 of its nodes" in out
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not (tmp_path / "dead" / "nodes").exists()
    assert (tmp_path / "dead" / "mine").exists(), "only what the dead run listed is removed"


@pytest.mark.slow
@pytest.mark.timeout(1100)
def test_pysyncobj_loses_what_it_acknowledged(tmp_path: Path) -> None:
    """Kill -9 alone is enough; the output tells one of the losses step by step."""
    child = chaos(
        tmp_path, "--subject", "pysyncobj", "--nemesis", "stutter-kill", "--time", "240", "--out", "run", "--json"
    )
    out, err = child.communicate(timeout=at_most(1000))
    assert child.returncode == 1, out + err
    told = json.loads(out)
    assert told["checks"]["anomalies"]["lost-write"] > 0
    assert any("it is acknowledged" in step for step in told["story"])
    assert "lost like this one" in told["story"][-1]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "scenario",
    [
        "power-loss",
        "part-kill",
        "pause-kill",
        "swizzle",
        "rolling-restart",
        "slow-disk",
        "full-disk",
        "failing-disk",
        "kill-all",
    ],
)
def test_scenarios_pass(tmp_path: Path, scenario: str) -> None:
    child = chaos(tmp_path, "--scenario", scenario, "--time", "30", "--rate", "1000", "--out", "run", "--json")
    out, err = child.communicate(timeout=at_most(300))
    assert child.returncode == 0, out + err


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("scenario", "scale"),
    [
        ("report-000", 0.01),
        ("report-001", 0.05),
        ("report-002", 0.05),
        ("bitflip-minority", 0.2),
        ("failover", 0.03),
        ("frozen-leader", 0.07),
        ("isolated-leader", 0.07),
        ("graceful", 0.04),
        ("group-join", 0.05),
        ("first-group-lost", 0.1),
        ("hot-topic", 0.5),
        ("registry-loss", 0.3),
        ("registry-faults", 0.25),
        ("group-drain", 0.25),
        ("noisy-neighbour", 0.15),
        ("quota-storm", 0.15),
    ],
)
def test_rehearsals_of_scripted_scenarios_pass(tmp_path: Path, scenario: str, scale: float) -> None:
    child = chaos(tmp_path, "--scenario", scenario, "--scale", str(scale), "--seed", "5", "--out", "run", "--json")
    out, err = child.communicate(timeout=at_most(600))
    assert child.returncode == 0, out + err
    told = json.loads(out)
    assert (told["verdict"], told["reasons"]) == ("valid", [])
    assert told["gates"]
    assert not told["gates_count"]
    assert told["measured"]
