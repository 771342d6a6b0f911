"""A node with two pairs of listeners, and the routes that each of its ports answers with."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.local.process import free_base_port
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from tests.support.pace import at_most
from tests.support.wait_until import until

pytestmark = pytest.mark.live

LISTENERS = ("broker", "namesrv", "broker-host", "namesrv-host")


def brokers_at(port: int) -> set[str]:
    """Addresses in the route of the cluster's own broker that the port answers with; RocketMQ's code 106."""
    with socket.create_connection(("127.0.0.1", port), timeout=at_most(5)) as client:
        client.sendall(encode_frame(RequestCode.GET_BROKER_CLUSTER_INFO, 1, 0))
        stream = client.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
    head = struct.unpack(">I", answer[:4])[0] & 0xFFFFFF
    body = re.sub(rb"([{,])(\d+):", rb'\1"\2":', answer[4 + head :])  # fastjson's keys that are numbers
    table = json.loads(body)["brokerAddrTable"]
    return {address for broker in table.values() for address in broker["brokerAddrs"].values()}


def test_each_port_answers_with_the_addresses_of_its_pair(tmp_path: Path) -> None:
    base = free_base_port(6)
    ports = dict(zip(LISTENERS, range(base, base + 4), strict=True))
    told = {"broker": "n1:10911", "broker-host": "127.0.0.1:10921"}
    config = tmp_path / "raftmq.toml"
    tables = [f'[node]\nid = 1\ndata_dir = "data"\n[peer]\nport = {base + 4}\n[admin]\nport = {base + 5}\n']
    for name, port in ports.items():
        pair = f'advertised = "{told[name]}"' if name in told else f'routes = "{name.replace("namesrv", "broker")}"'
        tables.append(f'[[listeners]]\nname = "{name}"\nport = {port}\n{pair}\n')
    config.write_text("\n".join(tables))
    command = [sys.executable, "-m", "raftmq"]
    subprocess.run([*command, "init", "--config", str(config)], check=True, capture_output=True)
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([*command, "serve", "--config", str(config)], stderr=log, env=os.environ)
    try:
        printed = tmp_path / "log"
        asyncio.run(until(lambda: b" serves: " in printed.read_bytes() or node.poll() is not None, every_s=0.05))
        found = {name: brokers_at(port) for name, port in ports.items()}
    finally:
        node.terminate()
        assert node.wait(at_most(20)) == 0, (tmp_path / "log").read_text()
    assert found == {
        "broker": {"n1:10911"},
        "namesrv": {"n1:10911"},
        "broker-host": {"127.0.0.1:10921"},
        "namesrv-host": {"127.0.0.1:10921"},
    }
