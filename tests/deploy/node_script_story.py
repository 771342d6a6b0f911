"""The life of three pods: made by node.sh, one volume emptied under load, its node replaced, the leader drained."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from tests.support.own_network import ROOT, Load, Machines, empty, say
from tests.support.pace import at_most
from tests.support.wait_until import wait

SCRIPT = ROOT / "deploy" / "kubernetes" / "node.sh"
REFUSED = 5


class Pods:
    """Three pods of the StatefulSet: its files, its environment, and folders in the place of its volumes."""

    def __init__(self, folder: Path) -> None:
        self.machines = Machines(folder, [f"raftmq-{n}.raftmq" for n in range(3)])
        self.folder, self.secret, self.config = folder, folder / "secret", folder / "raftmq.toml"
        self.secret.mkdir()
        shutil.copy(SCRIPT.with_name("raftmq.toml"), self.config)
        (self.secret / "peers").write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
        (self.secret / "users.key").write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
        (self.secret / "first-user").write_text("admin\nsecret-of-the-first\n")
        self.ids = "1 2 3"
        self.running: dict[int, int] = {}
        for n in range(3):
            self.data(n).mkdir()
            (folder / f"run{n}").mkdir()

    def data(self, n: int) -> Path:
        return self.folder / f"data{n}"

    def allow(self, ahead: timedelta) -> None:
        """Sets the time until which a cluster may be made."""
        (self.secret / "new-until").write_text((datetime.now(UTC) + ahead).strftime("%Y-%m-%dT%H:%M:%SZ\n"))

    def env(self, n: int) -> dict[str, str]:
        run = self.folder / f"run{n}"
        return {
            "POD_NAME": f"raftmq-{n}",
            "NODE_IDS": self.ids,
            "FIRST_VOTERS": "1 2 3",
            "CONFIG": str(self.config),
            "SECRETS": str(self.secret),
            "RUN": str(run),
            "DATA": str(self.data(n)),
            "DRAIN_S": "2",
            "RAFTMQ_ADMIN": "127.0.0.1:9644",
            "RAFTMQ_SECRET_FILE": str(run / "peers"),
            "RAFTMQ_NODE__DATA_DIR": str(self.data(n) / "raftmq"),
            "RAFTMQ_PEER__SECRET_FILE": str(run / "peers"),
            "RAFTMQ_AUTH__KEY_FILE": str(run / "users.key"),
            "RAFTMQ_AUTH__FIRST_USER_FILE": str(run / "first-user"),
        }

    def run(self, n: int, what: str, code: int | None = 0) -> str:
        return self.machines.run(n, "sh", str(SCRIPT), what, env=self.env(n), code=code)

    def serve(self, n: int) -> None:
        self.running[n] = self.machines.start(n, "sh", str(SCRIPT), "serve", env=self.env(n))

    def kill(self, n: int) -> None:
        self.machines.processes.kill(self.running.pop(n))


def main(folder: Path) -> None:
    """Tells the story; an AssertionError is its failure."""
    pods = Pods(folder)
    machines = pods.machines
    say("without new-until, or after it, no cluster is made")
    assert "needs a new-until in the secret" in pods.run(0, "make", REFUSED)
    pods.allow(timedelta(seconds=-1))
    assert "may not be made" in pods.run(0, "make", REFUSED)

    say("all pods start at the same time")
    pods.allow(timedelta(hours=1))
    others = [
        subprocess.Popen([*machines.places[n].enter, "sh", str(SCRIPT), "make"], env={**os.environ, **pods.env(n)})
        for n in (1, 2)
    ]
    pods.run(0, "make")
    pods.serve(0)
    assert [other.wait(at_most(60)) for other in others] == [0, 0]
    for n in (1, 2):
        assert "nothing to do" in pods.run(n, "make")
        pods.serve(n)
    for n in range(3):
        wait(partial(machines.is_ready, n), f"pod {n} is not ready")

    load = Load(";".join(f"raftmq-{n}.raftmq:9876" for n in range(3)))
    say("an emptied volume is refused, ten times")
    pods.kill(1)
    empty(pods.data(1))
    for _ in range(10):
        assert "node 2 of this cluster has been made before" in pods.run(1, "make", REFUSED)
    assert "holds no node" in pods.run(1, "serve", REFUSED)
    assert not (pods.data(1) / "raftmq").exists()
    wait(lambda: machines.members(0), "no leader")
    assert not machines.members(0)[2]["live"]

    say("the node is replaced as the page says")
    pods.config.write_text(re.sub(r"(\[\[peers\]\]\nid = )2\n", r"\g<1>4\n", pods.config.read_text()))
    pods.ids = "1 4 3"
    pods.run(1, "make")
    pods.run(1, "make")
    wait(lambda: machines.members(0), "no leader")
    assert machines.members(0)[4]["role"] == "learner"
    pods.serve(1)
    live_once = False
    until = time.monotonic() + at_most(60)
    while True:
        live, ready = machines.is_live(1), machines.is_ready(1)
        role = machines.members(0).get(4, {}).get("role")
        if role == "voter":
            break
        assert live or not live_once, "the liveness probe failed while the node caught up"
        assert not (ready and role == "learner"), "the readiness probe passed while the node caught up"
        live_once = live_once or live
        assert time.monotonic() < until, "node 4 is no voter"
    wait(partial(machines.is_ready, 1), "the new pod is not ready")
    machines.run(0, "raftmq", "node", "remove", "2", env=pods.env(0))

    say("its volume is emptied again and is refused as well")
    pods.kill(1)
    empty(pods.data(1))
    for _ in range(3):
        assert "node 4 is, or was, another node's id" in pods.run(1, "make", None)
        assert not (pods.data(1) / "raftmq" / "IDENTITY").exists()
    pods.ids = "1 5 3"
    pods.config.write_text(re.sub(r"(\[\[peers\]\]\nid = )4\n", r"\g<1>5\n", pods.config.read_text()))
    pods.run(1, "make")
    pods.serve(1)
    wait(lambda: machines.members(0).get(5, {}).get("role") == "voter", "node 5 is no voter")
    machines.run(0, "raftmq", "node", "remove", "4", env=pods.env(0))

    say("preStop drains the leader, then SIGTERM stops it")
    ids = [int(each) for each in pods.ids.split()]
    wait(lambda: machines.leader() in ids, "no leader")
    leader = ids.index(machines.leader())
    rest = [n for n in range(3) if n != leader]
    pods.run(leader, "drain")
    assert machines.leader(*rest) not in (0, ids[leader])
    os.kill(pods.running[leader], signal.SIGTERM)
    wait(lambda: not machines.is_live(leader), "the drained node does not stop")
    machines.processes.reap(pods.running.pop(leader))

    say("a pod that waits for the others is live and not ready")
    load.end()
    for n in rest:
        machines.processes.pause(pods.running[n])
    assert "nothing to do" in pods.run(leader, "make")
    pods.serve(leader)
    wait(lambda: machines.is_live(leader), "the restarted pod is not live")
    for _ in range(20):
        assert machines.is_live(leader)
        assert not machines.is_ready(leader)
        time.sleep(0.1)
    for n in rest:
        machines.processes.resume(pods.running[n])
    wait(lambda: machines.is_ready(leader), "the restarted pod is not ready")

    say("two volumes are lost while no pod runs")
    pods.allow(timedelta(seconds=-1))
    for n in range(3):
        pods.kill(n)
    for n in (0, 1):
        empty(pods.data(n))
    for _ in range(3):
        assert "may not be made" in pods.run(0, "make", REFUSED)
    assert not (pods.data(0) / "raftmq").exists()
