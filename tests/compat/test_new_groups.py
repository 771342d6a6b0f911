"""A push consumer of a group that nobody knows gets its first message at once, not after its next heartbeat (30 s).

The client raises the version of its subscriptions whenever its queues change and tells it with a heartbeat, which it
skips while another one is under way: pulls may ask with a version that no node has heard of.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq

GROUPS = int(os.environ.get("RAFTMQ_COMPAT_GROUPS", "16"))

pytestmark = [pytest.mark.compat, pytest.mark.timeout(40 * GROUPS)]

LATE_S = 20.0
"""Seconds that a client waits if it needs the next heartbeat."""


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_a_new_group_reads_at_once(
    mq: raftmq.Client, start: Callable[..., Any], tell: Callable[[str], None], kind: str
) -> None:
    topic = f"{kind}-new-groups"
    mq.admin.create_topic(topic, 4)
    for number in range(8):
        mq.send(topic, b"body", key=str(number), tag="t", properties={"shade": "s"})
    waits = []
    for number in range(GROUPS):
        client = start(kind, "consume", topic, "--group", f"{kind}-new-{number}")
        client.wait("ready")
        ready = time.time()
        client.wait("message", 8)
        waits.append(client.lines("message")[-1]["at"] - ready)
        client.kill()
    tell(
        f"{kind}: {sum(wait < 3 for wait in waits)} of {GROUPS} new groups had read 8 messages within 3 s of their "
        f"start, the slowest in {max(waits):.1f} s"
    )
    assert max(waits) < LATE_S, "it waited for its next heartbeat"
