"""Run in a user namespace: three nodes, each on a small file system of its own; one or all fill up and are freed.

Arguments: folder; `leader`, `follower` or `all`; per cent to fill up to (100: nothing is left). Prints what was seen as
JSON; ends with an error where something acknowledged is missing, a process ended, or service did not resume by itself.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from cluster.config import node_files as local_config
from cluster.config.local_layout import NodeRecord
from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most

SETTINGS = """
[log]
segment_size_bytes = 1048576
[limits]
message_bytes_max = 65535
batch_bytes_max = 131072
"""
SIZE = "256m"
SIZE_BYTES = 256 << 20
PATIENCE_S = at_most(60)
TOPIC = "full-disk"


def on_small_disks() -> None:
    """Makes a node's folder a file system of its own from here on, when its configuration is written."""
    write = local_config.write_config

    def write_there(node: NodeRecord, nodes: Any, *, failpoints: bool = False, users_key: bool = False) -> None:
        node.home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(node.home)], check=True)
        write(node, nodes, failpoints=failpoints, users_key=users_key)
        with node.config_path.open("a", encoding="utf-8") as file:
            file.write(SETTINGS)

    local_config.write_config = write_there


class Load(threading.Thread):
    """One producer, one message after the other; what was acknowledged, and what else it was told."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.acked: list[str] = []
        self.errors: Counter[str] = Counter()
        self.refusals: list[str] = []
        self.over = False

    def run(self) -> None:
        """Sends until `over`."""
        number = 0
        with connect(self.servers, timeout_s=2.0) as mq:
            while not self.over:
                number += 1
                name = f"message {number} " + "x" * 20_000
                try:
                    mq.send(TOPIC, name.encode())
                except RaftMQError as error:
                    self.errors[type(error).__name__] += 1
                    if "disk is full" in str(error):
                        self.refusals.append(str(error))
                    continue
                self.acked.append(name)
                time.sleep(0.005)


class Story:
    """The cluster and the load on it."""

    def __init__(self, folder: Path) -> None:
        on_small_disks()
        self.local = LocalCluster(folder)
        self.local.up(3, free_base_port(12))
        self.load = Load(self.local.servers)
        self.ballast: list[Any] = []

    def status(self, node: NodeRecord) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/v1/status", timeout=at_most(5)) as reply:
            return dict(json.load(reply))

    def alarms(self) -> dict[int, list[str]]:
        found = {}
        for node in self.local.nodes:
            try:
                found[node.id] = sorted(alarm["key"] for alarm in self.status(node)["alarms"])
            except OSError:
                found[node.id] = ["closed"]
        return found

    def named(self) -> dict[int, list[list[str]]]:
        """Node -> [code, object] of the findings of the cluster, at warning or above, as that node tells them."""
        told = {}
        for node in self.local.nodes:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{node.admin_port}/v1/health", timeout=at_most(5)
                ) as reply:
                    body = json.load(reply)
            except urllib.error.HTTPError as error:
                body = json.load(error)
            except OSError:
                continue
            told[node.id] = [[each["code"], each["object"]] for each in body["findings"] if each["severity"] != "info"]
        return told

    def fill(self, nodes: list[NodeRecord], percent: int) -> None:
        for node in nodes:
            file = (node.home / "ballast").open("wb", buffering=0)
            self.ballast.append(file)
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while percent == 100 or shutil.disk_usage(node.home).free * 100 > (100 - percent) * SIZE_BYTES:
                        file.write(bytes(size))

    def free(self) -> None:
        for file in self.ballast:
            file.truncate(0)

    def wait(self, what: str, met: Any) -> float:
        began = time.monotonic()
        while not met():
            if time.monotonic() - began > PATIENCE_S:
                raise AssertionError(f"never: {what}; alarms {self.alarms()}, {self.load.errors}")
            time.sleep(0.1)
        return time.monotonic() - began

    def equal(self) -> bool:
        try:
            views = [self.status(node) for node in self.local.nodes]
        except OSError:
            return False
        return len({view["applied_index"] for view in views} | {view["last_index"] for view in views}) == 1

    def missing(self) -> dict[int, int]:
        """node -> how many acknowledged messages it does not hand out."""
        lost = {}
        with connect(self.local.servers) as mq:
            for node in self.local.nodes:
                seen: set[str] = set()
                for queue in range(8):
                    at = 0
                    while pulled := mq.pull(TOPIC, queue, at, node=f"127.0.0.1:{node.broker_port}"):
                        seen.update(message.body.decode() for message in pulled.messages)
                        if pulled.next_offset <= at:
                            break
                        at = pulled.next_offset
                lost[node.id] = len(set(self.load.acked) - seen)
        return lost

    def play(self, who: str, percent: int) -> dict[str, Any]:
        pids = {node.id: node.pid for node in self.local.nodes}
        self.load.start()
        self.wait("messages are acknowledged", lambda: len(self.load.acked) > 50)
        leader = self.local.wait_leader()
        nodes = self.local.nodes
        chosen = {
            "leader": [n for n in nodes if n.id == leader],
            "follower": [n for n in nodes if n.id != leader][:1],
            "all": nodes,
        }[who]
        self.fill(chosen, percent)
        before = len(self.load.acked)
        self.wait("an alarm", lambda: all(self.alarms()[node.id] for node in chosen))
        time.sleep(4.0)
        alarms, named, during = self.alarms(), self.named(), len(self.load.acked) - before
        refusals = list(self.load.refusals)
        self.free()
        after = len(self.load.acked)
        resumed = self.wait("sends again", lambda: len(self.load.acked) > after + 50)
        calm = self.wait("no alarm", lambda: not any(self.alarms().values()))
        self.load.over = True
        self.load.join(at_most(30))
        self.wait("equal nodes", self.equal)
        assert {node.id: node.pid for node in self.local.nodes} == pids, "a process ended"
        refusals = refusals or list(self.load.refusals)
        lost = self.missing()
        assert not any(lost.values()), f"acknowledged and not there: {lost}"
        return {
            "alarms": alarms,
            "named": named,
            "acked": len(self.load.acked),
            "during": during,
            "resumed_s": round(resumed, 1),
            "calm_s": round(calm, 1),
            "errors": dict(self.load.errors),
            "refusal": (refusals or [""])[0],
            "chosen": [node.id for node in chosen],
        }


def main() -> None:
    story = Story(Path(sys.argv[1]))
    try:
        print(json.dumps(story.play(sys.argv[2], int(sys.argv[3]))))  # noqa: T201
    except BaseException:
        for node in story.local.nodes:
            print(Path(node.log).read_text()[-3000:], file=sys.stderr)  # noqa: T201
        raise
    finally:
        story.free()
        story.local.down()


if __name__ == "__main__":
    main()
