"""Two groups of real processes with users: while the first group is away, the second one serves them, and rights can be
taken away there, and there alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, frames_of, request
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.process import free_base_port
from raftmq_wire.codes import RequestCode, ResponseCode
from raftmq_wire.errors import LocalError
from raftmq_wire.signature import Credentials
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci]

SHOP, STALL = Credentials("shop", "shop-secret"), Credentials("stall", "stall-secret")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("two") / "data")
    with small_segments():
        made.up(1, free_base_port(16), groups=2, auth=True)
    yield made
    made.down()


def api(cluster: LocalCluster, group: int) -> AdminApi:
    return AdminApi([address_of(cluster.of_group(group)[0])])


def sent(cluster: LocalCluster, who: Credentials) -> int:
    """The code of the answer of the second group to a send."""
    fields = send_fields("T")
    port = cluster.of_group(2)[0].broker_port
    with socket.create_connection((HOST, port), timeout=at_most(10)) as connection:
        signed = who.signed(fields, b"hello")
        connection.sendall(request(RequestCode.SEND_MESSAGE_V2, signed, b"hello", opaque=1)[1])
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            for header, _ in frames_of(buffer):
                return header.code
    raise ConnectionError("closed without an answer")


def enabled(cluster: LocalCluster, group: int) -> dict[str, bool]:
    rows = api(cluster, group).local("/v1/users")["users"]
    return {row["name"]: row["enabled"] for row in rows if row["name"] in ("shop", "stall")}


def waiting(cluster: LocalCluster) -> list[str]:
    findings = api(cluster, 2).local("/v1/findings")["findings"]
    return [each["says"] for each in findings if each["code"] == "revocations_wait"]


def test_rights_are_taken_away_without_the_first_group_which_hears_of_it_later(cluster: LocalCluster) -> None:
    first, second = api(cluster, 1), api(cluster, 2)
    first.post("/v1/topics", {"name": "T", "queues": 1, "groups": [2]})
    for who in (SHOP, STALL):
        first.post("/v1/users", {"name": who.access_key, "secret": f"{who.access_key}-secret"})
        first.put(f"/v1/acl/{who.access_key}", {"rules": [{"resource": "Topic:T", "actions": ["Pub"]}]})
    wait(lambda: [sent(cluster, who) for who in (SHOP, STALL)] == [0, 0])

    cluster.kill(cluster.of_group(1)[0].name)
    second.put("/v1/users/shop", {"enabled": False})
    assert sent(cluster, SHOP) == ResponseCode.NO_PERMISSION
    assert sent(cluster, STALL) == 0, "who keeps a right is served"
    wait(lambda: waiting(cluster))
    assert "1 changes that took rights away count in group 2 alone" in waiting(cluster)[0]
    with pytest.raises(LocalError, match="group 1 has no leader now"):
        second.put("/v1/users/shop", {"enabled": True})
    cluster.kill("2/1")
    cluster.restart("2/1")
    assert sent(cluster, SHOP) == ResponseCode.NO_PERMISSION
    second.delete("/v1/acl/stall")
    assert sent(cluster, STALL) == ResponseCode.NO_PERMISSION

    cluster.restart(cluster.of_group(1)[0].name)
    wait(lambda: enabled(cluster, 1) == {"shop": False, "stall": True}, lambda: enabled(cluster, 1))
    wait(lambda: not waiting(cluster), lambda: waiting(cluster))
    assert enabled(cluster, 2) == {"shop": False, "stall": True}
    api(cluster, 1).put("/v1/users/shop", {"enabled": True})
    wait(lambda: sent(cluster, SHOP) == 0)
    assert sent(cluster, STALL) == ResponseCode.NO_PERMISSION
