"""Three places with network namespaces of their own, for stories that run nodes as on three machines.

A story is a module with `main(folder)`. `tell` starts it as root of a user namespace, with an empty network and mounts
that nobody else sees; everything of it ends with it. Inside, `Machines` has the places, names for them, and a thread
that sends all the time.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.network import Network
from bench.peers.processes import Processes
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from tests.support.pace import at_most

ROOT = Path(__file__).resolve().parents[2]


def tell(story: str, folder: Path) -> None:
    """Runs the story; fails with all that it and its nodes printed if it failed."""
    code = (
        "import sys; from pathlib import Path; from bench.peers.processes import ended_at_exit\n"
        f"from {story} import main\n"
        "with ended_at_exit(): main(Path(sys.argv[1]))"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["unshare", "-Urnm", sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    logs = "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(folder.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs


class Machines:
    """The places of nodes 0, 1 and 2, at 10.77.0.1 to 10.77.0.3, and this process at 10.77.0.254."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        """`names`: those of the three places, for /etc/hosts."""
        self.folder = folder
        self.network, self.processes = Network(folder), Processes()
        self.places = self.network.places.nodes
        if names:
            hosts = folder / "hosts"
            rows = [f"{place.host} {name}" for place, name in zip(self.places, names, strict=True)]
            hosts.write_text("\n".join(["127.0.0.1 localhost", *rows, ""]))
            subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)

    def run(self, number: int, *command: str, env: Mapping[str, str], code: int | None = 0) -> str:
        """Runs the command at a place; returns its output. Fails on another exit code; `code`: None for any but 0."""
        done = subprocess.run(
            [*self.places[number].enter, *command],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        told = f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        assert done.returncode != 0 if code is None else done.returncode == code, told
        return done.stdout

    def start(self, number: int, *command: str, env: Mapping[str, str]) -> int:
        """Starts the command at a place; returns its pid."""
        return self.processes.start([*self.places[number].enter, *command], self.folder / f"node{number}.log", env)

    def ask(self, number: int, path: str, port: int = 9644) -> tuple[int, Any]:
        """Returns the status and the document of a GET; (0, None) if nothing answers."""
        link = http.client.HTTPConnection(self.places[number].host, port, timeout=at_most(5))
        try:
            link.request("GET", path)
            reply = link.getresponse()
            return reply.status, json.loads(reply.read())
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            link.close()

    def is_live(self, number: int) -> bool:
        return self.ask(number, "/v1/health/live")[0] == 200

    def is_ready(self, number: int) -> bool:
        return self.ask(number, "/v1/health/ready")[0] == 200

    def members(self, number: int) -> dict[int, dict[str, Any]]:
        """Returns the members by id; empty while no leader can tell."""
        status, view = self.ask(number, "/v1/members?consistency=linearizable")
        return {member["id"]: member for member in view["members"]} if status == 200 else {}

    def leader(self, *asked: int) -> int:
        """Returns the id of the leader as one of the places says; 0 if none is known."""
        for number in asked or (0, 1, 2):
            status, view = self.ask(number, "/v1/status")
            if status == 200 and view["leader"]:
                return int(view["leader"])
        return 0


def say(text: str) -> None:
    """Prints a line of the story, which a failed test shows."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def empty(directory: Path) -> None:
    """Empties a volume, which stays mounted."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class Load:
    """A client that sends numbers to one topic until it is asked to end, and then counts them."""

    def __init__(self, servers: str) -> None:
        self.servers, self.acked, self.failed = servers, 0, 0
        self._stop = threading.Event()
        with connect(servers) as client:
            client.admin.create_topic("t", queues=1)
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        with connect(self.servers) as client, client.producer() as producer:
            number = 0
            while not self._stop.is_set():
                try:
                    producer.send("t", b"%d" % number)
                    self.acked += 1
                except RaftMQError as error:
                    say(f"{number} was not sent: {error!r}")
                    self.failed += 1
                number += 1
                time.sleep(0.002)

    def end(self) -> None:
        """Ends the load; fails if a send failed, or if the topic does not hold each number once."""
        self._stop.set()
        self._thread.join()
        assert self.failed == 0, self.failed
        stored: list[int] = []
        with connect(self.servers) as client:
            offset, (queue,) = 0, client.admin.describe_topic("t").queues
            while offset < queue.max_offset:
                pulled = client.pull("t", 0, offset, 1000)
                stored += [int(message.body) for message in pulled.messages if message.queue_offset < queue.max_offset]
                offset = pulled.next_offset
        assert sorted(stored) == list(range(self.acked)), (len(stored), self.acked)
        say(f"{self.acked} acknowledged, each stored once")
