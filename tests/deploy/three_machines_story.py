"""Three machines as docs/machines.md says: made, served through a kill of the leader, one node replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.support.own_network import Load, Machines, say
from tests.support.pace import at_most
from tests.support.wait_until import wait

SAME = "/mnt/raftmq"
"""The folder of every machine, which has the configuration and the data."""
REFUSED = 5


class Hosts:
    """Three machines with the same paths, each with a disk of its own behind them."""

    def __init__(self, folder: Path) -> None:
        self.machines, self.folder = Machines(folder), folder
        self.running: dict[int, int] = {}
        self.hosts = [place.host for place in self.machines.places]
        for n in range(3):
            self.disk(n).mkdir()

    def disk(self, n: int) -> Path:
        return self.folder / f"disk{n}"

    def _on(self, n: int, *arguments: str) -> tuple[str, ...]:
        """The command with the machine's own disk at the path that all have."""
        mounts = f'mount -t tmpfs none /mnt && mkdir {SAME} && mount --bind {self.disk(n)} {SAME} && exec "$@"'
        return ("unshare", "-m", "sh", "-c", mounts, "sh", "raftmq", *arguments)

    def run(self, n: int, *arguments: str, code: int = 0) -> str:
        return self.machines.run(n, *self._on(n, *arguments), env={}, code=code)

    def serve(self, n: int, config: str = "raftmq.toml") -> None:
        self.running[n] = self.machines.start(n, *self._on(n, "serve", "--config", f"{SAME}/{config}"), env={})

    def kill(self, n: int) -> None:
        self.machines.processes.kill(self.running.pop(n))

    @property
    def servers(self) -> str:
        return ";".join(f"{host}:9876" for host in self.hosts)


def main(folder: Path) -> None:
    """Tells the story; an AssertionError is its failure."""
    hosts = Hosts(folder)
    machines, config = hosts.machines, f"{SAME}/raftmq.toml"
    say("the configurations, and a cluster made machine by machine")
    made = folder / "made"
    written = ["raftmq", "config", "init", *hosts.hosts, "--data-dir", f"{SAME}/data", "--to", str(made)]
    subprocess.run(written, check=True, stdout=sys.stderr)
    for n in range(3):
        shutil.copy(made / f"n{n + 1}" / "raftmq.toml", hosts.disk(n))
    assert "--join 10.77.0.1:9644" in hosts.run(0, "init", "--first", "--insecure", "--config", config)
    hosts.serve(0)
    for n in (1, 2):
        shutil.copy(hosts.disk(0) / "data" / "SECRET", hosts.disk(n))
    join = ("init", "--join", "10.77.0.1:9644", "--secret", f"{SAME}/SECRET", "--config", config, "--wait", "60")
    both = [subprocess.Popen([*machines.places[1].enter, *hosts._on(1, *join)], env=os.environ) for _ in range(2)]
    assert [each.wait(at_most(90)) for each in both] == [0, 0], "typed twice at once, on one machine"
    assert "created a node" in hosts.run(2, *join)
    for n in (1, 2):
        hosts.serve(n)
        (hosts.disk(n) / "SECRET").unlink()
    for n in range(3):
        wait(partial(machines.is_ready, n), f"machine {n + 1} is not ready")

    say("a client outside is served through a kill of the leader")
    load = Load(hosts.servers)
    leader = machines.leader() - 1
    wait(lambda: load.acked > 100, "nothing is sent")
    hosts.kill(leader)
    rest = [n for n in range(3) if n != leader]
    wait(lambda: machines.leader(*rest) not in (0, leader + 1), "no new leader")
    before = load.acked
    wait(lambda: load.acked > before + 100, "nothing is sent after the kill")

    say("the disk of that machine is lost: neither command makes the node again; a new one takes its place")
    shutil.rmtree(hosts.disk(leader) / "data")
    shutil.copy(hosts.disk(rest[0]) / "data" / "SECRET", hosts.disk(leader))
    again = join if leader else ("init", "--first", "--insecure", "--config", config)
    for _ in range(3):
        hosts.run(leader, *again, code=REFUSED)
        hosts.run(leader, "serve", "--config", config, code=REFUSED)
    text = (hosts.disk(leader) / "raftmq.toml").read_text()
    for table in ("[node]", "[[peers]]"):
        text = text.replace(f"{table}\nid = {leader + 1}\n", f"{table}\nid = 4\n")
    (hosts.disk(leader) / "n4.toml").write_text(text)
    via = f"http://{hosts.hosts[rest[0]]}:9644"
    asked = ("node", "replace", str(leader + 1), "--config", f"{SAME}/n4.toml", "--via", via)
    command = hosts._on(leader, *asked, "--secret", f"{SAME}/SECRET")
    with subprocess.Popen([*machines.places[leader].enter, *command], env=os.environ) as replacing:
        made_now = hosts.disk(leader) / "data" / "IDENTITY"
        wait(lambda: made_now.exists() or replacing.poll() is not None, "no directory")
        hosts.serve(leader, "n4.toml")
        assert replacing.wait(at_most(120)) == 0
    wait(lambda: sorted(machines.members(rest[0])) == sorted([4, *(n + 1 for n in rest)]), "the members are others")
    assert {member["role"] for member in machines.members(rest[0]).values()} == {"voter"}
    load.end()
