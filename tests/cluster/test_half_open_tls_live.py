"""Ten thousand handshakes that strangers begin and never end, at the clients' port of a real node: each of them ends,
few are open at a time, the node's memory stays bounded, and honest clients are served meanwhile."""

from __future__ import annotations

import resource
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import raftmq
from cluster.runtime.tls.accepted_sockets import ARRIVALS_MAX, HANDSHAKES_MAX
from raftmq.client.discovery import LOCAL_CA
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most
from tests.support.small_segments import small_segments

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(400)]
STRANGERS = 10_000
SOURCES = (32, 200)
"""The numbers of addresses that strangers have, 127.0.0.2 and the following: few, and more than places for handshakes.
"""
PER_SECOND = 500
PATIENCE_S = at_most(120)
OTHER_DESCRIPTORS = 64
"""The descriptors that the node may open meanwhile for its own work and for honest clients."""
MEMORY_MAX = 48 << 20
"""The growth in bytes that the strangers may cost. A handshake of OpenSSL takes some 50 KiB."""
PAUSE_S = 0.02


def client_hello() -> bytes:
    """Returns the first record of a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class Flood(threading.Thread):
    """Opens the strangers' connections at an even pace and keeps each until the node ends it."""

    def __init__(self, port: int, sources: int) -> None:
        super().__init__(name="flood")
        self._port = port
        self._sources = sources
        hello = client_hello()
        self._says = (hello, hello[:-1], hello[:1])
        """The whole record, one without its end, and its first byte."""
        self._open: dict[int, socket.socket] = {}
        self._poll = selectors.DefaultSelector()
        self.begun = self.ended = self.most = 0
        self.gives_up = False

    def run(self) -> None:
        began = time.monotonic()
        while (self.begun < STRANGERS or self._open) and not self.gives_up:
            due = min(STRANGERS, int(PER_SECOND * (time.monotonic() - began)))
            while self.begun < due:
                self._begin()
            self._hear()
        for each in self._open.values():
            each.close()
        self._poll.close()

    def _begin(self) -> None:
        stranger = socket.socket()
        stranger.bind((f"127.0.0.{2 + self.begun % self._sources}", 0))
        try:
            stranger.connect(("127.0.0.1", self._port))
            stranger.sendall(self._says[self.begun % len(self._says)])
        except ConnectionError:  # closed at once: another connection was waiting longer
            pass
        stranger.setblocking(False)
        self.begun += 1
        self._open[stranger.fileno()] = stranger
        self._poll.register(stranger, selectors.EVENT_READ)
        self.most = max(self.most, len(self._open))

    def _hear(self) -> None:
        for key, _ in self._poll.select(0.01):
            stranger = self._open[key.fd]
            try:
                said = stranger.recv(1 << 16)
            except ConnectionError:
                said = b""
            if not said:
                self._poll.unregister(stranger)
                del self._open[key.fd]
                stranger.close()
                self.ended += 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node that takes TLS alone."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    made = LocalCluster(tmp_path / "data")
    with small_segments():
        made.up(1, free_base_port(4), tls=True)
    yield made
    made.down()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def shakes_hands(port: int, context: ssl.SSLContext) -> bool:
    """Returns True if a new client's handshake succeeds."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            return True
    except OSError:
        return False


class Served:
    """Honest clients during a flood: one that stays connected and sends, and new ones, one after the other."""

    def __init__(self, flood: Flood, port: int, context: ssl.SSLContext) -> None:
        self._flood = flood
        self._port = port
        self._context = context
        self.sent = self.made = self.failed = 0
        self.slowest_send_s = self.slowest_connection_s = 0.0

    def connect(self) -> None:
        """Makes new connections until the strangers have begun all theirs."""
        while self._flood.begun < STRANGERS and not self._flood.gives_up:
            began = time.monotonic()
            if shakes_hands(self._port, self._context):
                self.made += 1
            else:
                self.failed += 1
            self.slowest_connection_s = max(self.slowest_connection_s, time.monotonic() - began)

    def send(self, honest: raftmq.Client) -> None:
        """Sends one message. Raises RaftMQError if it is refused, or its fate is unknown."""
        began = time.monotonic()
        honest.send("orders", b"%d" % self.sent)
        self.sent += 1
        self.slowest_send_s = max(self.slowest_send_s, time.monotonic() - began)


@pytest.mark.parametrize("sources", SOURCES)
def test_ten_thousand_half_open_handshakes(cluster: LocalCluster, sources: int) -> None:
    (node,) = cluster.nodes
    assert node.pid is not None
    process = psutil.Process(node.pid)
    flood = Flood(node.broker_port, sources)
    served = Served(flood, node.broker_port, ssl.create_default_context(cafile=str(cluster.data / LOCAL_CA)))
    newcomers = threading.Thread(target=served.connect, name="newcomers")
    with raftmq.connect(cluster.servers, **cluster.client_options) as honest:
        honest.admin.create_topic("orders", 1)
        honest.send("orders", b"before")
        rss, descriptors = process.memory_info().rss, process.num_fds()
        rss_most, descriptors_most = rss, 0
        for each in (flood, newcomers):
            each.start()
        try:
            until_s = time.monotonic() + STRANGERS / PER_SECOND + PATIENCE_S
            while flood.is_alive() and time.monotonic() < until_s:
                served.send(honest)
                rss_most = max(rss_most, process.memory_info().rss)
                descriptors_most = max(descriptors_most, process.num_fds() - descriptors)
                time.sleep(PAUSE_S)
        finally:
            flood.gives_up = True
            for each in (flood, newcomers):
                each.join()
    print(  # noqa: T201 - the figures
        f"{flood.begun} strangers of {sources} addresses, {PER_SECOND} a second, at most {flood.most} at a time;"
        f" {flood.ended} ended by the node. RSS {rss >> 20} MiB before, at most {rss_most >> 20}, now"
        f" {process.memory_info().rss >> 20}. Descriptors: at most {descriptors_most} more. Honest:"
        f" {served.sent} sends, the slowest {served.slowest_send_s:.3f} s; {served.made} new connections, the slowest"
        f" {served.slowest_connection_s:.2f} s, {served.failed} failed."
    )
    assert (flood.begun, flood.ended) == (STRANGERS, STRANGERS), "each of them ends"
    assert descriptors_most <= ARRIVALS_MAX + HANDSHAKES_MAX + OTHER_DESCRIPTORS, "the others wait unaccepted, or ended"
    assert rss_most - rss <= MEMORY_MAX
    assert served.sent > 0
    assert (served.made > 0, served.failed) == (True, 0)
