"""Acknowledged means synced by a majority: with the disks of any two nodes held, no send is acknowledged."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from raftmq.client import Unknown, connect

pytestmark = pytest.mark.live

PAIRS = list(itertools.combinations((1, 2, 3), 2))
SENDS = 20


@pytest.fixture
def all_released(live_cluster: Any) -> Iterator[None]:
    yield
    for node in live_cluster.nodes:
        live_cluster.failpoint(node.id, "append.fdatasync", "off")


def hold_two_disks(live_cluster: Any, held: tuple[int, int], hold_s: float) -> None:
    topic = f"held-{held[0]}-{held[1]}-{hold_s:.0f}"
    live_cluster.heal()
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        mq.send(topic, b"before")
        live_cluster.wait_equal()
        for node_id in held:
            live_cluster.failpoint(node_id, "append.fdatasync", "hold")
        bodies = [b"%d" % at for at in range(SENDS)]
        with mq.producer(timeout_s=hold_s) as producer:
            start = time.monotonic()
            futures = [producer.send_soon(topic, body) for body in bodies]
            errors = [future.exception(timeout=hold_s + 20) for future in futures]
            waited = time.monotonic() - start
        assert not [future for future, error in zip(futures, errors, strict=True) if error is None], "acknowledged"
        assert [type(error) for error in errors] == [Unknown] * SENDS, errors
        assert waited >= hold_s, "the client gave up early"
        waiting = [
            point["waiting"]
            for node_id in held
            for point in live_cluster.ask(node_id, "/v1/failpoints")["failpoints"]
            if point["name"] == "append.fdatasync"
        ]
        assert 1 in waiting, "a disk is held with a sync under way"
        for node_id in held:
            live_cluster.failpoint(node_id, "append.fdatasync", "off")
        mq.send(topic, b"after")
    live_cluster.wait_equal()
    for node_id, messages in live_cluster.stored(topic).items():
        counts = Counter(message.body for message in messages)
        assert counts == Counter([b"before", *bodies, b"after"]), f"node {node_id}"


@pytest.mark.parametrize("held", PAIRS)
def test_nothing_is_acknowledged_while_two_disks_are_held(
    live_cluster: Any, all_released: None, held: tuple[int, int]
) -> None:
    hold_two_disks(live_cluster, held, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("held", PAIRS)
def test_nothing_is_acknowledged_for_ten_seconds(live_cluster: Any, all_released: None, held: tuple[int, int]) -> None:
    hold_two_disks(live_cluster, held, 10.0)
