"""Our consumer follows a reset of its group, over three real nodes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from raftmq.client import connect
from raftmq.local.http.admin_http import AdminApi, admin_addresses

pytestmark = pytest.mark.live

QUEUES, MESSAGES = 2, 20


@pytest.mark.ci
def test_a_running_consumer_goes_back(live_cluster: Any) -> None:
    topic, group = f"replay-{uuid4().hex[:8]}", f"readers-{uuid4().hex[:8]}"
    admin = AdminApi(admin_addresses(None, str(live_cluster.data)))
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=QUEUES)
        for number in range(MESSAGES):
            mq.send(topic, b"%d" % number, queue_id=number % QUEUES)
        with mq.consumer(group, topic, max_wait_s=20) as consumer:
            first = [next(consumer).body for _ in range(MESSAGES)]
            consumer.commit()
            admin.post(f"/v1/groups/{group}/reset", {"topic": topic, "to": "earliest"})
            again = [next(consumer).body for _ in range(MESSAGES)]
            assert sorted(again) == sorted(first)
            consumer.commit()
        assert [row.lag for row in mq.admin.offsets(group, topic)] == [0] * QUEUES
