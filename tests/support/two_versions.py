"""A cluster between two versions: the older build of older_build.py, and this tree."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raftmq.client import Client, Message
from raftmq.local.process import free_base_port
from tests.support.distributions import environment, plain_wheels, run
from tests.support.older_build import older_command
from tests.support.pace import at_most

QUEUES = 4


def both_commands(folder: Path) -> tuple[Path, Path]:
    """Returns the command `raftmq` of the older build and of this tree, each in an environment of its own."""
    older = older_command(folder / "older")
    return older, environment(folder / "newer", *plain_wheels(folder / "wheels")).with_name("raftmq")


class Cluster:
    """Three nodes, and the two commands that may start them."""

    def __init__(self, folder: Path, older: Path, newer: Path) -> None:
        self.folder, self.older, self.newer = folder, older, newer
        self.data = folder / "data"
        self.tier = f"file://{folder / 'tier'}"
        self.kills: list[tuple[float, int]] = []
        """(time, node) of each kill -9."""
        up = ["up", "--detach", "--base-port", str(free_base_port(12)), "--tier", self.tier, "--json"]
        self.servers: str = self.json(older, *up)["servers"]

    def do(self, command: Path, *arguments: str, fails: bool = False) -> str:
        """Returns the output of a command that works (or `fails`, then stderr) on this cluster."""
        done = run(command, *arguments, "--data", str(self.data), cwd=self.folder, timeout_s=at_most(600))
        assert (done.returncode != 0) == fails, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stderr + done.stdout if fails else done.stdout

    def json(self, command: Path, *arguments: str) -> Any:
        """Returns what it prints, decoded."""
        return json.loads(self.do(command, *arguments))

    def leader(self) -> int:
        """Waits for a leader."""
        while True:
            found = self.json(self.newer, "node", "list", "--json")["leader"]
            if found is not None:
                return int(found)
            time.sleep(0.2)

    def change(self, node: int, command: Path) -> None:
        """Kills the node with kill -9, and starts it with that version."""
        self.kills.append((time.time(), node))
        self.do(command, "kill", str(node))
        self.do(command, "restart", str(node))


def messages(mq: Client, topic: str) -> Iterator[Message]:
    """Every message of a topic, from every queue."""
    for queue in range(QUEUES):
        offset = 0
        while True:
            found = mq.pull(topic, queue, offset)
            yield from found.messages
            if found.next_offset <= offset:
                break
            offset = found.next_offset
