"""A CA, the certificates of all nodes and the key of the users' secrets are replaced together while clients send: no
send fails."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import raftmq
from cluster.config.loading import load
from raftmq.client.tls import Tls
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.credentials import address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.process import free_base_port
from raftmq.local.tls.certificates import CA, new_ca, read_ca, write_pair
from raftmq.local.tls.node_certificates import issue_node
from raftmq.local.waiting import until
from tests.support.pace import at_most

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]
SHOP = ("shop", "the-secret-of-shop")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "data")
    made.up(3, free_base_port(12), tls=True, auth=True)
    with raftmq.connect(made.servers, **made.client_options) as root:
        root.admin.create_topic("orders", queues=4)
        root.admin.create_user(*SHOP)
        root.admin.set_rule("shop", "Topic:orders", ["Pub"])
    yield made
    made.down()


class Clients:
    """Clients that send until the end: some keep their connections, others connect for each send."""

    def __init__(self, cluster: LocalCluster, tls: Tls) -> None:
        self._cluster, self._tls = cluster, tls
        self.sent: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        works = [self._keep, self._keep, self._come_and_go]
        self._threads = [threading.Thread(target=work) for work in works]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> Any:
        return raftmq.connect(self._cluster.servers, access_key=SHOP[0], secret_key=SHOP[1], tls=self._tls)

    def _send(self, client: Any, kind: str) -> None:
        try:
            client.send("orders", bytes(200))
            self.sent[kind] += 1
        except Exception as error:  # noqa: BLE001 - any error is one that a user would see
            self.failed.append(f"{kind}: {error}")

    def _keep(self) -> None:
        with self._connect() as client:
            while not self._over.wait(0.005):
                self._send(client, "kept")

    def _come_and_go(self) -> None:
        while not self._over.wait(0.1):
            try:
                with self._connect() as client:
                    self._send(client, "new")
            except Exception as error:  # noqa: BLE001 - as above
                self.failed.append(f"connect: {error}")


def issuers(cluster: LocalCluster) -> set[str]:
    """The names of the CAs whose certificates the nodes' ports show."""
    names = set()
    for node in cluster.nodes:
        for port in (node.namesrv_port, node.broker_port, node.admin_port, node.peer_port):
            pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=at_most(20))
            names.add(x509.load_pem_x509_certificate(pem.encode()).issuer.rfc4514_string())
    return names


def findings(cluster: LocalCluster) -> set[str]:
    answer = json.loads(exchange(address_of(cluster.nodes[0]), "GET", "/v1/findings", timeout_s=at_most(20)).body)
    return {finding["code"] for finding in answer["findings"]}


def key_view(cluster: LocalCluster, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "raftmq.cli", "auth", "key", *more, "--json", "--data", str(cluster.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=at_most(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def can_send(cluster: LocalCluster, ca: Path) -> bool:
    try:
        with raftmq.connect(cluster.servers, access_key=SHOP[0], secret_key=SHOP[1], tls=Tls(str(ca))) as client:
            client.send("orders", b"x")
    except raftmq.RaftMQError:
        return False
    return True


def test_no_send_fails_while_ca_certificates_and_key_are_replaced(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, key_file = cluster.data / "tls", cluster.data / "users.key"
    before = cluster.view()
    old, new = tmp_path / "old.crt", tmp_path / "new"
    old.write_bytes((folder / "ca.crt").read_bytes())
    write_pair(new_ca("Another CA"), new, CA)
    clients_ca = tmp_path / "clients.crt"
    clients_ca.write_bytes(old.read_bytes())
    begun_s = time.monotonic()
    with Clients(cluster, Tls(str(clients_ca))) as clients:
        # Both CAs and both keys, everywhere.
        both = (new / "ca.crt").read_bytes() + old.read_bytes()
        clients_ca.write_bytes(both)
        (folder / "ca.crt").write_bytes(both)
        key_file.write_bytes(base64.b64encode(os.urandom(32)) + b"\n" + key_file.read_bytes())
        old_key = key_view(cluster)["nodes"][0]["key"]
        assert until(lambda: all(len(node["keys"]) == 2 for node in key_view(cluster)["nodes"]), 30, 0.5)
        time.sleep(6.0)  # every node has looked at its files
        # Certificates of the new CA, and the new key.
        for node in cluster.nodes:
            stem = issue_node(read_ca(new), load(node.config_path), new)
            for end in ("crt", "key"):
                (folder / f"{stem}.{end}").write_bytes((new / f"{stem}.{end}").read_bytes())
        key_view(cluster, "--rotate")
        assert until(lambda: issuers(cluster) == {"CN=Another CA"}, 60, 1.0)

        def is_resealed() -> bool:
            return all(node["key"] != old_key and node["older"] == 0 for node in key_view(cluster)["nodes"])

        assert until(is_resealed, 60, 0.5)
        # The old CA and the old key go.
        key_file.write_bytes(key_file.read_bytes().splitlines(keepends=True)[0])
        clients_ca.write_bytes((new / "ca.crt").read_bytes())
        (folder / "ca.crt").write_bytes((new / "ca.crt").read_bytes())
        assert until(lambda: all(len(node["keys"]) == 1 for node in key_view(cluster)["nodes"]), 30, 0.5)
        time.sleep(10.0)  # nodes have looked again, and made their links again
        sent = sum(clients.sent.values())
        assert until(lambda: sum(clients.sent.values()) > sent + 50, 30, 0.1), "nobody sends any more"
    with capsys.disabled():
        sys.stdout.write(
            f"\n{dict(clients.sent)} sends in {time.monotonic() - begun_s:.0f} s while CA, certificates and key were"
            f" replaced; {len(clients.failed)} failed\n"
        )
    assert clients.failed == []
    after = cluster.view()
    assert (after.leader, after.term) == (before.leader, before.term)
    assert not findings(cluster) & {"tls_files", "tls_plain", "user_key"}
    assert can_send(cluster, new / "ca.crt")
    assert not can_send(cluster, old), "the CA of before is good for nothing"
