"""`python bench/bench_strangers.py`: measures what strangers who shake hands do to three secured nodes.

STRANGERS (10,000) connections from 200 addresses of loopback reach the leader's ports for clients, for HTTP and for
peers. Most finish a TLS handshake and hang up; one of twenty sends half a handshake and stays. Beside them one client
sends, and this process asks the leader every 50 ms how long the last heartbeat of each link took (one each 100 ms).
Before the strangers come, the same is measured for ten seconds. With JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from tables import show
from three_nodes import leader_of

import raftmq
from cluster.config.local_layout import NodeRecord
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.credentials import addresses_of
from raftmq.local.http.http_exchange import connected, exchanged
from raftmq.local.process import free_base_port

STRANGERS = int(os.environ.get("STRANGERS") or "10000")
CALM_S, ASKED_EVERY_S, PING_MS = 10.0, 0.05, 100
AT_ONCE, ADDRESSES, STAYS_S = 100, 200, 6.0
TOPIC = "bench"
TURN = re.compile(r'^raftmq_turn_longest_seconds\{what="([^"]*)"\} (\S+)$', re.MULTILINE)
RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(32)


class Seen(NamedTuple):
    """One phase: round trips of heartbeats in ms, and the time of each send in ms."""

    heartbeats: list[float]
    sends: list[float]
    seconds: float


class Watch:
    """One open connection to the leader's HTTP API."""

    def __init__(self, leader: NodeRecord) -> None:
        (self._address,) = addresses_of([leader])
        self._connection = connected(self._address, 10.0)

    def text(self, path: str) -> str:
        return exchanged(self._connection, self._address, "GET", path).body.decode()

    def heartbeats(self) -> list[float]:
        links = json.loads(self.text("/v1/links"))["links"]
        return [link["round_trip_ms"] for link in links if link["round_trip_ms"] is not None]

    def longest_turn(self) -> str:
        """Returns the CPU time of the longest turn, and the function in which it was spent: turns of 20 ms and more
        are counted."""
        turns = [(1000 * float(seconds), what) for what, seconds in TURN.findall(self.text("/metrics"))]
        return f"{max(turns)[0]:.0f} ms ({max(turns)[1]})" if turns else "below 20 ms"

    def resident_mib(self) -> float:
        found = RESIDENT.search(self.text("/metrics"))
        return float(found[1]) / 2**20 if found else 0.0


class Sender(threading.Thread):
    """An honest client: it sends one message after the other until it is stopped."""

    def __init__(self, client: raftmq.Client) -> None:
        super().__init__()
        self._client, self._ends = client, False
        self.took_ms: list[float] = []

    def run(self) -> None:
        while not self._ends:
            begun = time.perf_counter()
            self._client.send(TOPIC, b"m" * 1024)
            self.took_ms.append(1000 * (time.perf_counter() - begun))
            time.sleep(0.01)

    def stop(self) -> None:
        self._ends = True
        self.join()


def watched(watch: Watch, client: raftmq.Client, strangers: subprocess.Popen[bytes] | None) -> Seen:
    """Watches one phase: until the strangers have gone, or for CALM_S."""
    sender, heartbeats, begun = Sender(client), list[float](), time.monotonic()
    sender.start()
    try:
        while strangers.poll() is None if strangers else time.monotonic() < begun + CALM_S:
            heartbeats += watch.heartbeats()
            time.sleep(ASKED_EVERY_S)
    finally:
        sender.stop()
    return Seen(heartbeats, sender.took_ms, time.monotonic() - begun)


async def stranger(number: int, port: int, context: ssl.SSLContext) -> bool:
    """Comes once. Returns True if it finished a handshake."""
    source = f"127.0.{1 + number % ADDRESSES // 100}.{1 + number % 100}", 0
    stays = number % 20 == 0
    try:
        async with asyncio.timeout(60):
            given = None if stays else context
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=given, local_addr=source)
            if stays:
                writer.write(HALF_A_HELLO)
                await asyncio.wait_for(reader.read(), STAYS_S)
            writer.close()
            return not stays
    except (OSError, TimeoutError, ssl.SSLError):
        return False


async def strangers(ports: list[int]) -> None:
    """Sends all of them, AT_ONCE at a time, and prints how many finished a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    numbers, finished = iter(range(STRANGERS)), 0

    async def some() -> None:
        nonlocal finished
        for number in numbers:
            came = await stranger(number, ports[number % len(ports)], context)
            finished += came

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    print(finished)


def row(name: str, seen: Seen) -> dict[str, object]:
    sends = sorted(seen.sends)
    return {
        "": name,
        "seconds": round(seen.seconds, 1),
        "heartbeats_read": len(seen.heartbeats),
        "heartbeat_median_ms": round(statistics.median(seen.heartbeats), 2),
        "heartbeat_longest_ms": round(max(seen.heartbeats), 1),
        "sends": len(sends),
        "send_p99_ms": round(sends[int(0.99 * (len(sends) - 1))], 1),
    }


def main() -> None:
    """Starts the cluster in a temporary directory, measures, and ends it."""
    if len(sys.argv) > 1:
        asyncio.run(strangers([int(port) for port in sys.argv[1:]]))
        return
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder:
        cluster = LocalCluster(Path(folder) / "data")
        cluster.up(3, free_base_port(12), tls=True, auth=True)
        try:
            cluster.down()
            for node in cluster.nodes:
                with node.config_path.open("a") as file:
                    file.write(f"\n[ha]\nsend_heartbeat_interval_ms = {PING_MS}\n")
            cluster.up()
            leader = leader_of(cluster)
            watch = Watch(leader)
            with raftmq.connect(cluster.servers, **cluster.client_options) as client:
                client.admin.create_topic(TOPIC, queues=4)
                calm = watched(watch, client, None)
                turn, memory = watch.longest_turn(), watch.resident_mib()
                ports = [leader.broker_port, leader.admin_port, leader.peer_port]
                come = subprocess.Popen([sys.executable, __file__, *map(str, ports)], stdout=subprocess.PIPE)
                seen = watched(watch, client, come)
                finished = int(come.communicate()[0])
            after = watch.longest_turn()
            stays = cluster.wait_leader() == leader.id
            grown = watch.resident_mib() - memory
        finally:
            cluster.down()
    show([row("calm", calm), row(f"{STRANGERS:,} strangers", seen)], "a leader while strangers shake hands")
    if not os.environ.get("JSON"):
        print(f"{finished:,} strangers finished a handshake; the leader {'is the same' if stays else 'CHANGED'}")
        print(f"longest turn of the loop: {turn} before, {after} after; memory {grown:+.1f} MiB")


if __name__ == "__main__":
    main()
