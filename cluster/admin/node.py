"""/v1/status, /metrics: the state of this node."""

from __future__ import annotations

from typing import Final

from cluster.admin.call import Call, Raw
from cluster.admin.port import AdminPort, NodeStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of the metrics."""


async def get_status(call: Call) -> NodeStatus:
    """Role, term, leader, indexes, peers, recovery, limits."""
    return call.port.status()


async def get_member_status(call: Call) -> NodeStatus:
    """The same of any member."""
    return call.port.status()


async def get_metrics(call: Call) -> Raw:
    """Metrics in Prometheus's text format."""
    port = call.port
    async with call.watch.scraping:
        return await _scraped(call, port)


async def _scraped(call: Call, port: AdminPort) -> Raw:
    port.metrics.findings((each.code, each.severity) for each in call.watch.cluster())
    measured, topics = await port.topic_sizes.all(), port.state.topics_by_id
    largest = {topics[topic].name: size for topic, size in measured.largest.items() if topic in topics}
    port.metrics.topic_sizes(largest, len(measured.sizes))
    steps = port.metrics.scraped(port.status(), port.state, port.backups.age_s, port.wall_ms())
    return Raw(CONTENT_TYPE, b"".join(await call.done(steps)))
