"""Real nodes of different groups of one cluster, one node each: whom they find, and what clients are told of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftmq.local.process import free_base_port
from raftmq.local.single_node_init import create_first
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from tests.support.pace import at_most
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci]


class GroupNode:
    """The only node of a group, as a process."""

    def __init__(self, folder: Path, group: int, uuid: str = "", first: int = 0) -> None:
        """`uuid`: of the cluster, "" to make it. `first`: the peer port of group 1."""
        self.group, self.home, self._first = group, folder / f"g{group}", first
        self.home.mkdir()
        self.place(uuid)
        self.uuid = str(create_first(self.config, {}).cluster_uuid)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.home / "raftmq.toml"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.base}"

    def place(self, uuid: str = "") -> None:
        """Gives it other ports."""
        self.base = free_base_port(3)
        self.peer = self.base + 1
        named = f'id = "{uuid}"\n' if uuid else ""
        first = f'first_group = ["127.0.0.1:{self._first}"]\n' if self._first else ""
        self.config.write_text(
            f'[node]\nid = 1\ndata_dir = "data"\n[cluster]\ngroup = {self.group}\nbroker_name = "g{self.group:02}"\n'
            f'{named}{first}[peer]\nport = {self.peer}\nsecret_file = "{self.home.parent}/SECRET"\n'
            f"[admin]\nport = {self.base + 2}\n"
            f'[[listeners]]\nname = "broker"\nport = {self.base}\n'
        )

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            command = [sys.executable, "-m", "raftmq", "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=os.environ)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns how the process ended."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(at_most(20))

    def shows(self) -> dict[str, set[str]]:
        """Returns broker name -> addresses in its answer to 106; {} while it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.base), timeout=at_most(5)) as client:
                client.sendall(encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0))
                stream = client.makefile("rb")
                answer = stream.read(*struct.unpack(">i", stream.read(4)))
        except (OSError, struct.error):
            return {}
        head = struct.unpack(">I", answer[:4])[0] & 0xFFFFFF
        body = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', answer[4 + head :]))
        assert set(*body["clusterAddrTable"].values()) == set(body["brokerAddrTable"])
        return {name: {*data["brokerAddrs"].values()} for name, data in body["brokerAddrTable"].items()}

    def asks(self, path: str) -> Any:
        """Returns the answer of its HTTP API, which a node that has just started opens after its other ports."""
        wait(self._takes_http)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.base + 2}{path}", timeout=at_most(10)) as reply:
            return json.load(reply)

    def _takes_http(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.base + 2)) == 0


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[list[GroupNode]]:
    first = GroupNode(tmp_path, 1)
    found = [first, *(GroupNode(tmp_path, group, first.uuid, first.peer) for group in (2, 3))]
    yield found
    for each in found:
        each.end(signal.SIGKILL)


def test_groups_find_each_other_and_what_moves(groups: list[GroupNode]) -> None:
    one, two, three = groups

    def everyone_shows(*nodes: GroupNode) -> None:
        wanted = {f"g{each.group:02}": {each.broker} for each in groups}
        wait(
            lambda: all(node.shows() == wanted for node in nodes),
            lambda: f"{wanted}: {[node.shows() for node in nodes]}",
            patience_s=at_most(30),
            every_s=0.1,
        )

    one.start()
    wait(lambda: one.shows() == {"g01": {one.broker}}, lambda: (one.home / "log").read_text(), every_s=0.1)
    assert not (one.home / "data" / "GROUPS").exists()
    two.start()
    three.start()
    everyone_shows(*groups)

    assert two.end(signal.SIGKILL) == -signal.SIGKILL
    two.place(two.uuid)
    two.start()
    everyone_shows(*groups)

    wait(lambda: (three.home / "data" / "GROUPS").exists(), every_s=0.1)
    one.end(signal.SIGKILL)
    assert three.end() == 0, (three.home / "log").read_text()
    three.start()
    everyone_shows(two, three)

    one.place(one.uuid)
    one.start()
    everyone_shows(*groups)  # it dials the others, whom its own map knows
    assert [each["code"] for each in one.asks("/v1/findings")["findings"] if each["code"] == "group_map"] == []


def test_a_group_without_a_way_to_the_others_does_not_start(tmp_path: Path) -> None:
    one = GroupNode(tmp_path, 1)
    two = GroupNode(tmp_path, 2, one.uuid)
    two.start()
    assert two.process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        two.process.wait(at_most(20))
    assert two.end() == 2
    assert "cluster.group is 2, and cluster.first_group is empty" in (two.home / "log").read_text()
