"""The pytest plugin in a project outside this tree, and what is left after its run was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raftmq.testing.cluster import ClusterError, RaftMQCluster
from tests.support.distributions import users_folder
from tests.support.pace import at_most
from tests.support.wait_until import wait

ROOT = Path(__file__).parents[3]

KILLS = """
import sys
import raftmq


def test_a_killed_leader_loses_nothing(raftmq_cluster):
    with raftmq.connect(raftmq_cluster.servers) as mq:
        for n in range(20):
            mq.send("orders", b"%d" % n)
            if n == 10:
                raftmq_cluster.kill_leader()
        got = [message.body for message in mq.consumer("shop", "orders", follow=False)]
    assert sorted(map(int, got)) == list(range(20))


def test_the_next_test_sees_nothing_of_it(raftmq_cluster):
    assert all(node.running for node in raftmq_cluster.nodes)
    with raftmq.connect(raftmq_cluster.servers) as mq:
        assert (mq.admin.topics(), mq.admin.groups()) == ([], [])
    assert not {"cluster", "jepsen_like", "rocksdict"} & sys.modules.keys()
"""
SEPARATES = """
import raftmq


def test_a_leader_that_is_cut_off_is_replaced(raftmq_own_cluster):
    old = raftmq_own_cluster.leader()
    with raftmq.connect(raftmq_own_cluster.servers) as mq:
        with raftmq_own_cluster.partition(old):
            mq.send("orders", b"x")
            assert raftmq_own_cluster.leader() != old
        with raftmq_own_cluster.pause(raftmq_own_cluster.leader()):
            mq.send("orders", b"y")
        got = [message.body for message in mq.consumer("shop", "orders", follow=False)]
    assert sorted(got) == [b"x", b"y"]
"""
SLEEPS = """
import json
import pathlib
import time


def test_it_is_killed(raftmq_cluster):
    told = {"pids": [node.pid for node in raftmq_cluster.nodes], "folder": str(raftmq_cluster.folder)}
    pathlib.Path("told.new").write_text(json.dumps(told))
    pathlib.Path("told.new").rename("told.json")
    time.sleep(1000)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with a pyproject.toml, a cluster.py and a statemachine/ of its own."""
    folder = users_folder(tmp_path / "shop")
    (folder / "pyproject.toml").write_text('[project]\nname = "shop"\nversion = "1"\n\n[tool.pytest.ini_options]\n')
    return folder


def command(project: Path, *arguments: str) -> list[str]:
    # What this environment has besides: slow to load, and no part of a user's.
    without = ["no:schemathesis", "no:hypothesispytest", "no:asyncio", "no:anyio", "no:cacheprovider"]
    options = [word for name in without for word in ("-p", name)]
    return [sys.executable, "-m", "pytest", "-q", *options, f"--basetemp={project / 'temp'}", *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "PYTEST_"))}


@pytest.mark.ci
@pytest.mark.live
def test_a_project_outside_this_tree_kills_a_leader(project: Path) -> None:
    (project / "test_kills.py").write_text(KILLS)
    (project / "test_separates.py").write_text(SEPARATES)
    words = command(project, "-n", "2", "--dist", "loadfile")
    done = subprocess.run(words, cwd=project, env=environment(), capture_output=True, text=True, timeout=at_most(110))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "raftmq: 2 clusters ready in " in done.stdout
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(project) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.ci
@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_run_that_was_killed(project: Path, number: signal.Signals) -> None:
    (project / "test_sleeps.py").write_text(SLEEPS)
    with (project / "output.txt").open("w") as output:
        # A shell starts what it runs in the background with SIGINT ignored, and processes pass that on.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        running = subprocess.Popen(command(project), cwd=project, env=environment(), stdout=output, stderr=output)
        signal.signal(signal.SIGINT, before)
        try:
            told = project / "told.json"
            wait(lambda: told.exists() or running.poll() is not None, "the test never ran")
            assert told.exists(), (project / "output.txt").read_text()
            running.send_signal(number)
        finally:
            if running.poll() is None and number != signal.SIGINT:
                running.kill()
            running.wait(60)
    nodes = json.loads(told.read_text())
    wait(lambda: not any(map(psutil.pid_exists, nodes["pids"])), "nodes are left")
    wait(lambda: not Path(nodes["folder"]).exists(), "the folder is left")


def test_a_run_that_asks_for_no_cluster_loads_one_small_module() -> None:
    code = """
import sys, time, pytest
before, began = set(sys.modules), time.perf_counter()
import raftmq.testing.plugin
print(round(1000 * (time.perf_counter() - began), 1), "ms", file=sys.stderr)
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=at_most(60), check=True
    )
    print(done.stderr)  # noqa: T201 - for who reads on: no test fails because of it
    loaded = done.stdout.split()
    assert "raftmq.testing.plugin" in loaded
    own = {name for name in loaded if name.startswith(("raftmq", "cluster", "jepsen_like"))}
    assert own <= {
        "raftmq",
        "raftmq.server_home",
        "raftmq.testing",
        "raftmq.testing.plugin",
        "raftmq_wire",
        "raftmq_wire.errors",
    }


@pytest.mark.parametrize(
    "said",
    [
        "this needs the server, and only the client is installed\nbecause: ...\ntype:    pip install 'raftmq[server]'",
        "raftmq has no command testbed: No such command",
    ],
)
def test_without_the_server_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 5\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ClusterError, match=r"^the server is not installed: pip install 'raftmq\[server\]'$"):
        RaftMQCluster(tmp_path / "cluster")


@pytest.mark.ci
@pytest.mark.live
def test_a_request_that_cannot_be_carried_out_says_why(tmp_path: Path) -> None:
    with RaftMQCluster(tmp_path / "cluster") as cluster:
        for node, said in ((9, "there is no node 9; there are 1, 2, 3"), (0, "there is no node 0")):
            with pytest.raises(ClusterError, match=said):
                cluster.kill(node)
        for group in ([], [7]):
            with pytest.raises(ClusterError, match=r"there is no node|is a list of lists"), cluster.partition(*group):
                pass
        with pytest.raises(ClusterError, match="is no request; there are describe, leader, kill"):
            cluster._ask("explode")
        cluster.kill(2)
        with pytest.raises(ClusterError, match="node 2 does not run"), cluster.pause(2):
            pass
        assert [node.running for node in cluster.nodes] == [True, False, True]
        cluster.create_topic("orders", queues=2)
        cluster.reset()
        assert [node.running for node in cluster.nodes] == [True, True, True]
    with pytest.raises(ClusterError, match="the cluster is closed"):
        cluster.leader()
    with pytest.raises(ClusterError, match="exists; a testbed makes its folder"):
        RaftMQCluster(tmp_path)
