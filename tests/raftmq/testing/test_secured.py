"""A secured cluster of the pytest plugin: a Super connects, other users do what they may, the next test has none."""

from __future__ import annotations

import pytest

import raftmq
from raftmq.testing.cluster import RaftMQCluster
from raftmq_wire.codes import ResponseCode

pytestmark = [pytest.mark.live, pytest.mark.slow]
SHOP = ("shop", "the-secret-of-shop")


@pytest.mark.parametrize("_again", [0, 1])
def test_each_test_finds_the_first_user_alone(raftmq_secured_cluster: RaftMQCluster, _again: int) -> None:
    cluster = raftmq_secured_cluster
    tls = raftmq.Tls(ca=cluster.tls_ca)
    cluster.create_topic("orders", 2)
    with raftmq.connect(cluster.servers, access_key=cluster.access_key, secret_key=cluster.secret_key, tls=tls) as root:
        assert root.admin.topics() == ["orders"]
        root.admin.create_user(*SHOP)
        root.admin.set_rule(SHOP[0], "Topic:orders", ["Pub"])
    cluster.kill_leader()
    with raftmq.connect(cluster.servers, access_key=SHOP[0], secret_key=SHOP[1], tls=tls) as shop:
        shop.send("orders", b"mine")
        with pytest.raises(raftmq.Refused) as refused:
            shop.send("payments", b"not mine")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    with pytest.raises(raftmq.RaftMQError), raftmq.connect(cluster.servers, tls=False, timeout_s=3) as stranger:
        stranger.send("orders", b"in plain text")
