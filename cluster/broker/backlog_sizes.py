"""Measures how many bytes those topics keep that a quota limits (`cluster.flow.backlogs`). It runs on the leader, off
the event loop."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.broker.topic_sizes import BLOCKS_MAX, measure
from cluster.runtime.service_lifecycle import Part

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from cluster.broker.services import Services
    from cluster.broker.topic_sizes import TopicSize
    from cluster.flow.backlogs import Backlogs

logger = logging.getLogger(__name__)


class BacklogSizes:
    """Measures the topics in batches, one batch at a time. Event loop only."""

    def __init__(self, services: Services, backlogs: Backlogs, loop: AbstractEventLoop) -> None:
        self._services, self._backlogs, self._loop = services, backlogs, loop
        self._running = False

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="backlog sizes", tick=self.tick)

    def tick(self, now_ms: int) -> None:
        """Begins to measure the topics that are due. Called several times a second; cheap if no quota limits what a
        topic keeps."""
        if self._running or not self._backlogs.active or not self._services.writes_open():
            return
        known = self._services.state.topics_by_id
        topics = [known[topic_id] for topic_id in self._backlogs.due(now_ms) if topic_id in known]
        if topics:
            self._running = True
            look = self._loop.run_in_executor(None, partial(measure, self._services.state, topics, BLOCKS_MAX))
            look.add_done_callback(self._measured)

    def _measured(self, look: Future[dict[int, TopicSize]]) -> None:
        self._running = False
        if look.cancelled():
            return
        if (error := look.exception()) is not None:
            logger.warning("what topics keep could not be measured: %s", error)
            return
        self._backlogs.measured({topic_id: size.bytes for topic_id, size in look.result().items()})
