"""The command line against three real node processes, from `up` to `down`, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import ENVIRONMENT

pytestmark = pytest.mark.live


class Shell:
    """Runs `raftmq` as a process in one working directory, without the caller's own settings. Segments are small."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RAFTMQ_")} | ENVIRONMENT

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "raftmq.cli", *arguments]

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=at_most(60),
            umask=0o022,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, (arguments, done.returncode, out, err)
        return out, err

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command that goes on; whoever starts it ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        loaded = json.loads(self(*arguments, "--json", code=code)[0])
        assert isinstance(loaded, dict)
        return loaded


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)
    data = tmp_path / ".raftmq"
    if (data / "cluster.json").exists():
        LocalCluster(data).down()


@pytest.mark.ci
def test_from_up_to_down(shell: Shell) -> None:
    base = free_base_port(12)
    out, _ = shell("up", "--detach", "--base-port", str(base))
    assert f"127.0.0.1:{base};127.0.0.1:{base + 1};127.0.0.1:{base + 2}" in out
    assert f"http://127.0.0.1:{base + 9}" in out
    assert out.index("raftmq produce") < out.index("raftmq consume") < out.index("raftmq kill")

    status = shell.json("status")
    assert status["schema"] == 1
    assert status["leader"] in (1, 2, 3)
    assert status["writes_open"] is True
    cluster_file = json.loads((shell.folder / ".raftmq" / "cluster.json").read_text())
    assert [set(node) for node in cluster_file["nodes"]] == 3 * [
        {"id", "pid", "broker_port", "namesrv_port", "peer_port", "admin_port", "log"}
    ]

    _, err = shell("up", "--detach", code=5)
    assert "already running" in err

    sent = b"".join(b'{"id": "k%d", "kind": "even"}\n' % i for i in range(0, 200, 2))
    shell("topic", "create", "t", "--queues", "4")
    assert "is there already" in shell("topic", "create", "t", code=5)[1]
    _, err = shell("produce", "t", "--key-field", "id", "--tag-field", "kind", stdin=sent)
    assert "sent 100 messages to t" in err
    _, err = shell("produce", "t", "--key-field", "id", stdin=b'{"id": 1}\nno json\n', code=1)
    assert "line 2 is not JSON" in err

    out, err = shell("consume", "t", "--json")
    read = [json.loads(line) for line in out.splitlines()]
    assert "end of t after 101 messages" in err
    assert sorted(m["body"].encode() + b"\n" for m in read) == sorted([*sent.splitlines(True), b'{"id": 1}\n'])
    assert {(m["key"], m["tag"]) for m in read} == {(f"k{i}", "even") for i in range(0, 200, 2)} | {("1", None)}

    out, err = shell("consume", "t", "--group", "g", "--max", "60")
    assert (len(out.splitlines()), "stopped after 60 messages" in err) == (60, True)
    out_rest, _ = shell("consume", "t", "--group", "g")
    assert sorted(out.splitlines() + out_rest.splitlines()) == sorted(m["body"] for m in read)
    assert shell("consume", "t", "--from", "latest")[0] == ""
    out, err = shell("consume", "t", "--filter", "KEYS IN ('k42', 'k7') AND TAGS = 'even'")
    assert (out, "end of t after 1 message" in err) == ('{"id": "k42", "kind": "even"}\n', True)
    out, _ = shell("consume", "t", "--group", "filtered", "--filter", "TAGS IS NULL")
    assert out == '{"id": 1}\n'
    _, err = shell("consume", "t", "--filter", "KEYS LIKE 'k4%'", code=5)
    assert "at character 6: unexpected LIKE" in err
    assert shell.json("group", "describe", "g")["lag"] == 0

    found = shell.json("messages", "find", "--topic", "t", "--key", "k42")
    assert (found["body"], found["key"]) == ('{"id": "k42", "kind": "even"}', "k42")
    by_id = shell.json("messages", "find", "--topic", "t", "--id", str(found["message_id"]))
    assert by_id == found == shell.json("messages", "find", "--position", str(found["position"]))
    assert "\n  KEYS: k42\n" in shell("messages", "find", "--topic", "t", "--key", "k42")[0]
    assert "no message of t has the key k43" in shell("messages", "find", "--topic", "t", "--key", "k43", code=1)[1]

    _, err = shell("consume", "nothing-here", code=5)
    assert "nothing-here" in err
    assert "nothing-here" in shell("topic", "describe", "nothing-here", code=5)[1]
    assert "nothing-here" in shell("dlq", "list", "nothing-here", code=5)[1]

    backups = shell.folder / ".raftmq" / "b"
    backups.mkdir()
    shell("backup", "create", "--to", str(backups))
    made = [*(shell.folder / ".raftmq").rglob("*")]
    assert {path.name for path in made} >= {"node.log", "raftmq.toml", "SECRET", "RUN", "state", "log", "manifest.json"}
    assert [path for path in made if path.stat().st_mode & 0o077] == [backups], "the one that the test has made"


@pytest.mark.slow
def test_kill_restart_and_a_second_start(shell: Shell) -> None:
    shell("up", "--detach", "--base-port", str(free_base_port(12)))
    first = shell.json("status")
    assert isinstance(first["leader"], int)
    killed = str(first["leader"])
    shell("kill", killed)
    assert "is not running" in shell("kill", killed, code=5)[1]
    shell("produce", "t", stdin=b"after the kill\n")
    status = shell.json("status")
    assert status["leader"] not in (None, first["leader"])
    assert status["term"] > first["term"]  # type: ignore[operator]
    shell("restart", killed)
    for node in "123":
        shell("kill", node)
    for node in "123":
        shell("restart", node)  # the first one comes back to a cluster without a majority
    assert shell.json("status")["leader"] is not None
    below = shell.folder / "deep" / "down"
    below.mkdir(parents=True)
    assert Shell(below).json("down")["stopped"] == [1, 2, 3]
    assert shell.json("status", code=4)["leader"] is None
    shell("up", "--detach")
    assert shell("consume", "t")[0] == "after the kill\n"
    assert "term" in shell("logs", killed)[0]


@pytest.mark.ci
def test_up_in_the_foreground_ends_its_nodes_on_ctrl_c(shell: Shell) -> None:
    """Ctrl-C reaches `up` only: the nodes have a session of their own, and are stopped in order."""
    process = shell.begin("up", "--json", "--base-port", str(free_base_port(12)))
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["leader"] in (1, 2, 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=at_most(30))
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"stopped 3 nodes" in err
    assert [node["running"] for node in shell.json("status", code=4)["nodes"]] == [False] * 3  # type: ignore[attr-defined]


def test_a_port_in_use_stops_up_before_anything_is_made(shell: Shell) -> None:
    import socket

    base = free_base_port(12)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 4))
        taken.listen()
        _, err = shell("up", "--detach", "--base-port", str(base), code=5)
    assert f"port {base + 4} (broker of node 2) is in use" in err
    assert f"(pid {os.getpid()}) listens on it" in err
    assert not (shell.folder / ".raftmq" / "n1").exists()


@pytest.mark.slow
def test_a_data_directory_in_use_by_another_node(shell: Shell) -> None:
    """A node that refuses to start says why through `up`, and `up` leaves nothing running."""
    from cluster.config.node_files import plan_nodes, write_configs
    from raftlog.storage.files.fs import OsFileSystem
    from raftlog.storage.files.layout import lock_directory
    from raftmq.local.init import create_data_dirs

    data = shell.folder / ".raftmq"
    nodes = plan_nodes(data, 3, free_base_port(12))
    write_configs(nodes)
    create_data_dirs([node.config_path for node in nodes], ENVIRONMENT)
    lock = lock_directory(OsFileSystem(), nodes[2].home / "data")
    try:
        _, err = shell("up", "--detach", code=5)
    finally:
        lock.close()
    assert "node 3: data directory" in err
    assert f"in use by process {os.getpid()}" in err
    cluster = LocalCluster(data)
    assert not any(view.running for view in cluster.view().nodes)
    shell("up", "--detach")


def test_follow_prints_what_comes(shell: Shell) -> None:
    shell("up", "--detach", "--base-port", str(free_base_port(12)))
    shell("topic", "create", "t", "--queues", "1")
    reader = shell.begin("consume", "t", "--follow", "--max", "2")
    try:
        shell("produce", "t", stdin=b"one\n")
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"one\n"
        assert reader.poll() is None
        shell("produce", "t", stdin=b"two\n")
        out, err = reader.communicate(timeout=at_most(30))
    finally:
        reader.kill()
    assert (out, reader.returncode) == (b"two\n", 0)
    assert b"stopped after 2 messages" in err


@pytest.mark.ci
def test_up_in_the_foreground_tells_of_a_dead_node_and_ends_after_down(shell: Shell) -> None:
    process = shell.begin("up", "--json", "--base-port", str(free_base_port(12)))
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        nodes = json.loads(process.stdout.readline())["nodes"]
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        assert process.stderr.readline() == b"node 2 has ended: raftmq logs 2, then raftmq restart 2\n"
        shell("down")
        _, err = process.communicate(timeout=at_most(30))
    finally:
        process.kill()
    assert (process.returncode, err) == (0, b"another command has stopped all nodes\n")
